"""The frozen values that flow through the tool: Facts -> Verdict -> Plan -> Evidence.

``Facts`` is what the program on the host saw (``ddtree_ops/host`` builds the same shape as plain dicts);
``Verdict`` and ``Plan`` are pure functions of it. Nothing here does I/O. Sizes are in bytes unless a name says
otherwise, times in seconds since the epoch, hashes are lower-case hex SHA-256.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

SCHEMA_VERSION = 1

Strategy = Literal["derive", "checkout", "plugin", "refuse"]
SpecVersion = Literal["v1", "v2", "none"]
DdtreeState = Literal["native", "ours", "foreign", "partial", "none"]
CopyKind = Literal[
    "wheel",
    "editable-pth",
    "editable-finder",
    "editable-egg-link",
    "checkout",
    "worktree",
    "path",
    "skeleton",
    "unknown",
]


class Value(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all values: immutable, compared by content, decoded strictly by type."""


# -- Facts --


class HostInfo(Value, frozen=True, kw_only=True):
    """The machine and the account that the program ran under."""

    hostname: str
    user: str
    euid: int
    home: str
    os: str
    kernel: str
    arch: str
    boot_id: str
    pid1: str  # "systemd" or what else is PID 1
    systemd_state: str = ""  # `systemctl is-system-running`, "" without systemd
    python: str = ""  # version of the interpreter that runs the host program
    in_container: bool = False
    sudo: str = ""  # "root", "passwordless", "password", "none"
    time: float = 0.0


class Interpreter(Value, frozen=True, kw_only=True):
    """One Python on the host."""

    path: str  # as found, for example /root/ml-env/bin/python
    realpath: str
    prefix: str = ""
    version: str = ""
    abi: str = ""  # SOABI
    kind: Literal["venv", "conda", "uv", "system", "unknown"] = "unknown"
    site_packages: tuple[str, ...] = ()
    has_pip: bool = False
    pip_version: str = ""
    externally_managed: bool = False
    sources: tuple[str, ...] = ()  # "inventory", "unit:sglang.service", "process:123", "search"
    packages: dict[
        str, str
    ] = {}  # torch, sgl-kernel, sglang-kernel, flashinfer-python, transformers, triton -> version
    enclosing_repository: str = ""  # git work tree that contains the environment
    writable: bool = True
    builds_kernels: bool | None = None  # ninja is where a service of this environment looks; None: not known
    error: str = ""


class GitState(Value, frozen=True, kw_only=True):
    """State of the git work tree that contains a copy."""

    toplevel: str
    head: str = ""
    branch: str = ""  # "" when detached
    detached: bool = False
    tags: tuple[str, ...] = ()
    dirty: tuple[str, ...] = ()  # paths relative to toplevel, as `git status --porcelain` names them
    untracked: int = 0
    shallow: bool = False
    kind: Literal["repository", "worktree", "submodule"] = "repository"
    ownership_trouble: bool = False
    superproject: str = ""  # work tree that has this one as a submodule
    error: str = ""


class DistInfo(Value, frozen=True, kw_only=True):
    """One ``*.dist-info`` (or egg-info) folder that speaks of sglang."""

    path: str
    version: str | None = None
    editable: bool = False
    url: str = ""
    installer: str = ""
    recorded: int = 0  # files of the package that RECORD lists
    note: str = ""  # "empty", "leftover ~ folder", ...


class RecordCheck(Value, frozen=True, kw_only=True):
    """RECORD against the disk, for the files of the package."""

    recorded: int
    missing: tuple[str, ...] = ()
    modified: tuple[str, ...] = ()
    unrecorded: tuple[str, ...] = ()  # source files that no RECORD lists


class Copy(Value, frozen=True, kw_only=True):
    """One copy of the ``sglang`` package on the host."""

    id: str  # short and stable, for example "wheel@/root/ml-env"
    kind: CopyKind
    root: str  # the package folder, .../sglang
    realpath: str
    environment: str = ""  # interpreter path for an installed copy
    version_claimed: str = ""
    version_content: str = ""  # release whose anchor files these are, "" unknown; filled by the controller
    anchors: dict[str, str | None] = {}  # relative path -> sha256, None when absent
    content_hash: str = ""  # over the package's source files, see patching.series.content_hash
    files: int = 0
    size: int = 0
    dflash: SpecVersion = "none"
    ddtree: DdtreeState = "none"
    ddtree_build_id: str = ""
    foreign_files: tuple[str, ...] = ()
    git: GitState | None = None
    dist_infos: tuple[DistInfo, ...] = ()
    record: RecordCheck | None = None
    compiled: tuple[str, ...] = ()  # .so files, relative
    symlink: bool = False
    hard_linked: int = 0  # files with more than one name (uv cache)
    owner: str = ""
    read_only: bool = False


class Resolution(Value, frozen=True, kw_only=True):
    """What ``import sglang`` finds under one interpreter, working directory and environment."""

    interpreter: str
    context: Literal["service", "neutral", "isolated", "checkout-cwd", "server"]  # server: of one that runs
    cwd: str = ""
    pythonpath: str = ""
    origin: str = ""  # path of __init__.py, "" when nothing or a namespace
    package_dir: str = ""
    namespace: bool = False
    locations: tuple[str, ...] = ()
    winning_entry: str = ""  # the sys.path entry, .pth or finder that answered
    metadata_version: str = ""
    error: str = ""


class Divergence(Value, frozen=True, kw_only=True):
    """How two copies differ, over source files."""

    a: str
    b: str
    only_a: int
    only_b: int
    different: int
    same: int
    sample_only_a: tuple[str, ...] = ()
    sample_only_b: tuple[str, ...] = ()
    sample_different: tuple[str, ...] = ()


class Server(Value, frozen=True, kw_only=True):
    """A running SGLang server: the listening socket, its process and interpreter."""

    pid: int
    port: int
    address: str = ""
    interpreter: str = ""
    exe: str = ""
    cwd: str = ""
    args: tuple[str, ...] = ()
    environment: dict[str, str] = {}  # only PYTHONPATH, PYTHONHOME, CUDA_VISIBLE_DEVICES, SGLANG_*, no secrets
    unit: str = ""
    cgroup: str = ""
    start_time: float = 0.0
    user: str = ""
    foreign_namespace: bool = False  # lives in a container
    algorithm: str = ""
    model_path: str = ""
    processes: tuple[int, ...] = ()


class Unit(Value, frozen=True, kw_only=True):
    """A systemd unit that starts SGLang, or has the name we would use."""

    name: str
    path: str = ""
    active: str = ""
    enabled: str = ""
    exec_start: tuple[str, ...] = ()
    working_directory: str = ""
    environment: dict[str, str] = {}
    ours: bool = False


class PortOwner(Value, frozen=True, kw_only=True):
    """Who holds a TCP port that the plan needs."""

    port: int
    pid: int = 0
    command: str = ""
    unit: str = ""
    address: str = ""


class Gpu(Value, frozen=True, kw_only=True):
    """One GPU as the driver reports it; memory in MiB."""

    index: int
    name: str
    uuid: str = ""
    memory_total_mib: int = 0
    memory_free_mib: int = 0


class Disk(Value, frozen=True, kw_only=True):
    """Free space under a path that the plan writes to."""

    path: str
    free: int
    total: int
    filesystem: str = ""
    read_only: bool = False
    inodes_free: int = 0


class ModelFolder(Value, frozen=True, kw_only=True):
    """A model folder on the host: the parts of its config that decide whether target and drafter fit."""

    role: Literal["target", "draft"]
    path: str
    exists: bool
    config: dict[str, Any] = {}
    tokenizer_sha256: str = ""
    weights_bytes: int = 0
    error: str = ""


class Container(Value, frozen=True, kw_only=True):
    """A container (or image) on the host that mentions SGLang."""

    runtime: str
    name: str
    image: str
    running: bool = False


class Lock(Value, frozen=True, kw_only=True):
    """The host's lock, when held."""

    run_id: str
    pid: int
    who: str
    since: float
    message: str = ""
    alive: bool = True


class Deployment(Value, frozen=True, kw_only=True):
    """``deployment.json``: what is deployed now (see ``host/journal.py``)."""

    run_id: str
    release_id: str
    build_id: str
    strategy: str
    environment: str  # interpreter path
    prefix: str
    tree: str
    package_dir: str
    unit: str = ""
    port: int = 0
    created: float = 0.0
    tool_version: str = ""
    root_before: str = ""
    scope: dict[str, Any] = {}
    files: dict[str, str] = {}  # absolute path -> sha256, what verify checks
    settings: dict[str, Any] = {}  # the service's settings as deployed (no secrets)
    takeover: str = ""
    series: str = ""
    base_hash: str = ""
    patch_hash: str = ""
    healthy: bool = True
    baseline: dict[str, Any] = {}  # greedy answers without speculation, see host/greedy.py


class InterruptedRun(Value, frozen=True, kw_only=True):
    """A run whose journal has no end: its helper died or the host went down."""

    run_id: str
    started: float
    last_step: str
    message: str = ""


class Facts(Value, frozen=True, kw_only=True):
    """Everything that one look at a host brings."""

    schema_version: int = SCHEMA_VERSION
    host: HostInfo
    tools: dict[str, str] = {}  # name -> path; absent when not found
    interpreters: tuple[Interpreter, ...] = ()
    copies: tuple[Copy, ...] = ()
    resolutions: tuple[Resolution, ...] = ()
    divergences: tuple[Divergence, ...] = ()
    servers: tuple[Server, ...] = ()
    units: tuple[Unit, ...] = ()
    ports: tuple[PortOwner, ...] = ()
    containers: tuple[Container, ...] = ()
    gpus: tuple[Gpu, ...] = ()
    gpu_error: str = ""
    memory_total: int = 0
    memory_available: int = 0
    disks: tuple[Disk, ...] = ()
    models: tuple[ModelFolder, ...] = ()
    state_root: str = ""
    state_root_exists: bool = False
    state_root_writable: bool = True
    lock: Lock | None = None
    deployment: Deployment | None = None
    interrupted: InterruptedRun | None = None
    searched: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    duration: float = 0.0


# -- Verdict --


class Refusal(Value, frozen=True, kw_only=True):
    """Why the tool will not go on, and the smallest safe next step."""

    code: str
    reason: str
    looked_at: tuple[str, ...] = ()
    next_step: str = ""


class NotLive(Value, frozen=True, kw_only=True):
    """A copy that is not the live one, and why."""

    copy: str
    why: str


class Verdict(Value, frozen=True, kw_only=True):
    """Which copy is real, on what evidence, and what may be done about it."""

    strategy: Strategy
    sentence: str
    environment: str = ""  # interpreter path
    live: str = ""  # Copy.id
    evidence: tuple[str, ...] = ()
    others: tuple[NotLive, ...] = ()
    spec: SpecVersion = "none"
    series: str = ""  # folder name under patches/, "" when none fits
    refusal: Refusal | None = None
    warnings: tuple[str, ...] = ()


# -- Plan --


class Change(Value, frozen=True, kw_only=True):
    """One path that will change; ``before``/``after`` are hashes, "" for absent."""

    path: str
    kind: Literal["create", "modify", "remove", "replace"]
    before: str = ""
    after: str = ""
    mode: int = 0o644
    why: str = ""


class PlannedUnit(Value, frozen=True, kw_only=True):
    """A unit (or environment) file to be written."""

    name: str
    path: str
    text: str
    mode: int = 0o644


class Need(Value, frozen=True, kw_only=True):
    """What a resource needs against what is there; units are in ``unit``."""

    what: str
    needed: float
    available: float
    unit: str
    enough: bool
    note: str = ""


class Check(Value, frozen=True, kw_only=True):
    """A fact that decides whether the deploy may go on."""

    name: str
    state: Literal["ok", "warn", "fail"]
    text: str
    next_step: str = ""


class StepCall(Value, frozen=True, kw_only=True):
    """One step of the playbook with its resolved parameters."""

    name: str
    title: str
    params: dict[str, Any] = {}


class Plan(Value, frozen=True, kw_only=True):
    """What a deploy will do, as a contract: refused later if the host no longer matches ``facts_digest``."""

    schema_version: int = SCHEMA_VERSION
    tool_version: str = ""
    host: str
    address: str
    created: float
    facts_digest: str
    verdict: Verdict
    release_id: str = ""
    build_id: str = ""
    changes: tuple[Change, ...] = ()
    diff: str = ""
    commands: tuple[tuple[str, ...], ...] = ()
    units: tuple[PlannedUnit, ...] = ()
    stops: tuple[str, ...] = ()
    downtime_seconds: tuple[float, float] = (0.0, 0.0)
    needs: tuple[Need, ...] = ()
    checks: tuple[Check, ...] = ()
    steps: tuple[StepCall, ...] = ()
    notes: tuple[str, ...] = ()
    noop: bool = False
    settings: dict[str, Any] = {}

    @property
    def blocked(self) -> tuple[Check, ...]:
        """The checks that forbid the deploy."""
        return tuple(check for check in self.checks if check.state == "fail")


# -- Evidence --


class Evidence(Value, frozen=True, kw_only=True):
    """What proves that the service is ours: sockets, processes, beacons."""

    ok: bool
    unit: str = ""
    main_pid: int = 0
    processes: tuple[int, ...] = ()
    listener_pid: int = 0
    started: float = 0.0
    algorithm: str = ""
    build_id: str = ""
    imported: dict[str, str] = {}  # path -> sha256 as the processes report it
    findings: tuple[str, ...] = ()  # what is not as it should be
    server_info: dict[str, Any] = {}
