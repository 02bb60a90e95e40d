"""Passes over graphs: simplify, verify, choose residuals, infer shapes, write and read."""
