"""The user's code as it is given: what it mentions, its signature, its options, and its state."""
