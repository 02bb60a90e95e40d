"""The user's code: which library it is written in, what its names mean, what it may touch."""
