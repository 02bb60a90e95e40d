"""Ejection to NumPy, and what its backend offers to features."""
