"""Request adapters on a release that only a GPU can serve: 0.5.17, whose DFLASH worker refuses log-probabilities."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest

from tests.hosts import layers
from tests.sglang_cpu.servers import HERE, REPOSITORY, Environment

pytestmark = pytest.mark.sglang


@pytest.mark.parametrize("release", ["0.5.17"])
def test_a_release_without_logprobs_in_dflash_gives_them(
    release: str, cpu_environment: Environment, tmp_path: Path
) -> None:
    """Its worker raises for such a batch, which would end the server: the way around must be there, and work."""
    with zipfile.ZipFile(layers.wheel_file(release)) as wheel:
        wheel.extractall(tmp_path)
    variables = cpu_environment.variables(tmp_path)
    output = cpu_environment.run("-B", HERE / "release_seams.py", REPOSITORY / "kernels", variables=variables)
    found = json.loads(output.splitlines()[-1])
    assert found["version"] == release
    assert found["logprobs"]
    assert found["grammars"]
    assert found["prefill"]
    assert found["error"] < 1e-5
