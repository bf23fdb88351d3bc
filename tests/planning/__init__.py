"""Tests of the pure planning functions."""
