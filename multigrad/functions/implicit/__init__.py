"""Implicit functions: solvers whose gradient is that of the equation that they solve."""
