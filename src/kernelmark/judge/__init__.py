"""Judging kernels that nobody trusts: the kernel runs in a sandboxed process, which has neither the
clock nor the seed, the references, the checker or a channel for results."""
