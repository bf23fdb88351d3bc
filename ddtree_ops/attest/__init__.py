"""Beacons of the running processes against the plan."""
