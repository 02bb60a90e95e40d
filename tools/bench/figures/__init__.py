"""The figures of the documentation, measured again: each says at its head what it takes."""
