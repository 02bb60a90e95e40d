"""How the cotangents of an input become one where a function uses it several times: what
`accumulate=` says, and calls of which a framework would make a sum all the same.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Mapping
from functools import partial
from inspect import Signature
from typing import Any

from ...errors import GradientError, RuleTypeError, RuleValueError
from ...graph.support.trees import optree
from .arguments import Layout, owner_of

MODES = ("sum", "max", "overwrite")
Modes = tuple[tuple[str, str], ...]  # by the name of an argument; a sum is not among them
ROOT = re.compile(r"\w+")
# What stands for tensors in a trace and was given to such an argument, by its id.
_given: dict[int, weakref.ref[Any]] = {}


def read_modes(name: str, signature: Signature | None, accumulate: Any) -> Modes:
    """Return what `accumulate` says of the arguments of a function.

    Raises:
        RuleTypeError: it names an argument that there is not, or is neither a word nor a mapping.
        RuleValueError: a word is unknown.
    """
    if accumulate is None or accumulate == "sum":
        return ()
    if not isinstance(accumulate, str | Mapping):
        raise RuleTypeError(
            f"accumulate= of {name!r} is 'sum', 'max' or 'overwrite', or one of these for each "
            f"argument, as {{'scale': 'max'}}; got {accumulate!r:.60}"
        )
    known = () if signature is None else tuple(signature.parameters)
    by_name = dict.fromkeys(known, accumulate) if isinstance(accumulate, str) else accumulate
    for argument, mode in by_name.items():
        if argument not in known:
            raise RuleTypeError(
                f"accumulate= of {name!r} names {argument!r}, which is no argument of it; its "
                f"arguments are {', '.join(known) or 'not known'}"
            )
        if mode not in MODES:
            raise RuleValueError(
                f"accumulate= of {name!r} says {mode!r} for {argument!r}; it is 'sum', 'max' or "
                "'overwrite'"
            )
    return tuple((argument, mode) for argument, mode in by_name.items() if mode != "sum")


def modes_of(modes: Modes, layout: Layout) -> dict[str, str]:
    """Return how the cotangents of each leaf become one, by its name, where it is no sum."""
    if not modes:
        return {}
    declared = dict(modes)
    roots = {leaf.name: ROOT.match(leaf.path) for leaf in layout.leaves}
    return {name: declared[r[0]] for name, r in roots.items() if r and r[0] in declared}


def refuse_second_call(
    name: str, modes: Modes, signature: Signature, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """Refuse what stands for a tensor in a trace and was given to another call: its framework adds
    up what calls give, and knows no other way.

    Raises:
        GradientError: it was.
    """
    bound = signature.bind(*args, **kwargs).arguments
    for argument, mode in modes:
        for leaf in optree.tree_leaves(bound.get(argument)):  # pyright: ignore[reportArgumentType]
            owner = owner_of(leaf)
            if owner is None or not owner.tensors.is_traced(leaf):
                continue
            known = _given.get(id(leaf))
            if known is not None and known() is leaf:
                raise GradientError(
                    f"{name!r} says accumulate={mode!r} for {argument!r}, which another call was "
                    f"given already: {owner.name} adds up what the calls give. Make the calls in "
                    f"one function, xg.function(..., accumulate={{{argument!r}: {mode!r}}})"
                )
            number = id(leaf)
            _given[number] = weakref.ref(leaf, partial(_forget, number))


def _forget(number: int, ref: weakref.ref[Any]) -> None:
    if _given.get(number) is ref:
        del _given[number]
