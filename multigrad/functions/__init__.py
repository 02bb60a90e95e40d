"""Functions with a gradient of their own: captured from any dialect, lowered to every framework."""
