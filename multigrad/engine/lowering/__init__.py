"""Lowering beyond elementwise code: loops, fused kernels, ejection."""
