"""Write the vectors that ship, or print those of what is named.

`python tools/vectors [NAME ...]`: rules, ops as xp.softplus, Functions as module:name.
It needs mpmath and sympy.
"""

from __future__ import annotations

import lzma
import sys
from pathlib import Path

if __name__ == "__main__":
    tools = Path(__file__).parents[1]
    sys.path[:1] = [str(tools), str(tools.parent / "tests" / "conformance")]
    from multigrad.command.targets import find
    from multigrad_conformance.vectors import FILE, write
    from vectors.document import vectors_of

    named = [find(name) if ":" in name else name for name in sys.argv[1:]]
    text = write(vectors_of(*named))
    if named:
        print(text, end="")
    else:
        FILE.write_bytes(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))
