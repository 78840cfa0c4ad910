"""Whole IREE modules: comparison of variants of a module, and its dispatches as a workload."""
