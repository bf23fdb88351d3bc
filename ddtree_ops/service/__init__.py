"""Units, start, stop, readiness, identity and logs of the service."""
