"""The forms of a Function that was called before, for doors without a call of their own: listings,
files, documents. Calls that ran as written are captured for them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np

from ...core.backend.contract import Backend
from ...core.functions.arguments import Layout, flatten, unwrap
from ...core.functions.capture_errors import NotCaptured
from ...core.functions.captures import prove
from ...core.functions.decision import LOWERED, SHOWN, Door, decide
from ...core.functions.facts import SOME_LENGTH, first_tensor, places_of
from ...core.functions.function import Function
from ...core.functions.recipe import Variant
from ...core.passes.facts import LIBRARY
from ...core.support.threads import set_within
from ...core.trace.lookups import look_up_all
from ...core.trace.trace import NeedsConcrete
from ...errors import DisprovedError, MultigradError, TraceError
from ..lowering.checks import format_lengths
from .proof.functions import AS_GIVEN


def renewed_variants(function: Function, door: Door) -> list[Variant]:
    """Return the captured forms of a Function under the rule that is in force now.

    Calls that ran as written are captured here.
    """
    for layout in tuple(function.captures.forms.uncaptured.values()):
        with suppress(Exception):  # of the author's code, too
            function.captures.for_known(layout, {"dtype": layout.dtype})
    variants: dict[int, Variant] = {}
    for variant in tuple(function.captures.variants.values()):
        try:
            current = {**variant.facts, **look_up_all(variant.facts)}
            renewed = function.captures.for_facts(variant.layout, current)
        except (NeedsConcrete, NotCaptured):  # under this rule it has not been called
            continue
        variants[id(renewed)] = decide(
            door, function.recipe, renewed, None, function.native
        ).variant
    return list(variants.values())


def find_variant(function: Function, door: Door, backend: Backend | None = None) -> Variant:
    """Return the latest captured form of a Function, with its choice of residuals, for a door.

    Args:
        backend: the framework that it goes to; None: all.

    Raises:
        TraceError: it has not been called, and its signature does not tell what it takes.
        UnsupportedOp: this door refuses what the code does besides returning.
    """
    variant = _find_variant(function)
    if LIBRARY in variant.facts and backend is not None:  # whose methods the code has there
        variant = generalized(function, variant, {LIBRARY: backend.name}.get) or variant
    if door in (LOWERED, SHOWN):  # with all gradients, whichever the call's tensors asked for
        general = generalized(function, variant, lambda fact: fact.startswith("gradient:") or None)
        if general is None and door is LOWERED:
            raise TraceError(some_gradients(function))
        variant = general or variant
    decide(door, function.recipe, variant, backend, function.native)
    if function.residuals == "auto":
        return variant
    return replace(variant, graphs=replace(variant.graphs, residuals=function.residuals))


def generalized(
    function: Function,
    variant: Variant,
    general: Callable[[str], Any],
    facts: Mapping[str, Any] = MappingProxyType({}),
) -> Variant | None:
    """Return a captured form of more calls; None if that needs more facts about the arguments.

    Args:
        general: the value of a fact in these calls; None where the form keeps its own.
        facts: others that hold there.
    """
    own = variant.facts
    facts = {**{k: v if general(k) is None else general(k) for k, v in own.items()}, **facts}
    # Without the call's own facts the capture may ask for others.
    while facts != own:
        try:
            return function.captures.for_facts(variant.layout, facts)
        except NotCaptured:
            return None
        except NeedsConcrete:
            more_facts = {fact: general(fact) for fact in function.captures.facts - facts.keys()}
            if not more_facts or None in more_facts.values():
                return None
            facts = {**facts, **more_facts}
    return variant


def some_gradients(function: Function) -> str:
    return (
        f"function {function.name!r} asks which of its arguments need a gradient, and was called "
        "where some need none: call it with tensors that all require one"
    )


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
    refusal: MultigradError | None = None
    if args:
        try:
            variant = capture_example(function, *args)
            if LIBRARY not in variant.facts:
                return variant
            # The arrays are made up: whose methods the code has, what it imports tells.
            function.captures.variants.clear()
            return generalized(function, variant, {LIBRARY: ""}.get) or variant
        except NotCaptured as error:
            refusal = error.error
        except MultigradError as error:
            refusal = error
    explanation = f". With arrays for those without a default: {refusal}" if refusal else ""
    raise TraceError(
        f"function {function.name!r} is captured when it is called, as only then it is known which "
        f"of its arguments are tensors. Call it once, with NumPy arrays for instance{explanation}"
    ) from refusal


def capture_example(function: Function, *args: Any, **kwargs: Any) -> Variant:
    """Return the captured form of a Function for arguments like these; may raise `NotCaptured`."""
    return function.entries.decide(SHOWN, *_lay_out(function, args, kwargs)).variant


def _lay_out(
    function: Function, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Layout, Sequence[Any]]:
    leaves, tree = flatten(tuple(args), dict(kwargs))
    return function.entries.lay_out([unwrap(leaf) for leaf in leaves], tree)


def prove_given(function: Function, args: Sequence[Any]) -> None:
    """Compare a Function's graph with its code, which runs as written on these arguments.

    Raises:
        DisprovedError: they differ.
    """
    layout, leaves = _lay_out(function, args, {})
    try:
        variant = function.entries.decide(SHOWN, layout, leaves).variant
        with set_within(AS_GIVEN, True):
            prove(function.recipe, variant, leaves)
    except DisprovedError:
        raise
    except (NotCaptured, TraceError):  # it runs as written
        return


def shape_under(
    facts: Mapping[str, Any], layout: Layout, n: int, shape: tuple[int, ...]
) -> tuple[int, ...]:
    """Return the shape of a tensor that is made up: the given one, as far as facts leave it open.

    Args:
        n: its place among the leaves.
    """
    name, is_first = layout.leaves[n].name, n == first_tensor(layout)
    fixed = facts.get(f"shape:{name}", facts.get("shape") if is_first else None)
    if fixed is not None:
        return tuple(SOME_LENGTH if length is None else length for length in fixed)
    rank = facts.get(f"ndim:{name}", facts.get("ndim"))
    return shape if rank is None else (*shape, *(1,) * rank)[:rank]


def fixed_shapes(layout: Layout, facts: Mapping[str, Any]) -> str:
    """Return in words the shapes that a capture is for alone; "" if it is for all."""
    return " and ".join(
        f"{layout.leaves[index].path} of shape {format_lengths(facts[fact])}"
        for fact, kind, index in places_of(facts, layout, first_tensor(layout))
        if kind == "shape" and index is not None and any(n is not None for n in facts[fact] or ())
    )
