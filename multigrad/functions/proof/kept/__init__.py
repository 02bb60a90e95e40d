"""Proofs that are not repeated: a verdict is kept across processes, under a digest of all that it
rests on.
"""
