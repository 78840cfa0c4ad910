"""Formats of logs: one file each, every one with a `reader`."""
