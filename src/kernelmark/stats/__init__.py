"""Robust estimators and intervals; what a worker needs uses numpy alone."""
