"""How large the project is: lines of Python by room and backend, and files.

`size.txt` holds the budget: a row's lines, the fewest it ever had, and, where it has more than
these now, a sentence that says what they bought. `python tools/size.py` writes today's lines into
the rows that no longer hold, and names those that rise: these get their sentences by hand.
"""

from __future__ import annotations

import subprocess
from collections import Counter
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
TABLE = Path(__file__).with_name("size.txt")
PRODUCT = ("multigrad", "backends")
LOOSE = 0.01  # by how much a row may stand above what is there


class Row(NamedTuple):
    """One row of the budget.

    Attributes:
        lines: at most so many.
        fewest: the fewest that it ever had.
        bought: what was bought with those above the fewest.
    """

    lines: int
    fewest: int
    bought: str

    def holds(self, lines: int) -> bool:
        """Whether so many lines are within the row, and the row is not loose."""
        return lines <= self.lines <= lines * (1 + LOOSE) + 1


def measured() -> dict[str, int]:
    """Return the lines of each room, backend and other folder, and the number of files."""
    found: Counter[str] = Counter()
    listed = subprocess.check_output(["git", "ls-files", "*.py"], cwd=ROOT, text=True)
    for name in listed.split():
        path = ROOT / name
        parts = Path(name).parts
        if not path.exists():  # removed, and not committed yet
            continue
        is_product = parts[0] in PRODUCT
        room = "/".join(parts[:2] if is_product and len(parts) > 2 else parts[:1])
        found[room] += path.read_bytes().count(b"\n")
        found["files of the product" if is_product else "other files"] += 1
    return dict(found)


def budget() -> dict[str, Row]:
    rows = (line.split("|") for line in TABLE.read_text().splitlines() if line.strip())
    return {
        name.strip(): Row(int(lines), int(fewest), bought.strip())
        for name, lines, fewest, bought in rows
    }


def write() -> None:
    """Write the rows that no longer hold, with the sentences that stand."""
    known = budget() if TABLE.exists() else {}
    text = []
    for name, lines in sorted(measured().items()):
        row = known.get(name, Row(lines, lines, ""))
        if lines > row.lines:
            print(f"{name} rose from {row.lines} to {lines} lines: add to its row what they bought")
        if not row.holds(lines):
            row = Row(lines, min(row.fewest, lines), row.bought if lines > row.fewest else "")
        cells = (f"{name:24}", f"{row.lines:7}", f"{row.fewest:7}", row.bought)
        text.append(" | ".join(cells).rstrip())
    TABLE.write_text("\n".join(text) + "\n")


if __name__ == "__main__":
    write()
