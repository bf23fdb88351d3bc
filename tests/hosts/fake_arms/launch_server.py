"""A stand-in for ``sglang.launch_server`` that serves tokens: for the *handling* of arms (order, interrupts, cuts,
arguments, memory), where a real server would take half a minute per start. Real servers are in ``test_bench.py``.

Reads its algorithm and width from the flags as SGLang does, keeps a beacon in ``DDTREE_RUN_DIR``, obeys its
``control.json``. Answers are a function of the prompt alone, so all algorithms agree.

``FAKE_STEP_S``: seconds per verify step; ``FAKE_ODD``: a server argument that plain decoding
reports otherwise; every start appends its flags to ``FAKE_LOG``.
"""

import hashlib
import http.server
import json
import os
import signal
import sys
import threading
import time

STEP = float(os.environ.get("FAKE_STEP_S", "0.002"))
LOCK = threading.Lock()
COUNTERS = {"verify_steps": 0, "requests": 0, "accepted_drafts": 0, "steps_by_width": {}}


def option(name, default=""):
    return sys.argv[sys.argv.index(name) + 1] if name in sys.argv else default


ALGORITHM = option("--speculative-algorithm") or None
BUDGET = int(option("--speculative-num-draft-tokens", "1")) - 1


def control():
    try:
        with open(os.path.join(os.environ["DDTREE_RUN_DIR"], "control.json")) as file:
            return json.load(file)
    except (OSError, KeyError, ValueError):
        return {}


def budget():
    asked = control().get("budget")
    return asked if isinstance(asked, int) else BUDGET


def tokens_per_step():
    if ALGORITHM is None:
        return 1
    if ALGORITHM == "DFLASH":
        return 3
    return 2 + budget() // 8


def beacon():
    folder = os.environ.get("DDTREE_RUN_DIR")
    if not folder or not os.path.isdir(folder):
        return
    with open("/proc/self/stat") as file:
        started = int(file.read().rpartition(")")[2].split()[19])
    while True:
        found = {
            "schema": "ddtree-beacon/1", "pid": os.getpid(), "start_time": started, "files": [],
            "build": {"build_id": "b" * 64},
            "settings": {"algorithm": ALGORITHM, "budget": BUDGET} if ALGORITHM == "DDTREE" else {},
            "counters": COUNTERS if ALGORITHM == "DDTREE" else {},
            "control": {"budget": control().get("budget")},
        }  # fmt: skip
        with LOCK:
            text = json.dumps(found)
        part = os.path.join(folder, "beacon.part")
        with open(part, "w") as file:
            file.write(text)
        os.replace(part, os.path.join(folder, f"{os.getpid()}.json"))
        time.sleep(0.1)


def arguments():
    found = {
        "version": "0.5.20", "model_path": option("--model-path"), "speculative_algorithm": ALGORITHM,
        "speculative_num_draft_tokens": BUDGET + 1 if ALGORITHM else None, "port": option("--port"),
        "dtype": "bfloat16",
        "max_running_requests": int(option("--max-running-requests", "0")) or (48 if ALGORITHM else None),
        "random_seed": os.getpid(), "schedule_policy": "fcfs",
    }  # fmt: skip
    if os.environ.get("FAKE_ODD") and ALGORITHM is None:
        found[os.environ["FAKE_ODD"]] = "odd"
    return found


def answer_ids(body):
    seed = json.dumps([body.get("text"), body.get("input_ids")])
    count = int(body["sampling_params"]["max_new_tokens"])
    return [hashlib.sha256(f"{seed}/{n}".encode()).digest()[0] for n in range(count)]


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        if self.path == "/health":
            return self.answer(200, {})
        return self.answer(200, arguments()) if self.path == "/server_info" else self.answer(404, {})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
        if self.path == "/generate":
            return self.generate(body)
        return self.answer(200 if self.path == "/flush_cache" else 404, {})

    def generate(self, body):
        ids, done, steps = answer_ids(body), 0, 0
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        while done < len(ids):
            time.sleep(STEP)
            done, steps = min(len(ids), done + tokens_per_step()), steps + 1
            self.part(body, ids[:done], steps, done == len(ids))
        with LOCK:
            COUNTERS["verify_steps"] += steps
            COUNTERS["requests"] += steps
            COUNTERS["accepted_drafts"] += len(ids) - steps
            widths = COUNTERS["steps_by_width"]
            width = str(budget() + 1)
            widths[width] = widths.get(width, 0) + steps
        self.wfile.write(b"data: [DONE]\n\n")
        self.close_connection = True

    def part(self, body, ids, steps, last):
        meta = {"prompt_tokens": 20, "completion_tokens": len(ids), "cached_tokens": 0}
        meta["finish_reason"] = {"type": "length"} if last else None
        if ALGORITHM:
            meta.update(spec_verify_ct=steps, spec_num_correct_drafts=len(ids) - steps)
        if body.get("return_logprob"):
            meta["output_top_logprobs"] = [[[-0.1, token, None], [-3.0, token + 1, None]] for token in ids]
        data = json.dumps({"text": "", "output_ids": ids, "meta_info": meta})
        self.wfile.write(b"data: " + data.encode() + b"\n\n")
        self.wfile.flush()

    def answer(self, status, value):
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *words):
        pass


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64


if os.environ.get("FAKE_LOG"):
    with open(os.environ["FAKE_LOG"], "a") as log:
        log.write(json.dumps(sys.argv) + "\n")
threading.Thread(target=beacon, daemon=True).start()
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
print("The server is fired up and ready to roll!", file=sys.stderr, flush=True)
Server((option("--host", "127.0.0.1"), int(option("--port", "30000"))), Handler).serve_forever()
