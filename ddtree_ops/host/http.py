"""A small HTTP client for the served API: one request per connection, streams that time out on silence.

Only the standard library. The API key goes into a header and nowhere else: no exception, event or result of this module
repeats a request's headers. Proxies of the login environment are never used: the server is on this host.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import socket
import time
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Tuple

KEY_NAME = "SGLANG_DDTREE_API_KEY"
#: `/health` generates a token and takes about one second on a healthy server (measured on SGLang 0.5.20, CPU).
HEALTH_TIMEOUT = 8.0


class HttpTrouble(Exception):
    """No usable answer: ``kind`` is ``refused``, ``silent`` (nothing for too long), ``broken`` or ``status``."""

    def __init__(self, kind: str, text: str, status: int = 0) -> None:
        super().__init__(text)
        self.kind = kind
        self.text = text
        self.status = status


class Reply(NamedTuple):
    """An answer with its body and the seconds that it took."""

    status: int
    body: bytes
    seconds: float

    def json(self) -> Any:
        """The body as JSON; raises :class:`HttpTrouble` when it is not."""
        try:
            return json.loads(self.body.decode("utf-8"))
        except ValueError:
            raise HttpTrouble("broken", "the answer is not JSON: %r" % self.body[:80], self.status) from None

    def text(self, limit: int = 300) -> str:
        """The beginning of the body, for a message."""
        return self.body[:limit].decode("utf-8", "replace").strip()


class Client:
    """Talks to one server; ``address`` is where it listens (a wildcard is asked on loopback)."""

    def __init__(self, address: str, port: int, key: str = "") -> None:
        self.host = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1", "*": "127.0.0.1"}.get(address, address)
        self.port = port
        self._key = key

    @property
    def key(self) -> str:
        """For another client of the same server; it belongs into a header and nowhere else."""
        return self._key

    @property
    def url(self) -> str:
        """For messages."""
        return "http://%s:%d" % ("[%s]" % self.host if ":" in self.host else self.host, self.port)

    def request(self, method: str, path: str, body: Optional[Any] = None, timeout: float = 10.0) -> Reply:
        """One request; ``timeout`` bounds each wait for bytes. Any status is an answer, not an error."""
        started = time.monotonic()
        connection, response = self._open(method, path, body, timeout)
        try:
            data = response.read()
        except (OSError, http.client.HTTPException) as error:
            raise self._trouble(error, path, timeout) from None
        finally:
            connection.close()
        return Reply(response.status, data, time.monotonic() - started)

    def get(self, path: str, timeout: float = 10.0) -> Reply:
        """``GET path``."""
        return self.request("GET", path, None, timeout)

    def stream(self, path: str, body: Any, silence: float = 60.0) -> Iterator[Dict[str, Any]]:
        """The objects of a server-sent event stream; ends at ``[DONE]``.

        Raises:
            HttpTrouble: no byte for ``silence`` seconds, a status other than 200, or an end before ``[DONE]``.
        """
        connection, response = self._open("POST", path, body, silence)
        try:
            if response.status != 200:
                text = response.read(2000).decode("utf-8", "replace").strip()
                raise HttpTrouble("status", "%s answered %d: %s" % (path, response.status, text[:300]), response.status)
            for data in _events(response):
                if data == b"[DONE]":
                    return
                item = json.loads(data.decode("utf-8"))
                if isinstance(item, dict) and "error" in item:
                    raise HttpTrouble("status", "%s failed: %s" % (path, str(item["error"])[:300]), response.status)
                yield item
            raise HttpTrouble("broken", "the stream of %s ended before [DONE]" % path)
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise self._trouble(error, path, silence) from None
        finally:
            connection.close()

    def _open(
        self, method: str, path: str, body: Optional[Any], timeout: float
    ) -> Tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        headers = {"Accept": "*/*"}
        if self._key:
            headers["Authorization"] = "Bearer " + self._key
        data = None
        if body is not None:
            data = json.dumps(body).encode("utf-8")
            headers["Content-Type"] = "application/json"
        connection = http.client.HTTPConnection(self.host, self.port, timeout=timeout)
        try:
            connection.request(method, path, data, headers)
            return connection, connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise self._trouble(error, path, timeout) from None

    def _trouble(self, error: Exception, path: str, timeout: float) -> HttpTrouble:
        if isinstance(error, ConnectionRefusedError):
            return HttpTrouble("refused", "nothing listens on %s" % self.url)
        if isinstance(error, socket.timeout):
            return HttpTrouble("silent", "%s%s sent nothing for %g s" % (self.url, path, timeout))
        return HttpTrouble("broken", "%s%s: %s: %s" % (self.url, path, type(error).__name__, error))


def _events(response: http.client.HTTPResponse) -> Iterator[bytes]:
    """The ``data:`` payloads of an event stream."""
    parts: List[bytes] = []
    while True:
        line = response.readline(8 * 1024 * 1024)
        if not line:
            return
        line = line.rstrip(b"\r\n")
        if line.startswith(b"data:"):
            parts.append(line[5:].lstrip(b" "))
        elif not line and parts:
            yield b"\n".join(parts)
            parts = []


# -- secrets --


def read_secrets(path: str) -> Dict[str, str]:
    """The variables of an environment file as systemd reads it; empty when there is none."""
    try:
        with open(path, "r", encoding="utf-8", errors="surrogateescape") as file:
            text = file.read()
    except OSError:
        return {}
    found: Dict[str, str] = {}
    for match in re.finditer(r'^([A-Za-z_]\w*)=("(?:[^"\\]|\\.)*"|[^\n]*)', text, re.MULTILINE | re.DOTALL):
        value = match.group(2)
        if value.startswith('"'):
            value = re.sub(r'\\([\\"`$])', r"\1", value[1:-1])
        found[match.group(1)] = value.strip() if match.group(2)[:1] != '"' else value
    return found


def environment_line(name: str, value: str) -> str:
    """One line of an environment file: in double quotes a backslash escapes itself, the quote, ``$`` and backtick."""
    return '%s="%s"\n' % (name, re.sub(r'([\\"`$])', r"\\\1", value))


def api_key(secrets_path: str, pid: int = 0) -> str:
    """The key that a server asks for: from our secrets file, else from the arguments or environment of ``pid``."""
    found = read_secrets(secrets_path).get(KEY_NAME, "") if secrets_path else ""
    if found or not pid:
        return found
    return _key_of_process(pid)


def _key_of_process(pid: int) -> str:
    args = _null_list("/proc/%d/cmdline" % pid)
    for index, arg in enumerate(args):
        if arg == "--api-key" and index + 1 < len(args):
            return args[index + 1]
        if arg.startswith("--api-key="):
            return arg.partition("=")[2]
    for entry in _null_list("/proc/%d/environ" % pid):
        if entry.startswith(KEY_NAME + "="):
            return entry.partition("=")[2]
    return ""


def _null_list(path: str) -> List[str]:
    try:
        with open(path, "rb") as file:
            return [os.fsdecode(item) for item in file.read().split(b"\0")]
    except OSError:
        return []


class Redactor:
    """Replaces the values of secrets in text that leaves the host."""

    def __init__(self, values: List[str]) -> None:
        self._values = sorted({value for value in values if len(value) >= 4}, key=len, reverse=True)

    def __call__(self, text: str) -> str:
        for value in self._values:
            text = text.replace(value, "***")
        return re.sub(r"((?:admin_)?api_key=)'[^']*'", r"\1'***'", text)


def redactor(secrets_path: str) -> Redactor:
    """A redactor for the secrets of one service."""
    return Redactor(list(read_secrets(secrets_path).values()) if secrets_path else [])
