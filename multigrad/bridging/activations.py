"""An activation of another framework: forward and the rule run there, as straight-line code.

The host draws a random rule's key, so that the numbers are those of the host's own; a rule that cannot be captured runs
as it is in the guest, on memory of its own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from ..activation import plain
from ..context import Application
from ..errors import TraceError
from ..family import Family
from ..forwards import Forward
from ..functions.arguments import unwrap
from ..identity import items_key
from ..ir.record import NeedFact
from ..ir.types import dtype_name
from ..lowering.backend import Backend, backend_of, load_backend
from ..lowering.entries import MOST_ENTRIES, draw, find_entry, gather_facts, run_as_it_is
from ..lowering.input_checks import check_float, check_values, find_lacking, refuse_lacking
from ..lowering.lower import lower_family, lower_pair
from ..lowering.straight import Straight, straighten
from ..pair import GraphPair
from ..threads import build_once
from .foreign import Foreign, as_key, cross

Tensor = Any
Known = tuple[Straight | None, dict[str, str]]  # None: it runs as it is; what it lacks, by dtype


def call_activation(
    forward: Forward, application: Application | None, x: Tensor, guest: str
) -> Tensor:
    """Return the activation of a host's tensor, run in a guest with its backward.

    Args:
        application: the rule in force; None: the activation's own derivative.
        x: a tensor of the host, whose autodiff the gradient flows back in.
        guest: the name of a backend.

    Raises:
        BackendNotFound: there is no such backend, or it is not installed.
        UnsupportedOp: the guest lacks an op, or the host cannot call it here.
        GradientError: x is no float.
    """
    x = unwrap(x)
    host = backend_of(x)
    if guest == host.name:
        if application is None:
            return plain(forward, host)(x)
        check_float(x, application.spec.family.rule)
        return find_entry(application.spec.family, host, forward)(x, application)
    backend = load_backend(guest)
    if application is None:
        straight, lacking = plain_straight(forward, backend)
        refuse_lacking(lacking, dtype_name(x.dtype))
        name = f"activation {forward.name!r}"
        foreign = Foreign(
            name, backend, straight.run, straight.record, straight.gradients, (0,), (0,),
            keeps_outputs=straight.keeps_outputs,
        )  # fmt: skip
        return cross(host, foreign, (x,))[0]
    family, values = application.spec.family, application.spec.values
    check_float(x, family.rule)
    check_values(family, host, x, values)
    straight, lacking = find_straight(family, backend, forward, x, values)
    refuse_lacking(lacking, dtype_name(x.dtype))
    tensors = [x, *(value for value in values if not isinstance(value, int | float))]
    if straight is not None and straight.is_random:
        tensors.append(as_key(host, draw(application, host)))
    foreign = make_foreign(family, backend, forward, values, straight)
    return cross(host, foreign, tuple(tensors))[0]


_plain: dict[tuple[str, str], tuple[Straight, dict[str, str]]] = {}


def plain_straight(forward: Forward, guest: Backend) -> tuple[Straight, dict[str, str]]:
    """Return an activation with its own derivative, and what the guest lacks for it."""
    found = _plain.get((guest.name, forward.name))
    if found is None:
        pair = GraphPair(
            f"d({forward.name}) under {forward.name}", forward.graph(), forward.derivative()
        )
        lacking = find_lacking(f"activation {forward.name!r}", guest, pair.forward, pair.backward)
        found = lower_pair(pair, straighten(guest)).native, lacking
        _plain[guest.name, forward.name] = found
    return found


def find_straight(
    family: Family, guest: Backend, forward: Forward, x: Tensor, values: tuple[Any, ...]
) -> Known:
    """Return a rule under a forward as the guest runs it, built at the first call."""
    if family.rule.native is True:
        return None, {}
    while True:
        facts = gather_facts(family, x, values)
        key = ("straight", guest.name, forward.name, items_key(facts))
        found = family.entries.get(key)
        if found is not None:
            return found
        try:
            build = functools.partial(_build_straight, family, guest, forward, facts)
            return build_once(family.entries, key, build, MOST_ENTRIES)
        except NeedFact:
            continue  # family.facts has grown: look again


def _build_straight(
    family: Family, guest: Backend, forward: Forward, facts: dict[str, Any]
) -> Known:
    if not family.facts <= facts.keys():  # another thread's capture has found that more is needed
        raise NeedFact(*family.facts, noted=False)
    try:
        straight = lower_family(family, straighten(guest), forward, facts).native
    except TraceError as error:
        family.give_up(error)
        return None, {}
    graphs = family.graph(True, facts), forward.graph()
    return straight, find_lacking(f"rule {family.rule.name!r}", guest, *graphs)


def make_foreign(
    family: Family,
    guest: Backend,
    forward: Forward,
    values: tuple[Any, ...],
    straight: Straight | None,
) -> Foreign:
    """Return what runs in the guest: its inputs are tin, the values that are tensors, and a key."""
    name = f"rule {family.rule.name!r} under {forward.name}"
    fill = functools.partial(_fill_in, values)
    if straight is None:
        return _foreign_as_it_is(name, family, guest, forward, fill)

    def run(*inputs: Tensor) -> tuple[Tensor, ...]:
        return straight.run(*fill(inputs))

    def keep(*inputs: Tensor) -> Any:
        return straight.record(*fill(inputs))

    def backward(inputs: Sequence[Tensor], cotangents: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return straight.gradients(fill(inputs), cotangents)

    tensors = sum(not isinstance(value, int | float) for value in values)
    key = 1 + tensors if straight.is_random else None
    return Foreign(
        name, guest, run, keep, backward, (0,), (0,), key=key, keeps_outputs=straight.keeps_outputs
    )


def _fill_in(values: tuple[Any, ...], inputs: Sequence[Tensor]) -> list[Any]:
    """Return tin, the values with the tensors among them in their places, and a key if there is one."""
    rest = iter(inputs)
    tin = next(rest)
    filled = [value if isinstance(value, int | float) else next(rest) for value in values]
    return [tin, *filled, *rest]


def _foreign_as_it_is(
    name: str, family: Family, guest: Backend, forward: Forward, fill: Callable[..., list[Any]]
) -> Foreign:
    """Return a rule whose function is called on the guest's tensors."""
    straight, _ = plain_straight(forward, guest)

    def run(*inputs: Tensor) -> tuple[Tensor, ...]:
        return straight.run(inputs[0])

    def keep(*inputs: Tensor) -> Any:
        def pull(grad_out: Tensor) -> tuple[Tensor, ...]:
            return backward(inputs, (grad_out,))

        return run(*inputs), pull

    def backward(inputs: Sequence[Tensor], cotangents: Sequence[Tensor]) -> tuple[Tensor, ...]:
        tin, *values = fill(inputs)
        return (run_as_it_is(family, None, cotangents[0], tin, tuple(values)),)

    return Foreign(name, guest, run, keep, backward, (0,), (0,), owns=True)
