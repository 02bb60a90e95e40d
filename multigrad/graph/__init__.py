"""Programs as data: the IR, its ops and passes, keyed draws, and what every room uses.

May import the rooms up to `errors`; docs/architecture.md has their order.
"""
