"""git for our own trees: nobody's configuration, hooks, templates, signatures or locks but ours, and no network."""

from __future__ import annotations

import contextlib
import os
import time
from typing import Dict, Iterator, List, Optional

from . import commands, durable
from .ops import Work
from .protocol import HostError

#: Settings on the command line outrank those of any repository.
_FORCED = (
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "core.untrackedCache=false",
    "core.autocrlf=false",
    "core.safecrlf=false",
    "core.attributesFile=/dev/null",
    "core.excludesFile=/dev/null",
    "core.looseCompression=1",
    "commit.gpgSign=false",
    "gc.auto=0",
    "maintenance.auto=false",
    "protocol.allow=never",
    "advice.detachedHead=false",
    "user.name=ddtree-ops",
    "user.email=ddtree-ops@localhost",
    "user.useConfigOnly=true",
)


class Git:
    """git in one repository: ``folder`` is the work tree, ``folder/.git`` the repository."""

    def __init__(self, work: Work, folder: str, executable: str) -> None:
        self._work = work
        self._executable = executable
        self._environment = environment(work)
        self.folder = folder
        self.git_dir = os.path.join(folder, ".git")

    def ask(self, *words: str, env: Optional[Dict[str, str]] = None, stdin: bytes = b"") -> commands.Ran:
        """Run ``git words...``; the caller looks at the outcome."""
        argv: List[str] = [self._executable, "--git-dir=" + self.git_dir, "--work-tree=" + self.folder]
        for setting in _FORCED:
            argv += ["-c", setting]
        full = dict(self._environment, **(env or {}))
        return self._work.run([*argv, *words], env=full, cwd=self.folder, timeout=300.0, stdin=stdin, step="git")

    def must(self, *words: str, env: Optional[Dict[str, str]] = None, stdin: bytes = b"") -> str:
        """As :meth:`ask`, stripped output; raises ``git_failed`` when git does."""
        ran = self.ask(*words, env=env, stdin=stdin)
        if not ran.ok:
            raise HostError(
                "git_failed",
                "git %s: %s" % (next(word for word in words if word[0].islower() and "=" not in word), ran.complaint()),
                where=self.folder,
                details={"stderr": ran.err.decode("utf-8", "replace")[-2000:]},
            )
        return ran.text().strip()

    def init(self, object_format: str = "sha1", branch: str = "ddtree") -> None:
        """Make the repository, without templates; bytes go in and out as they are."""
        argv = ["init", "-q", "--template="]
        if object_format != "sha1":
            argv.append("--object-format=" + object_format)
        self.must(*argv)
        self.must("symbolic-ref", "HEAD", "refs/heads/" + branch)
        os.makedirs(os.path.join(self.git_dir, "info"), exist_ok=True)
        with open(os.path.join(self.git_dir, "info", "attributes"), "w", encoding="ascii") as handle:
            handle.write("* -text -ident -filter -working-tree-encoding\n")

    def commit_all(self, message: str, path: str = ".", ignored: bool = True, pack: bool = False) -> str:
        """Commit what is in ``path`` (also what .gitignore names, if ``ignored``), never bytecode; "" when there is
        nothing to commit. ``pack`` for thousands of files: one pack instead of a file for each."""
        # Files above the threshold are streamed into a pack; it is no setting of the repository, so diffs stay diffs.
        settings = ["-c", "core.bigFileThreshold=1", "-c", "core.compression=1"] if pack else []
        words = [*settings, "add", "-A", *(["-f"] if ignored else []), "--", path, ":(exclude,glob)**/__pycache__/**"]
        parent = self.head()
        known = self.must("rev-parse", "HEAD^{tree}") if parent else ""
        with self._alone():
            self.must(*words)
            tree = self.must("write-tree", "--missing-ok")
            if tree == known:
                return ""
            commit = self.must("hash-object", "-t", "commit", "-w", "--stdin", stdin=_commit(tree, parent, message))
        self.must("update-ref", "-m", "ddtree-ops", "HEAD", commit)
        return commit

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Hide the objects that this repository borrows. git would renew the mtime of every borrowed object that it
        is about to write again, and those lie in the operator's ``.git``."""
        alternates = os.path.join(self.git_dir, "objects", "info", "alternates")
        hidden = alternates + ".hidden"
        if not os.path.exists(alternates):
            yield
            return
        os.rename(alternates, hidden)
        try:
            yield
        finally:
            os.rename(hidden, alternates)

    def heal(self) -> None:
        """Put right what a git or a helper that was killed here left: nobody else works in this repository now."""
        for name in ("index.lock", "HEAD.lock"):
            durable.discard(os.path.join(self.git_dir, name))
        hidden = os.path.join(self.git_dir, "objects", "info", "alternates.hidden")
        if os.path.exists(hidden):
            os.rename(hidden, hidden[: -len(".hidden")])

    def head(self) -> str:
        """The commit that HEAD names, "" before the first one."""
        ran = self.ask("rev-parse", "-q", "--verify", "HEAD^{commit}")
        return ran.text().strip() if ran.ok else ""


def _commit(tree: str, parent: str, message: str) -> bytes:
    """A commit object of ours."""
    who = "ddtree-ops <ddtree-ops@localhost> %d +0000" % time.time()
    lines = [
        "tree " + tree,
        *(["parent " + parent] if parent else []),
        "author " + who,
        "committer " + who,
        "",
        message,
    ]
    return ("\n".join(lines) + "\n").encode("utf-8", "surrogateescape")


def find() -> str:
    """The host's git, "" when it has none."""
    return commands.which("git")


def look(work: Work, executable: str, folder: str, *words: str) -> str:
    """Ask the repository that ``folder`` is in, without a trace in it. Raises ``not_a_repository``."""
    argv = [executable, "-C", folder]
    for setting in _FORCED:
        argv += ["-c", setting]
    ran = work.run([*argv, *words], env=environment(work), cwd="/", timeout=60.0, step="git")
    if not ran.ok:
        raise HostError("not_a_repository", "git %s: %s" % (words[0], ran.complaint()), where=folder)
    return ran.text().strip()


def environment(work: Work) -> Dict[str, str]:
    """Environment of every git that we run. Old gits know neither GIT_CONFIG_GLOBAL nor safe.directory on the command
    line, so there is a home folder with the one setting that they need."""
    home = os.path.join(work.snapshots, "home")
    config = os.path.join(home, ".gitconfig")
    if not os.path.exists(config):
        os.makedirs(home, 0o700, exist_ok=True)
        durable.replace_bytes(config, b"[safe]\n\tdirectory = *\n", 0o600)
    return commands.clean_environment(
        {
            "HOME": home,
            "XDG_CONFIG_HOME": home,
            "GIT_CONFIG_GLOBAL": config,
            "GIT_CONFIG_SYSTEM": "/dev/null",
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_OPTIONAL_LOCKS": "0",
            "GIT_NO_LAZY_FETCH": "1",
            "GIT_NO_REPLACE_OBJECTS": "1",
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_LFS_SKIP_SMUDGE": "1",
            "GIT_ATTR_NOSYSTEM": "1",
        }
    )
