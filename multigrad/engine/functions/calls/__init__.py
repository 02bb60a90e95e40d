"""The calls of code: as written, its effects, its gradients."""
