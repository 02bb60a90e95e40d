"""Processes and devices that share an array, or train one model."""
