"""MLX's compilers: what they trace, what guards it, and what runs again."""
