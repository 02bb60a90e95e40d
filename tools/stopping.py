"""Ctrl-C in a tool of this folder: one line, and no traceback."""

import sys
from collections.abc import Callable

STOPPED = 130  # what a shell has for a command that an interrupt ended


def run(main: Callable[[], None]) -> None:
    """Run a tool; each file is written at once, so an interrupt leaves none half written."""
    try:
        main()
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        sys.exit(STOPPED)
