"""Commands that compare: compare, ab, gate, bisect, history, nightly."""
