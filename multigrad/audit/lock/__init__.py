"""Locks: recorded results of rules, Functions and the frameworks' own functions, for comparison."""
