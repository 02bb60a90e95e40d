"""What all rooms stand on: locks that a fork finds free, trees, read-only mappings, former names.

May import the rooms up to `random`; docs/architecture.md has their order.
"""
