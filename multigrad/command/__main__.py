"""`python -m multigrad.cli` is the command `multigrad`."""

from . import main

main()
