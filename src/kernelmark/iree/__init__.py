"""Whole IREE modules: variants of one module compared, and their dispatches as a workload."""
