"""Backends: what they offer, which are installed, which owns a value."""
