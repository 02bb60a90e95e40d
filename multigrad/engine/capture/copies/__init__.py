"""Copies of the user's functions that run on symbols, and the results of such runs."""
