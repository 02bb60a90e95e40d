"""The dialects that need no framework (NumPy, SciPy, `xg.xp`), and what other dialects use."""
