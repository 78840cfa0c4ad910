"""Formats of logs: one module each, with a `reader`."""
