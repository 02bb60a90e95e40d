"""Models and functions that exist already: which of their parts are meant, and what is put on them.

May import the rooms up to `rules`; docs/architecture.md has their order.
"""
