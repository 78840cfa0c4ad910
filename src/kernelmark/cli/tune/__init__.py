"""Commands that tune a workload."""
