"""Functions that an equation defines."""
