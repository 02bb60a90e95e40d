"""NumPy's and SciPy's dialects."""
