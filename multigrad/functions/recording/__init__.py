"""The capture of a Function: its recipe is run on symbols, once for each path and each question."""
