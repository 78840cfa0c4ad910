"""A model of TensileLite for tests: the modules and functions that kernelmark's generator calls, by
the names and arguments of 2025-03. Its kernels do nothing, and its rules are made up."""

__version__ = "4.33.0"
