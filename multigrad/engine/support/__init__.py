"""Files, and compiled C."""
