"""Rules on existing PyTorch models and functions; the backend imports these modules late."""
