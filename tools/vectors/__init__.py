"""Test vectors: inputs, cotangents and exact results of rules and ops, computed by an independent
witness (mpmath, and sympy for derivatives) and not by our graphs.
"""
