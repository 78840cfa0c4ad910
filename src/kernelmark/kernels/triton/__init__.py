"""Our Triton kernels. A module here imports Triton; only the triton backend imports it."""
