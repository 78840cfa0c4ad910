"""axpy for kernelmark: an example of a plugin."""
