"""Microbenchmarks. One file each; adding one is adding a file."""
