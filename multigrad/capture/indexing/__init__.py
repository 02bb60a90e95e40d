"""Indices: what they pick, and what writing there makes of the whole."""
