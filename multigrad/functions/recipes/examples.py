"""The captured form of a Function: the latest one, or that of its signature or its examples."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ...backend.contract import Backend
from ...errors import MultigradError, TraceError
from ...trace.trace import NeedsConcrete
from ..calls.arguments import flatten, unwrap
from ..calls.decision import SHOWN, Door, decide
from ..calls.recipe import Variant
from .record import NotCaptured

Function = Any  # of function.py, which depends on this module


def renewed_variants(function: Function, door: Door) -> list[Variant]:
    """Return the captured forms of a Function under the rule that is in force now."""
    found: dict[int, Variant] = {}
    for variant in tuple(function.captures.variants.values()):
        try:
            renewed = function.captures.renewed(variant)
        except (NeedsConcrete, NotCaptured):  # under this rule it has not been called
            continue
        found[id(renewed)] = decide(door, function.recipe, renewed, None, function.native).variant
    return list(found.values())


def find_variant(function: Function, door: Door, backend: Backend | None = None) -> Variant:
    """Return the latest captured form of a Function, with its choice of residuals.

    Args:
        door: where it goes.
        backend: the framework that it goes to; None: all.

    Raises:
        TraceError: it has not been called, and what its arguments are cannot be told from its
            signature.
        UnsupportedOp: this door refuses what the code does besides returning.
    """
    found = _find_variant(function)
    decide(door, function.recipe, found, backend, function.native)
    if function.residuals == "auto":
        return found
    return replace(found, graphs=replace(found.graphs, residuals=function.residuals))


def _find_variant(function: Function) -> Variant:
    variants = renewed_variants(function, SHOWN)
    if variants:
        # Variants are in the order of their captures, so the last is the latest.
        return variants[-1]
    if function.examples is not None:
        return capture_example(function, *function.examples)
    parameters = function.parameters
    args: list[Any] = []
    for parameter in () if parameters is None else parameters.parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            args = []
            break
        if parameter.kind is parameter.KEYWORD_ONLY:
            continue
        # It may be a tensor, so an array is tried; a capture that fails says so below.
        args.append(np.zeros(2) if parameter.default is parameter.empty else parameter.default)
    refused: MultigradError | None = None
    if args:
        try:
            return capture_example(function, *args)
        except NotCaptured as error:
            refused = error.error
        except MultigradError as error:
            refused = error
    said = f". With arrays for those without a default: {refused}" if refused else ""
    raise TraceError(
        f"function {function.name!r} is captured when it is called, as only then it is known which "
        f"of its arguments are tensors. Call it once, with NumPy arrays for instance{said}"
    ) from refused


def capture_example(function: Function, *args: Any, **kwargs: Any) -> Variant:
    """Return the captured form of a Function for arguments like these.

    Raises:
        NotCaptured: it cannot be captured.
    """
    leaves, tree = flatten(args, kwargs)
    leaves = [unwrap(leaf) for leaf in leaves]
    leaves, tree = function.completion.complete(leaves, tree)
    layout = function.recipe.lay_out(function.parameters, leaves, tree)
    return function.entries.decide(SHOWN, layout, leaves).variant
