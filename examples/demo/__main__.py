"""Run the demo: `python examples/demo --quick`."""

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[1])
    from demo.command import app

    app(prog_name="python examples/demo")
