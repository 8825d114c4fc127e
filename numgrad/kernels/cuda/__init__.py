"""Kernels for NVIDIA GPUs. ``runtime`` alone touches the package numba-cuda; it imports it late."""
