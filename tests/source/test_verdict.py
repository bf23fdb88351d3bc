"""The verdict's rules, each as one change to a good host."""

from __future__ import annotations

from typing import Any

import pytest

from ddtree_ops.model import Container, Deployment, DistInfo, Divergence, Facts, RecordCheck, Verdict
from ddtree_ops.source import releases, verdict
from ddtree_ops.source.wanted import WantedService
from tests.source.builders import (
    ENV,
    SERIES,
    SITE,
    TABLE,
    altered,
    checkout,
    copy,
    everywhere,
    host,
    interpreter,
    resolution,
    server,
)

NAMED = WantedService(environment=ENV)
OTHER = "/opt/other-env"


def decide(facts: Facts, wanted: WantedService = NAMED) -> Verdict:
    return verdict.decide(facts, wanted, SERIES)


def refusal(facts: Facts, wanted: WantedService = NAMED) -> str:
    """The refusal's code; every refusal says where it looked and what to do next, in one sentence."""
    found = decide(facts, wanted)
    assert found.strategy == "refuse"
    assert found.refusal is not None
    assert found.refusal.looked_at
    assert found.refusal.next_step
    assert found.sentence.startswith("Refused: ")
    assert found.series == ""
    return found.refusal.code


# -- strategies --


def test_origin_story() -> None:
    """The wheel is live; the older, dirty checkout without DFLASH is not; derive; and what pip install -e would do."""
    dirty = ("python/sglang/srt/speculative/eagle_worker_v2.py", "python/sglang/srt/layers/communicator.py")
    old = checkout(git={"dirty": dirty})
    old = altered(old, anchors={**old.anchors, "srt/speculative/eagle_worker_v2.py": "f" * 64}, content_hash="e" * 64)
    compared = Divergence(a=f"wheel@{ENV}", b=old.id, only_a=819, only_b=74, different=957, same=632)
    found = decide(host(copies=(copy(), old), divergences=(compared,)))
    assert (found.strategy, found.live, found.spec) == ("derive", f"wheel@{ENV}", "v1")
    assert found.series == "sglang-0.5.13.post1"
    assert found.refusal is None
    (other,) = found.others
    for words in (
        "no environment imports it",
        "older",
        "no DFLASH",
        "eagle_worker_v2.py, communicator.py",
        "957 differ",
    ):
        assert words in other.why
    whatif = next(text for text in found.warnings if "pip install -e" in text)
    for words in ("the older 0.5.10.post1", "removed DFLASH", "uncommitted edits", "compiled"):
        assert words in whatif
    assert "/root/sglang stays as it is" in found.sentence


def test_wheel_alone_is_derived() -> None:
    """No checkout anywhere: nothing about checkouts is said."""
    found = decide(host())
    assert found.strategy == "derive"
    assert found.warnings == ()
    assert "stays as it is" not in found.sentence


def test_editable_install_of_a_checkout_borrows_it() -> None:
    """The live copy is a checkout: strategy checkout; its uncommitted edits are announced."""
    tree = checkout("0.5.20", git={"dirty": ("python/sglang/srt/server_args.py",)})
    tree = altered(tree, kind="editable-finder", id=f"editable-finder@{ENV}", environment=f"{ENV}/bin/python")
    found = decide(host(copies=(tree,), resolutions=everywhere(tree.root)))
    assert (found.strategy, found.spec) == ("checkout", "v2")
    assert any("server_args.py" in text for text in found.warnings)


def test_wheel_with_an_identical_checkout_uses_the_checkout() -> None:
    """A clean checkout with the same content: its history is kept. Not when it is dirty or lacks compiled modules."""
    twin = checkout("0.5.13.post1")
    twin = altered(twin, compiled=("srt/grpc/_core.so",))
    assert decide(host(copies=(copy(), twin))).strategy == "checkout"
    assert decide(host(copies=(copy(), altered(twin, compiled=())))).strategy == "derive"
    soiled = altered(twin, git=altered(twin.git, dirty=("x.py",)))
    assert decide(host(copies=(copy(), soiled))).strategy == "derive"


def test_already_ours_is_not_refused() -> None:
    """Our build is live and this host's state knows it: information for a no-op or an upgrade."""
    ours = altered(copy("0.5.20"), kind="editable-pth", ddtree="ours", ddtree_build_id="feed" * 16, dist_infos=())
    deployed = Deployment(
        run_id="r1",
        release_id="x",
        build_id="feed" * 16,
        strategy="derive",
        environment=f"{ENV}/bin/python",
        prefix=ENV,
        tree="/t",
        package_dir=ours.root,
    )
    found = decide(host(copies=(ours,), deployment=deployed))
    assert (found.strategy, found.refusal) == ("derive", None)
    assert "already in it" in found.sentence
    assert refusal(host(copies=(ours,))) == "unknown_deployment"


# -- which environment --


def test_takeover_names_the_environment() -> None:
    """No `environment` in the inventory: the unit named for takeover says it, by its process or by what it starts."""
    two = (interpreter(ENV), interpreter(OTHER, "search", "unit:llm.service"))
    both = everywhere(f"{SITE}/sglang") + everywhere(copy(prefix=OTHER).root, OTHER)
    facts = host(interpreters=two, copies=(copy(), copy(prefix=OTHER)), resolutions=both)
    assert decide(facts, WantedService(takeover="llm")).environment == f"{OTHER}/bin/python"
    running = altered(facts, servers=(server(prefix=OTHER, unit="", pid=77),))
    assert decide(running, WantedService(takeover="77")).environment == f"{OTHER}/bin/python"
    assert refusal(facts, WantedService(takeover="nonesuch")) == "no_such_unit"


def test_inventory_and_takeover_that_differ_are_refused_by_name() -> None:
    """Two answers that differ: both are named."""
    two = (interpreter(ENV, "inventory"), interpreter(OTHER))
    facts = host(
        interpreters=two, copies=(copy(), copy(prefix=OTHER)), servers=(server(prefix=OTHER, unit="llm.service"),)
    )
    wanted = WantedService(environment=ENV, takeover="llm.service")
    assert refusal(facts, wanted) == "environments_differ"
    assert ENV in decide(facts, wanted).sentence
    assert OTHER in decide(facts, wanted).sentence


def test_two_environments() -> None:
    """Two and none live: refused, both named. One that serves decides (case A8)."""
    both = everywhere(f"{SITE}/sglang") + everywhere(copy(prefix=OTHER).root, OTHER)
    facts = host(
        interpreters=(interpreter(ENV), interpreter(OTHER)), copies=(copy(), copy(prefix=OTHER)), resolutions=both
    )
    assert refusal(facts, WantedService()) == "two_environments"
    assert ENV in decide(facts, WantedService()).sentence
    assert OTHER in decide(facts, WantedService()).sentence
    served = altered(facts, servers=(server(prefix=OTHER),))
    assert decide(served, WantedService()).environment == f"{OTHER}/bin/python"
    twice = altered(facts, servers=(server(1), server(2, prefix=OTHER)))
    assert refusal(twice, WantedService()) == "two_environments"


def test_the_only_environment_needs_no_name() -> None:
    """One candidate and no inventory entry."""
    found = decide(host(interpreters=(interpreter(ENV), interpreter("/usr"))), WantedService())
    assert found.environment == f"{ENV}/bin/python"


def test_no_sglang_says_where_it_was_looked_for() -> None:
    """Nothing on the host, or nothing in the named environment: the places are listed."""
    nothing = host(interpreters=(interpreter("/usr"),), copies=(), resolutions=())
    assert refusal(nothing, WantedService()) == "no_sglang"
    found = decide(nothing, WantedService()).refusal
    assert found is not None
    assert set(found.looked_at) >= {"/root", "/opt"}
    empty = host(copies=(), resolutions=everywhere(""))
    assert refusal(empty) == "no_sglang"
    assert refusal(host(interpreters=(interpreter("/usr"),)), WantedService(environment="/gone")) == "no_environment"


def test_only_in_a_container() -> None:
    """SGLang in an image: patching the host would change nothing; named, not guessed."""
    image = Container(runtime="docker", name="", image="lmsysorg/sglang:v0.5.20")
    facts = host(interpreters=(), copies=(), resolutions=(), containers=(image,))
    assert refusal(facts, WantedService()) == "only_in_container"
    inside = host(servers=(server(foreign_namespace=True, interpreter="", unit="", cgroup="/docker/1"),))
    assert refusal(inside, WantedService(environment=ENV, takeover="4242")) == "in_container"


def test_interpreter_that_cannot_start() -> None:
    """The named interpreter is broken: its own words."""
    broken = interpreter(ENV, "inventory", error="libpython3.12.so.1.0: cannot open shared object file")
    assert refusal(host(interpreters=(broken,))) == "interpreter_broken"
    assert "libpython" in decide(host(interpreters=(broken,))).sentence


# -- what the service imports --


@pytest.mark.parametrize(
    ("code", "service"),
    [
        (
            "cwd_shadow",
            resolution("service", "/root/sglang", winning_entry="/root (the working directory)", namespace=True),
        ),
        ("cwd_shadow", resolution("service", "/w/sglang", cwd="/w", winning_entry="/w (the working directory)")),
        ("pythonpath_shadow", resolution("service", "/opt/base/sglang", winning_entry="/opt/base (PYTHONPATH)")),
        ("skeleton", resolution("service", f"{SITE}/sglang", namespace=True, origin="")),
        ("shadowed", resolution("service", "/elsewhere/sglang", winning_entry="import hook other")),
        ("probe_failed", resolution("service", "", error="the working directory /x does not exist")),
    ],
)
def test_service_that_imports_something_else(code: str, service: Any) -> None:
    """Case A1, A2, A5: the service's own context resolves elsewhere than its environment."""
    facts = host(resolutions=(service, *everywhere(f"{SITE}/sglang")[1:]))
    assert refusal(facts) == code


def test_skeleton_lists_the_leftovers_and_moves_nothing() -> None:
    """The leftover files are named, and the way out is a rename."""
    left = copy(id="skeleton@x", kind="skeleton", foreign_files=("srt/old.json",), record=None, dist_infos=())
    hidden = altered(checkout("0.5.20"), kind="editable-finder", environment=f"{ENV}/bin/python")
    answers = tuple(altered(one, namespace=True, origin="") for one in everywhere(f"{SITE}/sglang"))
    found = decide(host(copies=(left, hidden), resolutions=answers)).refusal
    assert found is not None
    assert found.code == "skeleton"
    assert f"{SITE}/sglang/srt/old.json" in found.looked_at
    assert hidden.root in found.reason
    assert "mv " in found.next_step


def test_per_user_installation() -> None:
    """pip --user outranks the environment: isolated sees another copy, neutral the same as the service."""
    user = "/root/.local/lib/python3.12/site-packages/sglang"
    answers = (resolution("service", user), resolution("neutral", user), resolution("isolated"))
    assert refusal(host(resolutions=answers)) == "user_site"


# -- whether it can be built on --


@pytest.mark.parametrize(
    ("code", "change"),
    [
        ("no_dflash", {"dflash": "none"}),
        ("native_ddtree", {"ddtree": "native"}),
        ("foreign_ddtree", {"ddtree": "foreign", "foreign_files": ("srt/speculative/ddtree_worker.py",)}),
        ("partial_ddtree", {"ddtree": "partial"}),
        ("no_record", {"kind": "unknown", "record": None, "dist_infos": ()}),
        ("unmanaged_path", {"kind": "path", "record": None, "dist_infos": ()}),
        ("shared_package", {"symlink": True, "realpath": "/data/shared/sglang"}),
    ],
)
def test_copy_that_is_no_base(code: str, change: dict[str, Any]) -> None:
    """Content, ownership and place can forbid to build on a copy."""
    assert refusal(host(copies=(copy(**change),))) == code


def test_old_release_says_what_is_needed() -> None:
    """0.5.10.post1: not a hunk that fails, but DFLASH that is missing (case B7)."""
    facts = host(copies=(copy("0.5.10.post1"),))
    assert refusal(facts) == "no_dflash"
    found = decide(facts)
    assert found.refusal is not None
    assert "0.5.10.post1" in found.sentence
    assert "0.5.11 or newer" in found.refusal.next_step


def test_foreign_files_are_named_with_hashes() -> None:
    """Which file, and which content."""
    path = "srt/speculative/ddtree_worker.py"
    foreign = copy(ddtree="foreign", foreign_files=(path,))
    foreign = altered(foreign, anchors={**foreign.anchors, path: "ab" * 32})
    found = decide(host(copies=(foreign,))).refusal
    assert found is not None
    assert found.looked_at == (f"{foreign.root}/{path}  sha256 {'ab' * 8}",)


def test_two_owners() -> None:
    """Two real metadata folders are refused; empty and `~` ones are only reported (case A6)."""
    real = DistInfo(path="/s/sglang-0.5.13.post1.dist-info", version="0.5.13.post1", recorded=3131)
    second = DistInfo(path="/s/sglang-0.5.11.dist-info", version="0.5.11", recorded=3131)
    empty = DistInfo(path="/s/sglang-0.5.6.dist-info", version=None, note="empty")
    left = DistInfo(path="/s/~glang-0.5.9.dist-info", version="0.5.9", note="leftover of an interrupted pip run")
    assert refusal(host(copies=(copy(dist_infos=(real, second)),))) == "ambiguous_owner"
    found = decide(host(copies=(copy(dist_infos=(real, empty, left)),)))
    assert found.refusal is None
    assert any("empty" in text for text in found.warnings)


def test_worktree_without_its_repository() -> None:
    """An editable install of a worktree whose repository moved: refused, not taken for plain files (case A7)."""
    tree = checkout("0.5.20", git={"error": "gitdir target missing: /gone/.git/worktrees/t", "kind": "worktree"})
    tree = altered(tree, kind="editable-finder", environment=f"{ENV}/bin/python")
    assert refusal(host(copies=(tree,), resolutions=everywhere(tree.root))) == "broken_worktree"


# -- series and content --


def test_content_decides_not_the_version_string() -> None:
    """Case A3: a tree that claims 0.5.6 but is 0.5.20, and one that claims 0.5.20 but is 0.5.13.post1."""
    found = decide(host(copies=(copy("0.5.20", version_claimed="0.5.6.post3.dev1278+gabc1234"),)))
    assert found.series == "sglang-0.5.20"
    assert any("claims 0.5.6.post3.dev1278+gabc1234, but its content is 0.5.20" in text for text in found.warnings)
    assert decide(host(copies=(copy(version_claimed="0.5.20"),))).series == "sglang-0.5.13.post1"


def test_local_edits_keep_the_release_and_are_named() -> None:
    """A wheel with an edited file: same series, to be merged; the file is named in the evidence."""
    edited = copy("0.5.20", content_hash="d" * 64, record=RecordCheck(recorded=4604, modified=("srt/server_args.py",)))
    edited = altered(edited, anchors={**edited.anchors, "srt/server_args.py": "c" * 64})
    found = decide(host(copies=(edited,)))
    assert found.series == "sglang-0.5.20"
    assert any("1 modified (server_args.py)" in text for text in found.evidence)


def test_release_without_a_series_names_the_nearest() -> None:
    """0.5.17 has no series here: the nearest of its spec, and that it must merge."""
    found = decide(host(copies=(copy("0.5.17"),)))
    assert found.series == "sglang-0.5.20"
    assert any("merge" in text for text in found.evidence)


def test_table_and_series_recognise_their_releases() -> None:
    """Every release of the table is told from the others by its anchors alone, even with one edited."""
    for release, known in TABLE.items():
        anchors: dict[str, str | None] = {path: known.anchors.get(path) for path in releases.ANCHORS}
        assert releases.identify(copy(release), SERIES) == (release, True)
        anchors["srt/server_args.py"] = "0" * 64
        assert releases.identify(copy(release, content_hash="1" * 64, anchors=anchors), SERIES) == (release, False)
    unknown = dict.fromkeys(releases.ANCHORS, "9" * 64)
    assert releases.identify(copy(content_hash="1" * 64, anchors=unknown), SERIES) == ("", False)


# -- warnings --


def test_repository_around_the_environment_is_a_warning() -> None:
    """Case B1: not a refusal, since git applies nothing here; but named."""
    found = decide(host(interpreters=(interpreter(ENV, "inventory", enclosing_repository="/root"),)))
    assert found.refusal is None
    assert any("work tree of /root" in text for text in found.warnings)


def test_folder_that_would_change_the_import_is_a_warning() -> None:
    """Starting a server beside the checkout's package would import the checkout."""
    trap = resolution("checkout-cwd", "/root/sglang/python/sglang", cwd="/root/sglang/python")
    facts = host(copies=(copy(), checkout()), resolutions=(*everywhere(f"{SITE}/sglang"), trap))
    assert any(text.startswith("a server started in /root/sglang/python") for text in decide(facts).warnings)


def test_servers_of_the_environment_are_evidence() -> None:
    """A running server of that environment is named with its unit and port."""
    found = decide(host(servers=(server(),)))
    assert any("process 4242 (sglang.service) serves on port 30000" in text for text in found.evidence)
