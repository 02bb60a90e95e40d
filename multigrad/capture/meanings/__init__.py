"""What functions of array libraries mean, composed from ops; the dialects share them."""
