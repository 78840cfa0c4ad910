"""Comparison of two runs: pairs of results, the rules that judge them, and verdicts. This package
neither reads a store nor prints."""
