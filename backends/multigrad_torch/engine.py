"""What the rest of this package registers with its core: for each function of the core that it
provides, its place.
"""

from __future__ import annotations

from importlib import import_module

from multigrad.core.support.lazy_modules import provide
from multigrad.core.trace.active_rules import CHECKED

from .core.dynamo import at_import
from .core.versions import RELEASE

provide("multigrad_torch", {
    "core.attach.attach": {
        "attach.fusing.dispatch": "begin_fusing",
        "dtensors": "run_bare_distributed run_distributed",
    },
    "core.attach.render": {"attach.sources": "lines_of_loop render_forward_mode"},
    "core.compile.calls": {
        "compile.drawn_keys": "key_of_application",
        "compile.function_calls": "call_as_written note_lengths operator_of_activation",
    },
    "core.compile.compile": {
        "compile.drawn_keys": "number_application",
        "compile.function_calls": "kind_of_export note_refused require_watch",
    },
    "core.compile.dynamo_guards": {
        "compile.checkpoint_regions": "call_noted draw_in_region note_regions"
    },
    "core.dynamo": {"releases": "between_graphs"},
    "core.state": {"attach.kept_tensors": "replaying"},
})  # fmt: skip


@at_import
def register_draws() -> None:
    """Register the operators of draws: a program that holds some is loaded without a trace."""
    import_module("multigrad_torch.kernels.random")


if RELEASE < (2, 9):
    import_module("multigrad_torch.kernels.former")
if CHECKED:  # it compares ranks before each step of an optimizer
    import_module("multigrad_torch.distributed")
