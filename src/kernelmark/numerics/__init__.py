"""Number formats as bits, and the input generator that host and devices share."""
