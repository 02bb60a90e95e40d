"""Laws that every custom gradient must keep, on anybody's code, converted or not; locks, which say
what has changed; exact results.

May import the rooms up to `look`; docs/architecture.md has their order.
"""
