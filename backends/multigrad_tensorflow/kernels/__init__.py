"""Kernels of ops that no elementwise rule needs."""
