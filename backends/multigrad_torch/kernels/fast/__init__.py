"""Fast kernels for several ops at once, in code that nobody differentiates."""
