"""Write the vectors that ship, or print those of what is named.

It needs mpmath and sympy.
"""

from __future__ import annotations

import argparse
import lzma
import sys
from pathlib import Path

TOOLS = Path(__file__).parents[1]
sys.path[:1] = [str(TOOLS), str(TOOLS.parent / "tests" / "conformance")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, prog="python tools/vectors")
    parser.add_argument("names", nargs="*", help="rules, ops as xp.softplus, module:name")
    names = parser.parse_args().names
    from multigrad.command.targets import find
    from multigrad.errors import MultigradError
    from multigrad_conformance.vectors import FILE, write
    from vectors.document import vectors_of

    try:
        objects = [find(name) if ":" in name else name for name in names]
        text = write(vectors_of(*objects, progress=None if names else tell))
    except MultigradError as error:
        sys.exit(str(error))
    except ModuleNotFoundError as error:
        sys.exit(f"{error}; type: pip install -c constraints.txt sympy")
    if names:
        print(text, end="")
    else:
        FILE.write_bytes(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))
        tell(f"wrote {FILE}")


def tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    from stopping import run

    run(main)
