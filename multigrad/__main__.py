"""`python -m multigrad`: the command line."""

from __future__ import annotations

from .look.command import main

main()
