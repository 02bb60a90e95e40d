"""Exact results of rules, ops and Functions as data, computed by `tools/vectors`."""
