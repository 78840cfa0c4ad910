"""The measurement protocol: argument sets, warm-up, samples, stop, checks."""
