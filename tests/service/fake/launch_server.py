"""A stand-in for ``sglang.launch_server``, for the corners of *service handling* only: it starts in no time.

It never stands in for SGLang's answers where these matter; those tests run a real server. FAKE_MODE:
``serve`` (default), ``die`` (an error at start), ``die-later`` (after a second), ``orphan`` (a child in a session of
its own outlives the launcher), ``hang`` (listens, never healthy), ``mute`` (does nothing), ``slow`` (503 for 3 s).
"""

import http.server
import json
import os
import signal
import subprocess
import sys
import threading
import time

MODE = os.environ.get("FAKE_MODE", "serve")
STARTED = time.time()


def option(name, default=""):
    return sys.argv[sys.argv.index(name) + 1] if name in sys.argv else default


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        key = os.environ.get("SGLANG_DDTREE_API_KEY")
        if key and self.headers.get("Authorization") != "Bearer " + key:
            return self.answer(401, {})
        if self.path == "/health":
            late = MODE == "hang" or (MODE == "slow" and time.time() < STARTED + 3)
            return self.answer(503 if late else 200, {})
        if self.path == "/server_info":
            algorithm = option("--speculative-algorithm") or None
            return self.answer(200, {"speculative_algorithm": algorithm, "api_key": key})
        return self.answer(404, {})

    def answer(self, status, value):
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *words):
        pass


def dump():
    """What this process really received, for the round trip test."""
    path = os.environ.get("FAKE_DUMP")
    if path:
        with open("/proc/self/cmdline", "rb") as a, open("/proc/self/environ", "rb") as b, open(path, "w") as out:
            json.dump({"argv": a.read().hex(), "environ": b.read().hex(), "cwd": os.getcwd(), "path": sys.path}, out)


def main():
    dump()
    key = os.environ.get("SGLANG_DDTREE_API_KEY")
    print(f"server_args=ServerArgs(api_key={key!r})", file=sys.stderr, flush=True)
    if MODE == "die":
        print("Traceback (most recent call last):\nRuntimeError: no kernel image for this GPU", file=sys.stderr)
        sys.exit(3)
    child = [sys.executable, "-c", "import time; time.sleep(600)"]
    if MODE == "orphan":
        code = "import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(600)"
        subprocess.run([sys.executable, "-c", code], check=True)
    elif MODE != "mute":
        subprocess.Popen(child)
    if MODE == "mute":
        time.sleep(600)
    print("Load weight begin. avail mem=1.00 GB", file=sys.stderr, flush=True)
    server = http.server.ThreadingHTTPServer((option("--host", "127.0.0.1"), int(option("--port", "30000"))), Handler)
    if MODE == "die-later":
        threading.Timer(1.0, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    print("The server is fired up and ready to roll!", file=sys.stderr, flush=True)
    server.serve_forever()


main()
