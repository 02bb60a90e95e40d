"""Are the gradients right, and the same everywhere? `xg.check` and `xg.parity`."""
