"""What the rest of this package registers with its core: for each function of the core that it
provides, its place.
"""

from __future__ import annotations

from importlib import import_module

from multigrad.core.support.provided import provide
from multigrad.core.trace.ranks import CHECKED

HERE = __name__.rpartition(".")[0]
provide(
    {
        f"{HERE}.core.attach.attach:begin_fusing": f"{HERE}.attach.fusing.dispatch:begin_fusing",
        f"{HERE}.core.attach.attach:run_bare_distributed": f"{HERE}.dtensors:run_bare_distributed",
        f"{HERE}.core.attach.attach:run_distributed": f"{HERE}.dtensors:run_distributed",
        f"{HERE}.core.compile.calls:emit_operator": f"{HERE}.compile.function_calls:emit_operator",
        **{
            f"{HERE}.core.compile.compile:{name}": f"{HERE}.compile.function_calls:{name}"
            for name in ("class_for_open", "find_function", "require_watch")
        },
        f"{HERE}.core.state:replaying": f"{HERE}.attach.replayed_draws:Replaying",
        f"{HERE}.core.state:ranks_of": f"{HERE}.distributed:ranks_of",
    }
)
if CHECKED:  # it compares ranks before each step of an optimizer
    import_module(f"{HERE}.distributed")
