"""Effects of a function besides returning: updates, attributes that are set, changed containers."""
