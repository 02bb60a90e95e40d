"""Lowering: from graphs to straight-line framework code."""
