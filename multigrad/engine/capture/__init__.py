"""Code of any library, run on symbols: dialects, copies, effects, what code reads."""
