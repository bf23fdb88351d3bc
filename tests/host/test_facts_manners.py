"""Looking changes nothing, runs nobody's programs, and survives what hosts lack."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ddtree_ops.host import commands, facts, gitinfo, hardware, interpreters, look, procs
from tests.host import material
from tests.host.material import Environment
from tests.hosts.layers import ORIGINAL_ENV

pytestmark = pytest.mark.usefixtures("only_our_processes")
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give files to somebody else")


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    """An environment with a small SGLang as a wheel."""
    return Environment(tmp_path / "ml-env").with_wheel()


def script(path: Path, text: str) -> Path:
    """An executable shell script."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)
    return path


def test_nothing_is_written(environment: Environment, tmp_path: Path) -> None:
    """Contents, modes and both times stay: no bytecode, no refreshed git index, no lock file."""
    checkout = material.checkout(tmp_path / "checkout", material.package())
    stale = checkout / "python/sglang/srt/server_args.py"
    text = stale.read_text()
    stale.write_text(text)  # same content, new time: a plain `git status` would refresh the index
    (environment.site / "sitecustomize.py").write_text("import helper\n")  # runs in every probe, -I included
    (environment.site / "helper.py").write_text("")
    before = material.manifest(tmp_path)
    for _ in range(2):
        material.collect(
            tmp_path, environment=environment.prefix, checkouts=[str(checkout)], working_directory=checkout
        )
    assert material.manifest(tmp_path) == before


def test_sglang_is_never_imported(environment: Environment, tmp_path: Path) -> None:
    """The package raises when imported; every context answers without an error."""
    facts = material.collect(tmp_path, environment=environment.prefix, working_directory=environment.site)
    assert [one.error for one in facts.resolutions if one.interpreter == str(environment.python)] == ["", "", ""]


def test_a_repository_cannot_make_us_run_programs(tmp_path: Path) -> None:
    """fsmonitor, clean filters, hooks and pagers of a repository are somebody's programs; facts run as root."""
    checkout = material.checkout(tmp_path / "checkout", material.package())
    trap = script(tmp_path / "trap", f"echo $0 >> {tmp_path}/sprung\ncat\n")
    (checkout / ".gitattributes").write_text("*.py filter=evil\n")
    for key in ("core.fsmonitor", "filter.evil.clean", "filter.evil.process", "core.pager", "diff.external"):
        material.git(checkout, "config", key, str(trap))
    shutil.copy(trap, checkout / ".git/hooks/post-index-change")
    (checkout / "python/sglang/srt/server_args.py").write_text("# edited\n")
    git = material.copy_in(material.collect(tmp_path), checkout / "python/sglang").git
    assert not (tmp_path / "sprung").exists()
    assert git is not None
    assert git.dirty == ("python/sglang/srt/server_args.py",)
    assert git.untracked == 1


@needs_root
def test_work_tree_of_another_user_is_read_and_named(tmp_path: Path) -> None:
    """git refuses a work tree of somebody else ("dubious ownership"); we read it without any configuration."""
    checkout = material.checkout(tmp_path / "checkout", material.package())
    for path in (checkout, checkout / ".git"):
        os.chown(path, 12345, 12345)
    refused = subprocess.run(["git", "status"], cwd=checkout, capture_output=True, text=True, check=False)
    assert "dubious ownership" in refused.stderr
    git = material.copy_in(material.collect(tmp_path), checkout / "python/sglang").git
    assert git is not None
    assert git.ownership_trouble
    assert len(git.head) == 40
    assert git.error == ""


@needs_root
def test_interpreter_of_another_user_is_not_started(environment: Environment, tmp_path: Path) -> None:
    """Root must not run a program out of somebody's home because it is called python; naming it is consent."""
    trap = script(environment.prefix / "bin/trap", f"touch {tmp_path}/sprung\n")
    environment.python.unlink()
    shutil.copy(trap, environment.python)
    os.chown(environment.python, 12345, 12345)
    found = next(one for one in material.collect(tmp_path).interpreters if one.path == str(environment.python))
    assert "not started" in found.error
    assert not (tmp_path / "sprung").exists()
    assert found.packages["sglang"] == "0.5.20"
    material.collect(tmp_path, environment=environment.prefix)
    assert (tmp_path / "sprung").exists()


def test_interpreter_that_is_broken(environment: Environment, tmp_path: Path) -> None:
    """The base Python lost a library: its own words, beside what the disk still tells."""
    (environment.prefix / "bin/python3").unlink()
    script(environment.prefix / "bin/python3", "echo 'error while loading shared libraries' >&2; exit 127\n")
    found = material.collect(tmp_path, environment=environment.prefix / "bin/python3")
    mine = next(one for one in found.interpreters if one.prefix == str(environment.prefix))
    assert "shared libraries" in mine.error
    assert material.copy_in(found, environment.site / "sglang").version_claimed == "0.5.20"


def test_interpreter_that_leads_to_nothing(environment: Environment, tmp_path: Path) -> None:
    """The base Python was removed, or cannot be read by this user: that is said, not "no interpreter"."""
    for name in ("python", "python3"):
        (environment.prefix / "bin" / name).unlink()
        (environment.prefix / "bin" / name).symlink_to(tmp_path / "gone")
    found = material.collect(tmp_path, environment=environment.prefix)
    mine = next(one for one in found.interpreters if "inventory" in one.sources)
    assert "No such file" in mine.error
    assert mine.packages["sglang"] == "0.5.20"


def test_noise_of_sitecustomize_does_not_hide_the_answer(environment: Environment, tmp_path: Path) -> None:
    """A sitecustomize that prints, before and after."""
    (environment.site / "sitecustomize.py").write_text(
        "import atexit\nprint('hello {\"prefix\": 1}')\natexit.register(print, 'bye')\n"
    )
    found = material.collect(tmp_path, environment=environment.prefix)
    assert material.live(found).package_dir == str(environment.site / "sglang")


def test_json_module_in_the_working_directory(environment: Environment, tmp_path: Path) -> None:
    """A working directory with a json.py: the probe must not import it."""
    folder = tmp_path / "ws"
    material.write(folder, {"json.py": "raise SystemExit('hijacked')\n", "os.py": "raise SystemExit('hijacked')\n"})
    found = material.collect(tmp_path, environment=environment.prefix, working_directory=folder)
    assert material.live(found).package_dir == str(environment.site / "sglang")


def test_without_git(environment: Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host without git: HEAD is read from the files, and that changes are unknown is said."""
    checkout = material.checkout(tmp_path / "checkout", material.package())
    head = material.git(checkout, "rev-parse", "HEAD").strip()
    monkeypatch.setattr(gitinfo.commands, "which", lambda name, path=None: "" if name == "git" else "/bin/" + name)
    state = gitinfo.state_of(look.Look({}), str(checkout / "python/sglang"))
    assert state is not None
    assert (state["head"], state["branch"]) == (head, "main")
    assert "git is not installed" in state["error"]


def test_unreadable_and_broken_places(environment: Environment, tmp_path: Path) -> None:
    """Broken links, link loops and folders without permission in the searched places."""
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "dangling").symlink_to(tmp_path / "nothing")
    (environment.site / "sglang/srt/dangling.py").symlink_to("nowhere")
    closed = tmp_path / "closed"
    closed.mkdir(mode=0)
    try:
        copy = material.copy_in(material.collect(tmp_path), environment.site / "sglang")
        assert copy.version_claimed == "0.5.20"
    finally:
        closed.chmod(0o755)


# -- machine --


def test_fake_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What nvidia-smi prints; a name with a comma, and a value that is not available."""
    csv = "0, NVIDIA RTX PRO 6000, Blackwell, GPU-1, 97887, 97251\\n1, NVIDIA H200, GPU-2, [N/A], [N/A]\\n"
    script(tmp_path / "bin/nvidia-smi", f"printf '{csv}'\n")
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    gpus, error = hardware.gpus(look.Look({}))
    assert error == ""
    assert [(gpu["name"], gpu["memory_free_mib"]) for gpu in gpus] == [
        ("NVIDIA RTX PRO 6000, Blackwell", 97251),
        ("NVIDIA H200", 0),
    ]


def test_gpu_driver_in_trouble(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """nvidia-smi prints its trouble on stdout and exits with 9."""
    script(tmp_path / "bin/nvidia-smi", 'echo "NVIDIA-SMI has failed because it couldn\'t communicate"; exit 9\n')
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    assert hardware.gpus(look.Look({})) == ([], "nvidia-smi: NVIDIA-SMI has failed because it couldn't communicate")


_DOCKER = """case "$1" in
ps) echo '{"Names":"llm","Image":"lmsysorg/sglang:v0.5.20","State":"running","Command":"serve"}'
    echo '{"Names":"db","Image":"postgres:17","State":"running","Command":"postgres"}' ;;
images) printf 'lmsysorg/sglang:v0.5.20\\nlmsysorg/sglang:v0.5.13\\npostgres:17\\n' ;;
esac
"""


def test_containers_and_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A running container, and an image that no container uses; other containers are nobody's business."""
    script(tmp_path / "bin/docker", _DOCKER)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    found = material.collect(tmp_path).containers
    assert [(one.name, one.image, one.running) for one in found] == [
        ("llm", "lmsysorg/sglang:v0.5.20", True),
        ("", "lmsysorg/sglang:v0.5.13", False),
    ]


def test_a_container_daemon_that_hangs_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """docker that does not answer is left after three seconds, with its children, and that is said."""
    script(tmp_path / "bin/docker", f"echo $$ > {tmp_path}/pid; sleep 60\n")
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    started = time.monotonic()
    found = material.collect(tmp_path)
    assert time.monotonic() - started < 15
    assert any("docker" in warning for warning in found.warnings)
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}").exists()


def test_secrets_stay_on_the_host() -> None:
    """Values of secret options and variables are never reported; numbers of tokens are no secrets."""
    args = [
        "python",
        "-m",
        "sglang.launch_server",
        "--api-key",
        "s3cret",
        "--admin-api-key=t0p",
        "--max-total-tokens",
        "64",
    ]
    shown = procs.redact([*args, "--tokenizer-path", "/m", "--hf-token", "hf_x"])
    assert not any(word in " ".join(shown) for word in ("s3cret", "t0p", "hf_x"))
    assert shown[7:11] == ["64", "--tokenizer-path", "/m", "--hf-token"]
    variables = {"HF_TOKEN": "x", "SGLANG_API_KEY": "y", "SGLANG_MAX_TOKENS": "9", "PATH": "/bin", "PYTHONPATH": "/p"}
    assert procs.safe_environment(variables) == {"PYTHONPATH": "/p", "SGLANG_MAX_TOKENS": "9"}


def test_a_command_that_fails_is_an_answer() -> None:
    """Missing, failing and hanging commands: never an exception."""
    assert "No such file" in commands.run(["/nonexistent/tool"]).error
    assert commands.run(["sh", "-c", "exit 3"]).code == 3
    assert "no answer" in commands.run(["sleep", "30"], timeout=0.2).error


def other_python(version: str) -> str:
    """A Python of that version on this machine, "" when there is none."""
    home = Path(ORIGINAL_ENV.get("HOME", "/root"))
    managed = [*home.glob(f".pyenv/versions/{version}.*/bin/python")]
    managed += home.glob(f".local/share/uv/python/cpython-{version}.*/bin/python3")
    for one in (shutil.which(f"python{version}"), *map(str, managed)):
        if one and subprocess.run([one, "-c", ""], capture_output=True, check=False).returncode == 0:
            return one
    return ""


@pytest.mark.parametrize("version", ["3.8", "3.9", "3.12"])
def test_host_modules_compile_under_older_pythons(version: str, tmp_path: Path) -> None:
    """The host's python3 may be 3.8: the modules import there and `facts` answers."""
    python = other_python(version)
    if not python:
        pytest.skip(f"no Python {version} here")
    root = Path(facts.__file__).parents[2]
    code = (
        "import sys, json; sys.path.insert(0, sys.argv[1]); from ddtree_ops.host import facts; "
        "a = facts.collect({'roots': [sys.argv[2]], 'state_root': sys.argv[2]}, lambda e: None); "
        "print(json.dumps(sorted(a)))"
    )
    done = subprocess.run(
        [python, "-B", "-c", code, str(root), str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert '"copies"' in done.stdout


# -- read_files --


def test_read_files(tmp_path: Path) -> None:
    """Bytes, hash and mode of what is there; a word for what is not; nothing outside of the base by `..`."""
    material.write(tmp_path / "pkg", {"a.py": "x = 1\n", "sub/b.py": ""})
    (tmp_path / "pkg/a.py").chmod(0o640)
    (tmp_path / "secret").write_text("no")
    paths = ["a.py", "gone.py", "sub", "../secret"]
    first, gone, folder, outside = facts.read_files({"base": str(tmp_path / "pkg"), "paths": paths}, lambda e: None)[
        "files"
    ]
    assert (first["mode"], first["size"], first["content"]) == (0o640, 6, "eCA9IDEK")
    assert gone == {"path": "gone.py", "error": "absent"}
    assert "error" in folder
    assert "outside" in outside["error"]


def test_stat_of_a_process_with_parentheses_in_its_name() -> None:
    """`/proc/<pid>/stat` holds the name unescaped: "a) R 1 (" must not shift the fields."""
    child = subprocess.Popen(
        [sys.executable, "-c", "open('/proc/self/comm','w').write('a) R 1 ('); print(flush=True); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert child.stdout is not None
        child.stdout.readline()
        one = procs.process(child.pid)
        assert one is not None
        assert one.parent == os.getpid()
        assert abs(one.start_time - time.time()) < 60
    finally:
        child.communicate(b"\n")
    assert procs.process(child.pid) is None


def test_console_script_leads_to_its_interpreter(environment: Environment) -> None:
    """A unit that starts .../bin/sglang: the script's first line, or the python beside it."""
    tool = environment.prefix / "bin/sglang"
    tool.write_text(f"#!{environment.python}\nimport sys\n")
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    assert interpreters.python_in([str(tool), "serve"]) == str(environment.python)
    assert interpreters.python_in(["/bin/sh", "-c", f"exec {tool} serve"]) == str(environment.python)
