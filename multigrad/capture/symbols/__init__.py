"""Symbols: the dtype, shape, device, class and memory of a tensor that is not computed yet."""
