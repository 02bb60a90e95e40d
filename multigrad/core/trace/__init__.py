"""Graphs being made: a trace, symbolic values, the functions of `xp`, derivatives.

May import the rooms up to `backend`; docs/architecture.md has their order.
"""
