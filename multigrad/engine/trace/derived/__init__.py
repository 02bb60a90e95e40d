"""Derivatives of loops, and arrays in parts."""
