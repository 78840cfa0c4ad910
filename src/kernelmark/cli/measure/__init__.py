"""Commands that measure: run, and iree for whole modules."""
