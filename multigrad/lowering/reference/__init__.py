"""NumPy as a backend like any other: the meaning of every rule."""
