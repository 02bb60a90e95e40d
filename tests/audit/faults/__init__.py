"""Gradients with faults that were planted, and how many of them an audit finds."""
