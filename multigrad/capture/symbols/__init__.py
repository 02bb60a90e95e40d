"""Symbols: what stands for a tensor, its dtype, its class and its memory, before it computes."""
