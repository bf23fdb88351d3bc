"""What log lines mean: phases of a start, and the error that a person has to read."""

from __future__ import annotations

from ddtree_ops.host.http import Redactor
from ddtree_ops.host.logs import FileLog, errors, phase

#: Lines of a real start of SGLang 0.5.20, shortened.
START = """\
[2026-11-30 15:40:01] server_args=ServerArgs(model_path='/root/models/target', api_key=None)
[2026-11-30 15:40:05] Init torch distributed begin.
[2026-11-30 15:40:06] Load weight begin. avail mem=79.10 GB
Loading safetensors checkpoint shards:  50% Completed | 2/4
[2026-11-30 15:40:09] Load weight end. elapsed=2.51 s, type=Qwen3ForCausalLM, dtype=torch.bfloat16
[2026-11-30 15:40:09] KV Cache is allocated. #tokens: 2048, K size: 0.00 GB
[2026-11-30 15:40:09] Memory pool end. avail mem=70.00 GB
[2026-11-30 15:40:10] Capture target verify CUDA graph begin. This can take up to several minutes.
Capturing batches (bs=8 avail_mem=70.00 GB):  25%|##5       | 1/4
[2026-11-30 15:40:20] Capture target verify CUDA graph end. Time elapsed: 9.50 s
[2026-11-30 15:40:21] Uvicorn running on http://127.0.0.1:31000 (Press CTRL+C to quit)
[2026-11-30 15:40:23] The server is fired up and ready to roll!""".splitlines()


def test_phases_of_a_start_in_order():
    """E1: progress has words; the capture line of a progress bar has its percentage."""
    assert [phase(line) for line in START] == [
        "reading the arguments",
        "starting the workers",
        "loading weights",
        "loading weights",
        "weights loaded",
        "allocating the KV cache",
        "KV cache is there",
        "capturing CUDA graphs",
        "capturing CUDA graphs, 25%",
        "CUDA graphs captured",
        "HTTP is up, warming up",
        "ready",
    ]


def test_the_last_distinct_errors_without_noise():
    """A traceback repeated by every worker is one error; systemd's epitaph does not hide what the service said."""
    lines = [
        "[2026-11-30 15:40:09 TP0] Scheduler hit an exception: Traceback (most recent call last):",
        '  File "/x/sglang/srt/managers/scheduler.py", line 1, in run',
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
        "sglang-ddtree.service: Main process exited, code=killed, status=9/KILL",
        "sglang-ddtree.service: Failed with result 'signal'.",
    ]
    assert errors(lines) == ["torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"]
    assert errors(lines[-2:]) == lines[-2:]


def test_secrets_are_replaced_in_log_lines():
    """SGLang prints its arguments, API key included; short values are left alone, longest first."""
    hide = Redactor(["sk-12345", "sk-12345-long", "x"])
    assert hide("key sk-12345-long and sk-12345 x") == "key *** and *** x"
    assert hide("ServerArgs(api_key='abc', admin_api_key='d')") == "ServerArgs(api_key='***', admin_api_key='***')"


def test_a_log_file_is_read_on_across_rotation(tmp_path):
    """The mark holds the inode: a rotated file is read from its beginning, half a line waits for its end."""
    path = tmp_path / "log"
    path.write_text("old\n")
    log = FileLog(str(path), FileLog(str(path)).mark())
    assert log.read() == []
    with path.open("a") as file:
        file.write("one\ntw")
    assert log.read() == ["one"]
    with path.open("a") as file:
        file.write("o\n")
    assert log.read() == ["two"]
    path.rename(tmp_path / "log.1")
    path.write_text("new\n")
    assert log.read() == ["new"]
