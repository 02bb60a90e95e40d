"""The dialects that need no framework: NumPy's, SciPy's, `xg.xp`; the door for others."""
