"""Rules on existing models and functions: which of their parts are meant, and what acts there.

May import the rooms up to `rules`; docs/architecture.md has their order.
"""
