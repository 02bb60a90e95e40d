"""The rules of other packages, by their names and with their defaults."""
