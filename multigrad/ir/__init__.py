"""The rule IR as data: types, ops as objects, nodes and graphs, the values of constant arrays.

May import the rooms up to `ground`; docs/architecture.md has their order.
"""
