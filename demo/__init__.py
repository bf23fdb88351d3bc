"""The whole job against a throw-away host on this machine: ``make demo``."""
