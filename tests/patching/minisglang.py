"""A small tree with the surface of SGLang's v2 releases: every anchor of the real recipe, none of its code."""

from __future__ import annotations

from collections.abc import Mapping

from ddtree_ops.patching.text import sha256
from ddtree_ops.patching.trees import Tree

SPEC_INFO = '''\
"""Algorithms."""

from enum import Enum, auto


class SpeculativeAlgorithm(Enum):
    """Builtin ones; «été» keeps the encoding honest."""

    DFLASH = auto()
    EAGLE = auto()
    NONE = auto()

    @classmethod
    def from_string(cls, name):
        return cls.NONE if name is None else cls[name.upper()]

    def is_none(self):
        return self == SpeculativeAlgorithm.NONE

    def is_dflash(self):
        return self == SpeculativeAlgorithm.DFLASH

    def is_ngram(self):
        return False

    def has_draft_kv(self):
        """Whether the draft phase writes KV chains."""
        return not self.is_ngram()

    def handle_server_args(self, server_args):
        """Hook for arguments."""
        log = []
        # Validate for every algorithm,
        # DFLASH or not.

        if self.is_dflash():
            log.append("dflash")
        elif self.is_ngram():
            log.append("ngram")
        return log

    def get_num_tokens_per_req_for_target_verify(
        self, num_draft_tokens, is_draft_worker
    ):
        # FIXME: remove after the refactor.
        return num_draft_tokens

    def create_worker(self, server_args):
        assert not self.is_none()

        if self.is_dflash():
            # V2 drives both overlap and not.
            from sglang.srt.speculative.dflash_worker_v2 import DFlashWorkerV2

            return DFlashWorkerV2

        raise ValueError("unreachable")


class Unrelated:
    def create_worker(self, server_args):
        assert not self.is_none()

        if self.is_dflash():
            return None

        raise ValueError("unreachable")

    def is_dflash(self):
        return False


def helper(values):
    total = 0
    for value in values:
        total += value
    return total


def create_dummy_verify_input(spec_algorithm, custom_mask, num_tokens_per_req, is_draft_worker):
    spec = object()

    spec_info = None
    if spec_algorithm.is_dflash():
        spec_info = spec

    return spec_info
'''

RUNNER = """\
class DecodeCudaGraphRunner:
    def replay(self):
        spec_info = None
        return spec_info

    def get_spec_info(self, num_tokens):
        spec_info = None
        if self.model_runner.spec_algorithm.is_dflash():
            spec_info = num_tokens

        return spec_info
"""

PACKAGE = '''\
"""SGLang public API."""

from sglang.version import __version__

__all__ = [
    "Engine",
    "__version__",
]
'''

FILES: dict[str, bytes] = {
    "srt/speculative/spec_info.py": SPEC_INFO.encode(),
    "srt/model_executor/runner/decode_cuda_graph_runner.py": RUNNER.encode(),
    "__init__.py": PACKAGE.encode(),
    "srt/speculative/dflash_worker_v2.py": b"class DFlashWorkerV2: ...\n",
    "srt/speculative/dflash_info.py": b"class DFlashVerifyInput: ...\n",
}

SPEC = "srt/speculative/spec_info.py"
RUN = "srt/model_executor/runner/decode_cuda_graph_runner.py"


def tree(files: Mapping[str, bytes] = FILES, version: str = "0.5.99", *, record: bool = True) -> Tree:
    """The files as a tree in memory, with a RECORD that fits."""
    hashes = {path: sha256(data) for path, data in files.items()}
    return Tree("memory", version, files.get, lambda: hashes, hashes if record else {})


def replaced(old: str, new: str, path: str = SPEC, *, files: Mapping[str, bytes] = FILES) -> dict[str, bytes]:
    """The files after an operator's edit; the old text must be there exactly once."""
    text = files[path].decode()
    assert text.count(old) == 1, f"{old!r} occurs {text.count(old)} times"
    return {**files, path: text.replace(old, new).encode()}
