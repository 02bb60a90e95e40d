"""Rules on existing PyTorch models and functions.

The backend imports these modules late: the rules of attribution make Functions, which need this
backend.
"""
