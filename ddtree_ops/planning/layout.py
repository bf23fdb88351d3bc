"""Where things lie on the host; the same paths that ``ddtree_ops/host`` uses."""

from __future__ import annotations

import posixpath

from ..inventory import Host
from ..model import Copy, Facts, Value


class Layout(Value, frozen=True, kw_only=True):
    """Paths of one release under the state folder. ``project_in`` and ``package_in`` are relative to the tree."""

    state_root: str
    release_id: str
    project_in: str = "python"
    package_in: str = "python/src/sglang"
    borrowed: bool = False  # on the objects of a checkout

    @property
    def tree(self) -> str:
        """The derived tree: a git repository of its own."""
        return posixpath.join(self.state_root, "releases", self.release_id)

    @property
    def project(self) -> str:
        """The folder with our ``pyproject.toml``, what ``pip install -e`` is given."""
        return posixpath.join(self.tree, self.project_in)

    @property
    def package(self) -> str:
        """The package folder that will be imported."""
        return posixpath.join(self.tree, self.package_in)


def layout_for(strategy: str, source: Copy, root: str, release_id: str) -> Layout:
    """The paths for a strategy: a checkout keeps its own layout, and our project file lies beside its own."""
    if strategy == "checkout" and source.git is not None:
        inside = posixpath.relpath(source.realpath, source.git.toplevel)
        return Layout(state_root=root, release_id=release_id, project_in="editable", package_in=inside, borrowed=True)
    return Layout(state_root=root, release_id=release_id)


def state_root(host: Host, facts: Facts) -> str:
    """The inventory's state folder, else the default for the account (as the host reported it)."""
    if host.state_root:
        return host.state_root
    if facts.state_root:
        return facts.state_root
    return "/var/lib/ddtree-ops" if facts.host.euid == 0 else f"{facts.host.home}/.local/state/ddtree-ops"
