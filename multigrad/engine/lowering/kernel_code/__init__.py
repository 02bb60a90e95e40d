"""Graphs as kernels: one function for all that a graph computes, in C or in Triton."""
