"""What all rooms stand on: locks that a fork finds free, trees, fixed mappings, ranges, old names.

May import the rooms up to `random`; docs/architecture.md has their order.
"""
