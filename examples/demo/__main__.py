"""Run the demo: `python examples/demo --quick`."""

import os
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[1])
    from demo.command import app

    try:
        app(prog_name="python examples/demo")
    except SystemExit as end:
        sys.stdout.flush()
        sys.stderr.flush()
        # Python's own end looks for garbage in all that the frameworks hold, 7 s, and a thread of
        # theirs that wakes in it ends the process by a signal (pytorch/pytorch#38228).
        os._exit(int(end.code or 0))
