"""Lowering: from graphs to straight-line framework code.

May import the rooms up to `trace`; docs/architecture.md has their order.
"""
