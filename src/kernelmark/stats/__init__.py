"""Robust estimators and intervals. Modules that a worker imports need numpy only, not scipy."""
