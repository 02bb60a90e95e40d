"""`xg.jit` on Paddle: `paddle.jit.to_static`, whose graph ends before what reads the rule in force.

It has no guard for a rule: a graph that held one would be stale under the next. By its bytecode
(`full_graph=False`, its default) calls of ours stand between two graphs and run at once, each time.
By the syntax tree (`full_graph=True`) all is one graph: that is refused.
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable
from pathlib import Path
from types import MethodType
from typing import Any

import optree
import paddle
from paddle.framework import core

from multigrad.backend import Reader, StaleTraceError, compilers

from ..kernels.widening import Tensor

# What multigrad calls besides is not read either: what Paddle 3.3 makes of optree loses a variable.
OWN = (compilers.FOLDER, Path(__file__).parents[1], Path(str(optree.__file__)).parent)


def jit(function: Callable[..., Any], options: dict[str, Any]) -> Callable[..., Any]:
    """Return the function compiled by parts."""
    if isinstance(function, compilers.Activation | compilers.Function):
        return function  # all of it is outside of graphs
    if not hasattr(function, "__name__") and not isinstance(function, paddle.nn.Layer):
        function = named(function)
    return paddle.jit.to_static(function, **{"full_graph": False, **options})


def named(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a plain function for a callable object, which Paddle asks for its name."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    call.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
    return call


def is_reading() -> bool:
    """Return whether Paddle reads this call: its bytecode, or what it makes of symbolic values."""
    if not paddle.in_dynamic_mode():
        return True
    reader = core.set_eval_frame(None)
    core.set_eval_frame(reader)
    return reader is not None


def unread(called: MethodType, *args: Any) -> Any:
    """Call a method of what holds a rule, whose code Paddle does not read.

    Raises:
        StaleTraceError: it would be a part of a graph.
    """
    if not paddle.in_dynamic_mode():
        raise StaleTraceError(
            f"{called.__self__!r} in one whole graph of Paddle, which would keep the rule that is "
            "in force where it is traced, whatever is in force later. Leave full_graph=True away, "
            "or use xg.jit(function); for paddle.jit.save and paddle.static call Paddle's own "
            "function in its place, which computes the same"
        )
    reader = core.set_eval_frame(None)
    try:
        return called(*args)
    finally:
        core.set_eval_frame(reader)


def call_activation(
    activation: compilers.Activation, x: Tensor, values: tuple[Any, ...] = ()
) -> Tensor:
    """Apply an activation outside of any graph."""
    if values:
        return unread(activation.call_with, x, values)
    return unread(activation.apply, x)


def call_function(
    function: compilers.Function, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Apply a Function outside of any graph."""
    return unread(function._apply, args, kwargs)


def keep_apart() -> None:
    """Tell the reader of bytecode where its graphs end, and which files it need not read."""
    from paddle.jit.dy2static.utils import TransformOptions
    from paddle.jit.sot.opcode_translator import skip_files
    from paddle.jit.sot.utils.paddle_api_config import add_break_graph_function

    names = skip_files.skip_file_names
    names.update(f"{path}{os.sep}" for path in OWN)
    names.add("<multigrad")
    skip_files.skip_file_name_re = re.compile(f"^({'|'.join(map(re.escape, names))})")
    skip_files.setup_skip_files()
    by_syntax = TransformOptions(TransformOptions.ToStaticMode.AST)
    for kind in (compilers.Activation, compilers.Function):
        add_break_graph_function(kind.__call__)
        setattr(kind, TransformOptions.TRANSFORM_OPTIONS_ATTR_NAME, by_syntax)


keep_apart()
ACTIVATIONS = Reader(is_reading, call_activation)
FUNCTIONS = Reader(is_reading, call_function)
