"""Functions fused into one kernel each for forward, forward with residuals, and backward."""
