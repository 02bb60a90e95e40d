"""NumPy as a backend like any other; it defines the numbers of every rule."""
