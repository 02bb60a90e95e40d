"""torch.compile, xg.jit and checkpointed regions: what is traced, what guards it, what is rerun."""
