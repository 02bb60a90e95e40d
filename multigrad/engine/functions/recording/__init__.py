"""The capture of code: a recipe, run on symbols, becomes graphs."""
