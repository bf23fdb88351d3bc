"""Tests of playbooks and workflows."""
