"""Functions of `xg.xp` that no elementwise rule needs."""
