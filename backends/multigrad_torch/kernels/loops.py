"""torch's loops.

A loop that ends by a tensor's values runs in Python, see `multigrad/engine/ops/loops.py`;
when torch.compile or torch.export traces, it is torch's own higher-order op.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch

from multigrad.engine.ops.loops import changed, check_kept, length_of, limited, run_while, scanning

Tensor: TypeAlias = torch.Tensor
Function = Callable[..., Any]


def while_loop(
    carry: tuple[Tensor, ...], constants: tuple[Any, ...], condition: Function, body: Function
) -> tuple[Tensor, ...]:
    """Repeat the body while the condition holds; TypeError if a dtype or shape changes."""
    if torch.compiler.is_compiling():
        return compiled(carry, constants, condition, body)
    if torch._C._are_functorch_transforms_active():
        return batched(carry, constants, condition, body)
    return run_while(carry, constants, condition, body)


def batched(
    carry: tuple[Tensor, ...], constants: tuple[Any, ...], condition: Function, body: Function
) -> tuple[Tensor, ...]:
    """Run a loop under transforms until the last example is done."""
    body = limited(body)
    goes_on = condition(*carry, *constants)
    while is_any(goes_on):
        previous, carry = carry, body(*carry, *constants)
        for old, new in zip(previous, carry, strict=True):
            if old.dtype != new.dtype or old.shape != new.shape:
                raise changed(old, new)
        pairs = zip(previous, carry, strict=True)
        # An example that is done keeps its values.
        carry = tuple(torch.where(goes_on, new, old) for old, new in pairs)
        goes_on = condition(*carry, *constants)
    return carry


def is_any(test: Tensor) -> bool:
    while torch._C._functorch.is_functorch_wrapped_tensor(test):
        test = torch._C._functorch.get_unwrapped(test)
    return bool(test.any())


def compiled(
    carry: tuple[Tensor, ...], constants: tuple[Any, ...], condition: Function, body: Function
) -> tuple[Tensor, ...]:
    """Return the loop as one op of a traced graph, which may not return its inputs."""
    from torch._higher_order_ops.while_loop import while_loop

    def goes_on(*values: Tensor) -> Tensor:
        return condition(*values, *constants)

    def turn(*values: Tensor) -> tuple[Tensor, ...]:
        return tuple(new.clone() for new in body(*values, *constants))

    return while_loop(goes_on, turn, tuple(x.clone() for x in carry))


def scan(
    carry: tuple[Tensor, ...],
    rows: tuple[Tensor, ...],
    constants: tuple[Any, ...],
    body: Function,
    reverse: bool,
) -> tuple[Tensor, ...]:
    """Take a turn for each row, in Python. What is carried keeps its dtype, also under autocast.

    Raises:
        TypeError: a turn changes a dtype or a shape.
    """
    if carry and torch.is_autocast_enabled(carry[0].device.type):
        body = keeping_dtypes(body, [x.dtype for x in carry])
    if torch.compiler.is_compiling():
        return compiled_scan(carry, rows, constants, body, reverse)
    return in_python(carry, rows, constants, body, reverse)


def keeping_dtypes(body: Function, dtypes: Sequence[torch.dtype]) -> Function:
    """Return the body of a scan, with what is carried cast to these dtypes."""

    def turn(*values: Any) -> tuple[Tensor, ...]:
        results = body(*values)
        new_carry = (new.to(dtype) for new, dtype in zip(results, dtypes, strict=False))
        return (*new_carry, *results[len(dtypes) :])

    return turn


def zeros_of(like: Tensor, shape: Any) -> Tensor:
    return like.new_zeros(shape)


in_python = scanning(torch.unbind, torch.stack, zeros_of)


def turns(
    carry: tuple[Tensor, ...],
    rows: tuple[Tensor, ...],
    constants: tuple[Any, ...],
    body: Function,
    reverse: bool,
    turn: Function,
    assumed: Sequence[tuple[int, int]],
    held: Sequence[tuple[int, int]],
) -> tuple[Tensor, ...]:
    """Scan with a body that writes into the results; the first turn gives their shapes."""
    length, carried = length_of(rows), len(carry)
    fits = all(rows[i - carried].shape[1:] == carry[j].shape for i, j in assumed)
    if length < 2 or not fits or torch.is_autocast_enabled(rows[0].device.type):
        return scan(carry, rows, constants, body, reverse)
    order = slice(None, None, -1 if reverse else 1)
    turn_rows = zip(*[x.unbind(0)[order] for x in rows], strict=True)
    results = body(*carry, *next(turn_rows), *constants)
    check_kept(carry, results)
    # One stack for all turns; each turn gets its row to write into.
    stacks = [y.new_empty((length, *y.shape)) for y in results[carried:]]
    places = [stack.unbind(0)[order] for stack in stacks]
    carry_places: list[Any] = [[None] * length] * carried
    # Result i is the carry j as a turn got it, so the turn before writes that carry into its row.
    for i, j in held:
        carry_places[j] = (*places[i - carried][1:], None)
    slots = zip(*carry_places, *places, strict=True)
    for place, y in zip(next(slots)[carried:], results[carried:], strict=True):
        place.copy_(y)
    for row, slot in zip(turn_rows, slots, strict=True):
        results = turn(*results[:carried], *row, *constants, *slot)
        for place, y in zip(slot[carried:], results[carried:], strict=True):
            if y is not place:
                place.copy_(y)
    return (*results[:carried], *stacks)


def compiled_scan(
    carry: tuple[Tensor, ...],
    rows: tuple[Tensor, ...],
    constants: tuple[Any, ...],
    body: Function,
    reverse: bool,
) -> tuple[Tensor, ...]:
    """Return a scan as one op of a traced graph."""
    from torch._higher_order_ops.scan import scan

    # A tensor that a transform wraps does not show whether it is a view.
    shows_views = not torch._C._are_functorch_transforms_active()

    def own_copy(x: Tensor) -> Tensor:
        return x.clone(memory_format=torch.contiguous_format)

    def turn(state: Any, row: Any) -> tuple[Any, Any]:
        values, carried = [*state, *row, *constants], len(state)
        # The op may return no input, nothing twice and no view, and keeps the carry's memory order.
        copies: list[Tensor] = []
        for y in body(*values):
            is_new = shows_views and y._base is None and all(y is not x for x in (*values, *copies))
            copies.append(y if is_new and y.is_contiguous() else own_copy(y))
        return copies[:carried], copies[carried:]

    last_carry, results = scan(turn, [*map(own_copy, carry)], [*rows], dim=0, reverse=reverse)
    return (*last_carry, *results)
