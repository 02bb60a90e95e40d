"""Lowering: from graphs to straight-line framework code.

May import the rooms up to `documents`; docs/architecture.md has their order.
"""
