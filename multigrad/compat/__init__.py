"""Modules that stand in for other packages' own: their names, signatures and defaults, our rules.

`import multigrad.compat.snntorch as surrogate` in the place of `from snntorch import surrogate`.
They need torch, not the packages. May import the rooms up to `attach`; docs/architecture.md has
their order.
"""
