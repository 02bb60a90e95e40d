"""Layers, convolutions and losses under the names that libraries give them."""
