"""What kernelmark's own tests and benchmarks share. It is not installed."""
