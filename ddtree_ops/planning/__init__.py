"""Verdict + Inventory -> Plan, as pure functions."""
