"""`python tools/bench --quick` runs the command, `python tools/bench draws` one of `figures`."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
NAMES = ("converted", "devices", "draws")

if __name__ == "__main__":
    sys.path[:1] = [str(ROOT / "tools"), str(ROOT / "examples")]
    sys.path.append(str(ROOT))  # for classes of `tests`; an installed wheel comes first
    if sys.argv[1:2] and sys.argv[1] in NAMES:
        runpy.run_module(f"bench.figures.{sys.argv.pop(1)}", run_name="__main__")
    else:
        from bench.command import app

        app(prog_name="python tools/bench")
