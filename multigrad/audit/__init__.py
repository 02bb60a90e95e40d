"""Audits of custom gradients against laws, locks that record what gradients give, and exact
results to test against.

May import the rooms up to `look`; docs/architecture.md has their order.
"""
