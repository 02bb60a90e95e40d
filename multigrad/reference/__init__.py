"""NumPy as a backend like any other: the meaning of every rule.

May import the rooms up to `lowering`; docs/architecture.md has their order.
"""
