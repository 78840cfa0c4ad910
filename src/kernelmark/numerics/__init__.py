"""Number formats as bits, and the input generator, which is the same on host and devices."""
