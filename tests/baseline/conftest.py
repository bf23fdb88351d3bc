"""The offline decoder runs in the CPU environment of the server tests."""

from tests.sglang_cpu.conftest import cpu_environment

__all__ = ["cpu_environment"]
