"""Measuring a served model from the host itself."""
