"""Reaching a host: strict SSH or a local child process, one framed channel."""
