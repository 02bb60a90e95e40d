"""The command line: the command `multigrad`, its entry point here.

`app.py` declares every command and its options; the other files are what the larger commands do,
and the parts that commands share. They need the extra `cli` (typer and rich). This file imports
neither, so that a missing extra gives an install line, not a traceback.
"""

from __future__ import annotations

import gc
import sys

STOPPED = 130  # what shells say of a program that Ctrl-C ended
EXTRA_MODULES = ("typer", "rich")
# A command allocates much and ends soon: frequent collections would find little.
SELDOM = (60_000, 20, 100)  # of the garbage collector


def main() -> None:
    """Run the command line and exit."""
    # Before `_run` imports the libraries.
    gc.set_threshold(*SELDOM)
    gc.disable()  # until a command is at work, see `report_errors`: what is imported is no garbage
    try:
        _run()
    except KeyboardInterrupt:  # also while the libraries are imported
        print("stopped", file=sys.stderr)
        sys.exit(STOPPED)
    except SystemExit as end:
        if end.code == STOPPED:
            print("stopped", file=sys.stderr)
        raise


def _run() -> None:
    try:
        from .app import app
    except ImportError as error:
        missing = (error.name or "").partition(".")[0]
        # Any other ImportError is a bug or a broken framework: its traceback is needed.
        if missing not in EXTRA_MODULES:
            raise
        from ..engine.support.extras import extra_line

        line = extra_line("cli")
        print(f"the command multigrad needs {missing}; type: {line}", file=sys.stderr)
        sys.exit(2)
    app()
