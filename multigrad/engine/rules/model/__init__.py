"""Rules under forwards that are functions, and applied alone."""
