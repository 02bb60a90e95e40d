"""How large the project is: lines of Python by room and backend, and files.

`size.txt` holds the budget: a row's lines, the fewest it ever had, and, where it has more than
these now, a sentence that says what they bought. `python tools/size.py` writes the lines
that are there today, and keeps the sentences; a row that rises gets its sentence by hand.
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
    """Write today's lines, with the sentences that stand."""
    known = budget() if TABLE.exists() else {}
    text = []
    for name, lines in sorted(measured().items()):
        _, fewest, bought = known.get(name, Row(lines, lines, ""))
        fewest = min(fewest, lines)
        row = (f"{name:24}", f"{lines:7}", f"{fewest:7}", bought if lines > fewest else "")
        text.append(" | ".join(row).rstrip())
    TABLE.write_text("\n".join(text) + "\n")


if __name__ == "__main__":
    write()
