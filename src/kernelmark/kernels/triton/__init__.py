"""Triton kernels of kernelmark. Modules here import Triton; only the triton backend imports
them."""
