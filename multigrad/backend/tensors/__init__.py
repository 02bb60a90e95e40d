"""What all rooms do with tensors of any framework."""
