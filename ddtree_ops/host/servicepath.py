"""Where a service of ours looks for programs."""

from __future__ import annotations

SYSTEM_PATH = "/usr/local/cuda/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""Behind the environment's own ``bin``: the account's login files have no say in it."""
