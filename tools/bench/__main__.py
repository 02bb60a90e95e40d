"""Run one of the benchmarks: `python tools/bench devices torch --quick`."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

HERE = Path(__file__).parent
NAMES = ("attached", "attached_on_keras", "converted", "devices", "draws", "schedules")

if __name__ == "__main__":
    sys.path[0] = str(HERE.parent)
    if len(sys.argv) < 2 or sys.argv[1] not in NAMES:
        sys.exit(f"python tools/bench {' | '.join(NAMES)}")
    name = sys.argv.pop(1)
    runpy.run_module(f"{HERE.name}.{name}", run_name="__main__")
