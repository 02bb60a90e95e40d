"""Recipes: how functions with their own gradients run and are captured, and saved ones."""
