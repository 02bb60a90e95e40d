"""Rules: what they are, which is in force, the library of them, and what runs under them.

May import the rooms up to `functions`; docs/architecture.md has their order.
"""
