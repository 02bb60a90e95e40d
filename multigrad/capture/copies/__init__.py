"""Copies of the user's functions that run on symbols, and what such a run gives."""
