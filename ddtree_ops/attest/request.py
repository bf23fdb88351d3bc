"""What disk and processes are compared with: a deployment as parameters of the host's attestation."""

from __future__ import annotations

from typing import Any

import msgspec

from ..model import Deployment
from ..remote.channel import Link
from ..service.settings import ServiceSpec


def spec_of(deployment: Deployment) -> ServiceSpec:
    """The service as it was deployed."""
    return msgspec.convert(deployment.settings, ServiceSpec, strict=False)


def expectation(deployment: Deployment) -> dict[str, Any]:
    """Build id, files with their hashes, package and interpreter (``host/identity.py``)."""
    return {
        "build_id": deployment.build_id,
        "files": deployment.files,
        "package_dir": deployment.package_dir,
        "interpreter": deployment.environment,
        "applied_at": 0.0,
    }


def attest(link: Link, deployment: Deployment) -> dict[str, Any]:
    """Disk, and where there is a service its processes, against the deployment: ``findings`` names every difference."""
    request = expectation(deployment)
    if not deployment.unit:
        return link.call("attest_disk", request, timeout=180.0)
    return link.call("attest", {**request, "service": spec_of(deployment).ref()}, timeout=180.0)
