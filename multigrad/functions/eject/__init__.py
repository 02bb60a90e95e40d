"""Emitted code as a file of its own: what it calls is written into it, nothing of multigrad's."""
