"""equinox's `filter_custom_vjp`: custom gradients whose rules take any tree, and ask of its leaves
which are arrays.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import jax

from multigrad.graph.ir.types import is_float
from multigrad.trace.trace import Value

Rule = Callable[..., Any]
# What equinox asks of a leaf: whether arrays, and Python's numbers, are meant; whether floats only.
ASKED = {
    "is_array": (False, False),
    "is_array_like": (True, False),
    "is_inexact_array": (False, True),
    "is_inexact_array_like": (True, True),
}


def rules_of(function: Any) -> tuple[Rule | None, Rule | None] | None:
    """Return the rules of such a function; None for what is none."""
    equinox = sys.modules.get("equinox")
    if equinox is None or not isinstance(function, equinox.filter_custom_vjp):
        return None
    return function.fn_fwd, function.fn_bwd


def with_pullback(forward: Rule, backward: Rule) -> Rule:
    """Return the rules as a function of outputs and a pullback: the floats of the first argument
    have a gradient.
    """
    is_inexact_array = sys.modules["equinox"].is_inexact_array

    def compute(vjp_arg: Any, *args: Any, **kwargs: Any) -> Any:
        perturbed = jax.tree.map(is_inexact_array, vjp_arg)
        outputs, residuals = forward(perturbed, vjp_arg, *args, **kwargs)

        def pull(upstream: Any) -> Any:
            found = backward(residuals, upstream, perturbed, vjp_arg, *args, **kwargs)
            return (found, *(None for _ in args), *(({},) if kwargs else ()))

        return outputs, pull

    return compute


def called(function: Any, vjp_arg: Any, *args: Any, **kwargs: Any) -> Any:
    """Call such a function, whose other arguments have zero gradients."""
    args, kwargs = jax.lax.stop_gradient((args, kwargs))
    return function(vjp_arg, *args, **kwargs)


def predicates() -> dict[Any, Rule]:
    """Return what answers equinox's questions about symbols, by function."""
    equinox = sys.modules["equinox"]
    return {
        (asked := getattr(equinox, name)): partial(_answer, asked, *means)
        for name, means in ASKED.items()
    }


def _answer(asked: Rule, takes_numbers: bool, of_floats: bool, element: Any) -> bool:
    if not isinstance(element, Value):
        return asked(element)
    type_ = element.node.type
    return (type_.kind == "tensor" or takes_numbers) and (is_float(type_) or not of_floats)
