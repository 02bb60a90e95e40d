"""The user's code: its library, the meaning of its names, its options, and its state."""
