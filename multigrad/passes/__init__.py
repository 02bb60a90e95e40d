"""What is done with graphs as data: simplified, cut, verified, bounded, written and read.

May import the rooms up to `ops`; docs/architecture.md has their order.
"""
