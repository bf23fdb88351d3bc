"""Loaded by every Python process that has this folder on its path: installs the stand-ins."""

import cpu_stubs  # noqa: F401
