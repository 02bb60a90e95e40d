"""Plots of rules and Functions: pictures as data, drawn by matplotlib."""
