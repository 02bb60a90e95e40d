"""Rules on models and functions of JAX that exist."""
