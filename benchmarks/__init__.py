"""Measurements of the audit itself; see README.md."""
