"""Names of other packages for JAX, made of our rules."""
