"""Eject: emitted code as a file of its own, with all that it calls and nothing of multigrad."""
