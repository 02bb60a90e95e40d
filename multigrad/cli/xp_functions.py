"""The functions of `xg.xp` that record one op each, as source made from the rows of the op table.

`python -m multigrad.cli.xp_functions` writes the files; a test compares them with what it would
write.
"""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

from multigrad import ops
from multigrad.ir.op import REQUIRED, Attr, Op

from .xp_examples import example_of

FOLDER = Path(__file__).parent.parent / "tracing"
HEADER = '''"""{title}

Written from the op table by `python -m multigrad.cli.xp_functions`; change a row instead.
"""

from __future__ import annotations

from typing import Any

from .. import ops
{imports}from .trace import apply

Tensor = Any

__all__ = [
{names}
]  # fmt: skip
'''


def render_public() -> str:
    """Return the module of the functions of `xg.xp`."""
    rows = [row for row in ops.CALLABLE_OPS if not row.composed and not row.in_vjps]
    title = "The dialect `xg.xp`: the functions that record one op each; see `xp_all.py`."
    return render(title, rows, "from .axes import Axis, axes_of, one_axis\n")


def render_in_vjps() -> str:
    """Return the module of the functions that only VJPs call."""
    rows = [row for row in ops.CALLABLE_OPS if row.in_vjps]
    title = "The functions that only VJPs call, not part of `xg.xp`; see `xp_all.py`."
    return render(title, rows, "")


def render(title: str, rows: list[Op], imports: str) -> str:
    """Return a module of one function per row."""
    quoted = ", ".join(
        f'"{name}"' for name in sorted((row.in_xp for row in rows), key=in_ruffs_order)
    )
    names = textwrap.fill(f"{quoted},", 100, initial_indent="    ", subsequent_indent="    ")
    header = HEADER.format(title=title, imports=imports, names=names)
    return "\n\n".join([header, *map(render_function, rows)])


def in_ruffs_order(name: str) -> list[str | int]:
    """log2 before log10."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


def render_function(row: Op) -> str:
    """Return the function that records an op."""
    takes = [f"{name}: Tensor" for name in row.operands]
    takes += [parameter(name, attr, row) for name, attr in row.attrs.items()]
    gives = [f"ops.{row.name.upper()}", *row.operands]
    for name, attr in row.attrs.items():
        gives.append(f"{name}={name if row.in_vjps else attr.taken.format(name)}")
    call = f"    return apply({', '.join(gives)})\n"
    if len(call) > 101:
        call = f"    return apply(\n        {', '.join(gives)}\n    )\n"
    head = f"def {row.in_xp}({', '.join(takes)}) -> Tensor:"
    if len(head) > 100:
        head = f"def {row.in_xp}(\n    {', '.join(takes)}\n) -> Tensor:"
    if row.in_vjps:
        return f'{head}\n    """{row.doc}"""\n{call}'
    return f'{head}\n    """{row.doc}\n\n{example_of(row)}\n    """\n{call}'


def parameter(name: str, attr: Attr, row: Op) -> str:
    """Return an attribute as a parameter; a VJP gives each one as the attribute is."""
    if row.in_vjps:
        return f"{name}: Any"
    default = "" if attr.default is REQUIRED else f" = {attr.default!r}"
    return f"{name}: {attr.annotation}{default}"


MODULES = {"xp_ops.py": render_public, "xp_transposes.py": render_in_vjps}

if __name__ == "__main__":
    for file, render_module in MODULES.items():
        (FOLDER / file).write_text(render_module(), encoding="utf-8")
