"""What `multigrad audit` does in its other process: find targets, and inputs for them."""
