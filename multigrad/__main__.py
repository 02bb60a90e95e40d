"""`python -m multigrad`: the command line."""

from __future__ import annotations

from .command import main

main()
