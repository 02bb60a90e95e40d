"""Ops that compute element by element."""
