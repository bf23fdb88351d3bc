"""Every way in which a copy of SGLang can be on a host, made by the real tools: found, named rightly, and what wins."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from ddtree_ops.patching.trees import content_hash as controllers_content_hash
from ddtree_ops.patching.trees import open_tree
from tests.host import material
from tests.host.material import Environment

pytestmark = pytest.mark.usefixtures("only_our_processes")


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    """An empty virtual environment."""
    return Environment(tmp_path / "ml-env")


def test_wheel(environment: Environment, tmp_path: Path) -> None:
    """A wheel: kind, version, RECORD (a path with commas is one path), DFLASH, content hash as the controller's."""
    environment.install(material.wheel(tmp_path, material.package()))
    facts = material.collect(tmp_path, environment=environment.prefix)
    copy = material.copy_in(facts, environment.site / "sglang")
    assert (copy.kind, copy.version_claimed, copy.dflash, copy.ddtree) == ("wheel", "0.5.20", "v2", "none")
    assert copy.record is not None
    assert (copy.record.recorded, copy.record.missing, copy.record.modified, copy.record.unrecorded) == (9, (), (), ())
    assert copy.content_hash == controllers_content_hash(open_tree(environment.site / "sglang").hashes())
    resolution = material.live(facts)
    assert resolution.package_dir == copy.root
    assert resolution.winning_entry == f"{environment.site} (site-packages)"
    assert resolution.metadata_version == "0.5.20"
    assert facts.interpreters[0].kind == "venv"
    assert not facts.interpreters[0].has_pip


def test_record_names_what_changed(environment: Environment, tmp_path: Path) -> None:
    """Edited, deleted and added files are told apart; bytecode is no change."""
    environment.with_wheel()
    root = environment.site / "sglang"
    (root / "srt/server_args.py").write_text("# edited\n")
    (root / "launch_server.py").unlink()
    (root / "srt/mine.py").write_text("")
    (root / "srt/__pycache__").mkdir()
    (root / "srt/__pycache__/x.cpython-311.pyc").write_bytes(b"")
    record = material.copy_in(material.collect(tmp_path), root).record
    assert record is not None
    assert record.modified == ("srt/server_args.py",)
    assert record.missing == ("launch_server.py",)
    assert record.unrecorded == ("srt/mine.py",)


@pytest.mark.parametrize(("style", "kind"), [("flat", "editable-finder"), ("src", "editable-pth")])
def test_editable_by_setuptools(environment: Environment, tmp_path: Path, style: str, kind: str) -> None:
    """setuptools' two styles of editable install, as it really makes them; the copy is the checkout, with its git."""
    checkout = material.checkout(tmp_path / "src-checkout", material.package(), style=style)
    environment.editable(checkout / "python")
    facts = material.collect(tmp_path, environment=environment.prefix)
    root = checkout / "python" / ("src/sglang" if style == "src" else "sglang")
    copy = material.copy_in(facts, root)
    assert copy.kind == kind
    assert copy.environment == str(environment.python)
    assert copy.git is not None
    assert copy.git.branch == "main"
    assert [info.editable for info in copy.dist_infos] == [True]
    assert material.live(facts).package_dir == str(root)
    assert ("finder" in material.live(facts).winning_entry) == (style == "flat")


def test_editable_by_egg_link(environment: Environment, tmp_path: Path) -> None:
    """What `setup.py develop` left on older hosts: an egg-link and a line in easy-install.pth."""
    checkout = material.checkout(tmp_path / "old", material.package())
    (environment.site / "sglang.egg-link").write_text(f"{checkout}/python\n.\n")
    (environment.site / "easy-install.pth").write_text(f"{checkout}/python\n")
    facts = material.collect(tmp_path, environment=environment.prefix)
    assert material.copy_in(facts, checkout / "python/sglang").kind == "editable-egg-link"
    assert "easy-install.pth" in material.live(facts).winning_entry


def test_skeleton_hides_an_import_hook_editable(environment: Environment, tmp_path: Path) -> None:
    """Leftovers in site-packages beat the finder: Python imports an empty namespace, exit 0 everywhere (case A2)."""
    checkout = material.checkout(tmp_path / "checkout", material.package())
    environment.editable(checkout / "python")
    (environment.site / "sglang/srt/__pycache__").mkdir(parents=True)
    (environment.site / "sglang/srt/leftover.json").write_text("{}")
    facts = material.collect(tmp_path, environment=environment.prefix)
    resolution = material.live(facts)
    assert resolution.namespace
    assert resolution.locations == (str(environment.site / "sglang"),)
    skeleton = material.copy_in(facts, environment.site / "sglang")
    assert (skeleton.kind, skeleton.foreign_files) == ("skeleton", ("srt/leftover.json",))
    assert material.copy_in(facts, checkout / "python/sglang").kind == "editable-finder"


def test_skeleton_beside_a_pth_editable_does_not_win(environment: Environment, tmp_path: Path) -> None:
    """The same leftovers do not hide a path-entry editable: the report must not say that they do."""
    checkout = material.checkout(tmp_path / "checkout", material.package(), style="src")
    environment.editable(checkout / "python")
    (environment.site / "sglang/srt").mkdir(parents=True)
    facts = material.collect(tmp_path, environment=environment.prefix)
    assert material.live(facts).package_dir == str(checkout / "python/src/sglang")
    assert material.copy_in(facts, environment.site / "sglang").kind == "skeleton"


def test_working_directory_shadow(environment: Environment, tmp_path: Path) -> None:
    """Case A1: a plain folder named sglang in the service's working directory beats an import-hook editable."""
    checkout = material.checkout(tmp_path / "checkout", material.package())
    environment.editable(checkout / "python")
    (tmp_path / "ws/sglang/docs").mkdir(parents=True)
    facts = material.collect(tmp_path, environment=environment.prefix, working_directory=tmp_path / "ws")
    assert material.live(facts).namespace
    assert "(the working directory)" in material.live(facts).winning_entry
    assert material.live(facts, "neutral").package_dir == str(checkout / "python/sglang")
    assert material.live(facts, "isolated", environment).package_dir == str(checkout / "python/sglang")


def test_pythonpath_shadow(environment: Environment, tmp_path: Path) -> None:
    """Case A5: the service's PYTHONPATH outranks its environment; only a probe with that PYTHONPATH sees it."""
    environment.with_wheel()
    base = material.write(tmp_path / "base/sglang", material.package("0.5.9"))
    variables = {"PYTHONPATH": str(base.parent)}
    facts = material.collect(tmp_path, environment=environment.prefix, service_environment=variables)
    assert material.live(facts).package_dir == str(base)
    assert material.live(facts).winning_entry == f"{base.parent} (PYTHONPATH)"
    assert material.live(facts, "isolated", environment).package_dir == str(environment.site / "sglang")
    assert material.copy_in(facts, base).kind == "path"


def test_second_environment(environment: Environment, tmp_path: Path) -> None:
    """Two environments: both are asked, each answers with its own copy."""
    environment.with_wheel()
    other = Environment(tmp_path / "other-env").with_wheel(material.package("0.5.17"), "0.5.17")
    facts = material.collect(tmp_path)
    for one in (environment, other):
        assert material.live(facts, "service", one).package_dir == str(one.site / "sglang")
    assert len({copy.id for copy in facts.copies}) == 2


def test_symlinked_package(environment: Environment, tmp_path: Path) -> None:
    """Case B8: the package folder is a link into a shared place; the link and its target are both named."""
    shared = material.write(tmp_path / "shared/sglang", material.package())
    (environment.site / "sglang").symlink_to(shared)
    copy = material.copy_in(material.collect(tmp_path), environment.site / "sglang")
    assert copy.symlink
    assert copy.realpath == str(shared)


def test_duplicate_leftover_and_empty_metadata(environment: Environment, tmp_path: Path) -> None:
    """Case A6: four metadata folders, of which importlib.metadata shows one: all are reported."""
    environment.with_wheel()
    real = environment.site / "sglang-0.5.20.dist-info"
    shutil.copytree(real, environment.site / "sglang-0.5.11.dist-info")
    (environment.site / "sglang-0.5.11.dist-info/METADATA").write_text("Name: sglang\nVersion: 0.5.11\n")
    (environment.site / "~glang-0.5.9.dist-info").mkdir()
    (environment.site / "sglang-0.5.6.dist-info").mkdir()
    infos = material.copy_in(material.collect(tmp_path), environment.site / "sglang").dist_infos
    by_name = {os.path.basename(info.path): info for info in infos}
    assert set(by_name) == {
        "sglang-0.5.20.dist-info",
        "sglang-0.5.11.dist-info",
        "~glang-0.5.9.dist-info",
        "sglang-0.5.6.dist-info",
    }
    assert by_name["sglang-0.5.6.dist-info"].version is None
    assert "empty" in by_name["sglang-0.5.6.dist-info"].note
    assert "leftover" in by_name["~glang-0.5.9.dist-info"].note


def test_hard_links_are_counted(environment: Environment, tmp_path: Path) -> None:
    """Case D5: files shared with uv's cache; a write in place would go through to other environments."""
    environment.with_wheel()
    os.link(environment.site / "sglang/srt/server_args.py", tmp_path / "cache-entry")
    assert material.copy_in(material.collect(tmp_path), environment.site / "sglang").hard_linked == 1


def test_paths_that_are_not_utf8(environment: Environment, tmp_path: Path) -> None:
    """Case C9: a file name in Latin-1 survives the way to the controller and counts as unrecorded."""
    environment.with_wheel()
    name = os.fsencode(environment.site / "sglang") + b"/caf\xe9.py"
    with open(name, "wb"):
        pass
    record = material.copy_in(material.collect(tmp_path), environment.site / "sglang").record
    assert record is not None
    assert record.unrecorded == ("caf\udce9.py",)


def test_inventory_names_what_is_not_there(tmp_path: Path) -> None:
    """An environment and a checkout of the inventory that do not exist: said, not guessed around."""
    facts = material.collect(tmp_path, environment=tmp_path / "gone", checkouts=[str(tmp_path / "nowhere")])
    assert any("nowhere" in warning and "does not exist" in warning for warning in facts.warnings)
    assert any("gone" in warning and "no interpreter" in warning for warning in facts.warnings)
    assert str(tmp_path / "gone") in facts.searched


# -- DDTREE states by content --

_PAYLOAD = "srt/speculative/ddtree/"
_BUILD = {_PAYLOAD + "__init__.py": "", _PAYLOAD + "_build.json": '{"build_id": "abc123"}'}


@pytest.mark.parametrize(
    ("name", "state", "spoil"),
    [
        (
            "spec_info knows DDTREE, no payload: upstream has it",
            "native",
            {"srt/speculative/spec_info.py": material.DDTREE},
        ),
        (
            "upstream has a worker of that name, listed by RECORD",
            "native",
            {"srt/speculative/spec_info.py": material.DDTREE, "srt/speculative/ddtree_worker.py": ""},
        ),
        ("payload and registration", "ours", {"srt/speculative/spec_info.py": material.OURS, **_BUILD}),
        ("payload without registration", "partial", _BUILD),
        (
            "registration that reaches for a payload that is gone",
            "partial",
            {"srt/speculative/spec_info.py": material.OURS},
        ),
    ],
)
def test_ddtree_states(environment: Environment, tmp_path: Path, name: str, state: str, spoil: dict[str, str]) -> None:
    """Native, ours and partial are told apart by content alone."""
    environment.with_wheel({**material.package(), **spoil})
    copy = material.copy_in(material.collect(tmp_path), environment.site / "sglang")
    assert copy.ddtree == state, name
    assert copy.ddtree_build_id == ("abc123" if _BUILD.items() <= spoil.items() else "")


def test_foreign_ddtree_files_come_with_hashes(environment: Environment, tmp_path: Path) -> None:
    """A worker that somebody dropped into site-packages: foreign, named and hashed."""
    environment.with_wheel()
    (environment.site / "sglang/srt/speculative/ddtree_worker.py").write_text("# theirs\n")
    copy = material.copy_in(material.collect(tmp_path), environment.site / "sglang")
    assert copy.ddtree == "foreign"
    assert copy.foreign_files == ("srt/speculative/ddtree_worker.py",)
    assert len(copy.anchors["srt/speculative/ddtree_worker.py"] or "") == 64


@pytest.mark.parametrize(
    ("expected", "changed"),
    [
        ("v2", {}),
        ("v1", {"srt/speculative/dflash_worker_v2.py": None, "srt/speculative/dflash_worker.py": material.V1}),
        ("none", {"srt/speculative/dflash_worker_v2.py": None}),
        ("none", {"srt/speculative/spec_info.py": "class SpeculativeAlgorithm: ...\n"}),
    ],
)
def test_dflash_by_content(
    environment: Environment, tmp_path: Path, expected: str, changed: dict[str, str | None]
) -> None:
    """Worker and enum member decide, not the version (all of these claim 0.5.20)."""
    files = {path: text for path, text in {**material.package(), **changed}.items() if text is not None}
    environment.with_wheel(files)
    assert material.copy_in(material.collect(tmp_path), environment.site / "sglang").dflash == expected


# -- git --


def test_worktree_submodule_detached_shallow(tmp_path: Path) -> None:
    """Case A7: `.git` is a file in worktrees and submodules; each is named for what it is."""
    main = material.checkout(tmp_path / "main", material.package())
    material.git(main, "tag", "v0.5.20")
    material.git(main, "worktree", "add", "-q", "--detach", str(tmp_path / "tree"))
    material.git(tmp_path, "clone", "-q", "--depth", "1", f"file://{main}", "shallow")
    (tmp_path / "super").mkdir()
    material.git(tmp_path / "super", "init", "-q", ".")
    material.git(tmp_path / "super", "submodule", "add", "-q", str(main), "third_party/sg")
    facts = material.collect(tmp_path)

    def state(folder: str) -> Callable[[str], object]:
        found = material.copy_in(facts, tmp_path / folder / "python/sglang")
        return lambda name: found.kind if name == "copy" else getattr(found.git, name)

    tree, shallow, sub = state("tree"), state("shallow"), state("super/third_party/sg")
    assert (tree("copy"), tree("kind"), tree("detached"), tree("tags")) == ("worktree", "worktree", True, ("v0.5.20",))
    assert (shallow("copy"), shallow("shallow")) == ("checkout", True)
    assert (sub("kind"), sub("superproject")) == ("submodule", str(tmp_path / "super"))


def test_worktree_whose_repository_moved(tmp_path: Path) -> None:
    """Case A7 (3): not "no repository, plain files", but the missing target by name."""
    main = material.checkout(tmp_path / "main", material.package())
    material.git(main, "worktree", "add", "-q", str(tmp_path / "tree"))
    main.rename(tmp_path / "moved")
    git = material.copy_in(material.collect(tmp_path), tmp_path / "tree/python/sglang").git
    assert git is not None
    assert git.error.startswith("gitdir target missing")
    assert str(main) in git.error


def test_environment_inside_a_repository(environment: Environment, tmp_path: Path) -> None:
    """Case B1: the repository around an environment is named, and is not taken for the wheel's own."""
    environment.with_wheel()
    material.git(tmp_path, "init", "-q", ".")
    facts = material.collect(tmp_path)
    assert facts.interpreters[0].enclosing_repository == str(tmp_path)
    assert material.copy_in(facts, environment.site / "sglang").git is None
