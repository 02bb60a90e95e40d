"""`accumulate=`: how the cotangents of an argument become one, if they are not added up.

`read_modes` reads the option, `modes_of` applies it to the leaves of a call. What frameworks do
between calls is always a sum, so a second call with the same tensor is refused: each call is
preceded by `refuse_second_call` and followed by `note_uses`, with its `tensors_with_modes`.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from inspect import Signature
from typing import Any

from ....errors import GradientError, RuleTypeError, RuleValueError
from ....graph.support.trees import optree
from ..arguments import Layout, owner_of

Tensor = Any
MODES = ("sum", "max", "overwrite")
Modes = tuple[tuple[str, str], ...]  # by the name of an argument; a sum is not among them
ROOT = re.compile(r"\w+")
# The tensors given to such an argument, by id, each with a test whether a derivative may pass
# through the call; an entry goes with its tensor.
_used: dict[int, tuple[weakref.ref[Any], Callable[[], bool]]] = {}


def read_modes(name: str, signature: Signature | None, accumulate: Any) -> Modes:
    """Return the modes that `accumulate` sets, as (argument, mode) pairs without "sum".

    Raises:
        RuleTypeError: it names an unknown argument, or is neither a string nor a mapping.
        RuleValueError: a mode is unknown.
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


def refuse_second_call(name: str, tensors: Sequence[tuple[str, str, Tensor]]) -> None:
    """Raise if another call got one of these tensors and a derivative may pass through both.

    A framework adds up the cotangents of several calls, and knows no other way.

    Args:
        tensors: each with its argument and its mode.
    """
    for argument, mode, tensor in tensors:
        known = _used.get(id(tensor))
        # Ids are used again, so the weak reference tells whether it is this tensor.
        if known is not None and known[0]() is tensor and known[1]():
            owner = owner_of(tensor)
            raise GradientError(
                f"{name!r} says accumulate={mode!r} for {argument!r}, and another call was given "
                f"this tensor already: {owner.name if owner else 'autodiff'} adds up what calls "
                f"give. Make them in one function, xg.function(..., accumulate={{{argument!r}: "
                f"{mode!r}}}), or take the one's derivative before the other is made"
            )


def tensors_with_modes(
    modes: Modes, signature: Signature, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> list[tuple[str, str, Tensor]]:
    """Return the tensors that a call is given for arguments with a mode."""
    bound = signature.bind(*args, **kwargs).arguments
    return [
        (argument, mode, leaf)
        for argument, mode in modes
        for leaf in optree.tree_leaves(bound.get(argument))  # pyright: ignore[reportArgumentType]
        if owner_of(leaf) is not None
    ]


def note_uses(tensors: Sequence[tuple[str, str, Tensor]], outputs: Any) -> None:
    """Note the tensors that a call was given, for `refuse_second_call`."""
    flat = optree.tree_leaves(outputs)  # pyright: ignore[reportArgumentType]
    for _, _, tensor in tensors:
        owner = owner_of(tensor)
        note = None if owner is None else owner.autodiff.note_use
        is_open = None if note is None else note(tensor, flat)
        if is_open is not None:
            number = id(tensor)
            _used[number] = weakref.ref(tensor, partial(_forget, number)), is_open


def _forget(number: int, ref: weakref.ref[Any]) -> None:
    if number in _used and _used[number][0] is ref:
        del _used[number]
