"""Files of rules and Functions, and what is made of a document.

May import the rooms up to `models`; docs/architecture.md has their order.
"""
