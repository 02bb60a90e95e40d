"""Rules on models and functions of PyTorch that exist."""
