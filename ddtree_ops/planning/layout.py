"""Where things lie on the host; the same paths that ``ddtree_ops/host`` uses."""

from __future__ import annotations

import posixpath

from ..inventory import Host
from ..model import Facts, Value


class Layout(Value, frozen=True, kw_only=True):
    """Paths of one release under the state folder."""

    state_root: str
    release_id: str
    strategy: str = "derive"

    @property
    def tree(self) -> str:
        """The derived tree: a git repository of its own."""
        return posixpath.join(self.state_root, "releases", self.release_id)

    @property
    def project(self) -> str:
        """The folder with our ``pyproject.toml``, for ``pip install -e``; a checkout has its own in ``python/``."""
        return posixpath.join(self.tree, "editable" if self.strategy == "checkout" else "python")

    @property
    def package(self) -> str:
        """The package folder that will be imported."""
        inside = "python/sglang" if self.strategy == "checkout" else "python/src/sglang"
        return posixpath.join(self.tree, inside)


def state_root(host: Host, facts: Facts) -> str:
    """The inventory's state folder, else the default for the account (as the host reported it)."""
    if host.state_root:
        return host.state_root
    if facts.state_root:
        return facts.state_root
    return "/var/lib/ddtree-ops" if facts.host.euid == 0 else f"{facts.host.home}/.local/state/ddtree-ops"
