"""torch's custom gradients, unchanged, as Functions: classes, `torch.library` operators."""
