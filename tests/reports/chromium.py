"""Headless Chromium over its own pipe: no driver, no browser download, no port; standard library only.

Debian's ``chromium-headless-shell`` (or any Chromium) speaks its DevTools protocol as NUL-separated JSON on the file
descriptors 3 and 4 when started with ``--remote-debugging-pipe``.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
_FLAGS = (
    "--headless",
    "--no-sandbox",  # the tests run as root; the page under test is our own
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
    "--hide-scrollbars",
    "--force-color-profile=srgb",
    "--remote-debugging-pipe",
)


def executable() -> str | None:
    """A Chromium on this machine: ``DDTREE_TEST_CHROMIUM``, else one of the usual names."""
    given = os.environ.get("DDTREE_TEST_CHROMIUM")
    return given or next((found for name in _NAMES if (found := shutil.which(name))), None)


class Browser:
    """One browser with one page; :meth:`call` sends a command, events are kept in :attr:`events`."""

    def __init__(self, binary: str, profile: Path) -> None:
        to_child, self._to = os.pipe()
        self._from, from_child = os.pipe()
        self.events: list[dict[str, Any]] = []
        self._number, self._session, self._rest = 0, "", b""
        with (profile / "stderr").open("wb") as errors:
            self._process = subprocess.Popen(
                [
                    "bash",
                    "-c",
                    'exec "$@" 3<&"$FROM" 4>&"$TO"',
                    "-",
                    binary,
                    *_FLAGS,
                    f"--user-data-dir={profile}",
                    "about:blank",
                ],
                env={**os.environ, "FROM": str(to_child), "TO": str(from_child)},
                pass_fds=(to_child, from_child),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
            )
        os.close(to_child)
        os.close(from_child)
        targets = self.call("Target.getTargets")["targetInfos"]
        page = next(one["targetId"] for one in targets if one["type"] == "page")
        self._session = self.call("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> Any:
        """Send a command and wait for its answer."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            found = self._read(30.0)
            if found.get("id") == self._number:
                if "error" in found:
                    raise RuntimeError(f"{method}: {found['error']}")
                return found["result"]
            self.events.append(found)

    def _read(self, seconds: float) -> dict[str, Any]:
        deadline = time.monotonic() + seconds
        while b"\0" not in self._rest:
            if not select.select([self._from], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise TimeoutError(f"the browser said nothing for {seconds:g} s")
            data = os.read(self._from, 1 << 20)
            if not data:
                raise RuntimeError("the browser ended")
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\0")
        return dict(json.loads(line))

    def open(self, path: Path, width: int, height: int = 900, dark: bool = False) -> None:
        """Load a file at a width in CSS pixels; returns when it is laid out."""
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.call("Emulation.setEmulatedMedia", features=scheme)
        self.events.clear()
        self.call("Page.navigate", url=path.as_uri())
        while not any(one.get("method") == "Page.loadEventFired" for one in self.events):
            self.events.append(self._read(30.0))
        self.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def evaluate(self, expression: str) -> Any:
        """A JavaScript value, by value; a promise is waited for."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise RuntimeError(found["exceptionDetails"]["text"])
        return found["result"].get("value")

    def screenshot(self, path: Path, clip: dict[str, float] | None = None) -> None:
        """The whole page, or a part of it, as PNG."""
        params: dict[str, Any] = {"format": "png", "captureBeyondViewport": True}
        if clip:
            params["clip"] = {**clip, "scale": 1}
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", **params)["data"]))

    def complaints(self) -> list[str]:
        """Everything that the page said or broke: console, exceptions, policy violations, failed requests."""
        kinds = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded", "Network.loadingFailed")
        return [json.dumps(one["params"])[:400] for one in self.events if one.get("method") in kinds]

    def requests(self) -> list[str]:
        """What the page asked for, itself included."""
        sent = [one["params"] for one in self.events if one.get("method") == "Network.requestWillBeSent"]
        return [str(one["request"]["url"]) for one in sent]

    def close(self) -> None:
        """End the browser."""
        with contextlib.suppress(OSError, RuntimeError, TimeoutError):
            self._session = ""
            self.call("Browser.close")
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(10)
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait(10)
        os.close(self._to)
        os.close(self._from)


@contextlib.contextmanager
def browser(binary: str, profile: Path) -> Iterator[Browser]:
    """A browser that ends with the block."""
    found = Browser(binary, profile)
    try:
        yield found
    finally:
        found.close()
