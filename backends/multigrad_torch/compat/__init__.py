"""The APIs of other PyTorch packages, made of our rules."""
