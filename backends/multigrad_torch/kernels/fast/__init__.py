"""Rows of several ops at once, for code that nobody differentiates."""
