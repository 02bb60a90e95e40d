"""A jaxpr computed anew, with rules in the place of some of its equations.

All that holds no such equation is bound as it was, with its params. What has a derivative of its
own is never opened.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary, ref

import jax
import jax.numpy as jnp
from jax.extend import core, source_info_util

from multigrad.errors import RuleValueError
from multigrad.functions.function import Function
from multigrad.models.interpose import check_fit, one_input

from .. import versions
from ..walk import bind, called, jaxprs_of, walk
from .inlined import outline
from .operations import OWN_DERIVATIVE, Called, refuse_unmet

Tensor = Any
Run = Callable[[Any, Sequence[Any], Sequence[Tensor]], list[Tensor]]


class Rewriting:
    """The rules of one `override`, as they act on jaxprs.

    What is kept of a jaxpr under `jit` holds as long as jax itself keeps it: compiled once.
    """

    def __init__(self, rows: Sequence[tuple[Called, Any]]) -> None:
        self.rows = tuple(rows)
        found = [meant.inlined for meant, _ in rows if meant.inlined is not None]
        self.inlined = tuple(found)
        self._outlined: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()
        self._holding: WeakKeyDictionary[Any, frozenset[Called]] = WeakKeyDictionary()
        self._jitted: WeakKeyDictionary[Any, Callable[..., Any]] = WeakKeyDictionary()

    def find(self, equation: Any) -> tuple[Called, Function] | None:
        """Return what is meant by an equation, if anything."""
        for row in self.rows:
            if row[0].fits(equation):
                return row
        return None

    def held(self, jaxpr: Any) -> frozenset[Called]:
        """Return which of the operations a jaxpr calls, where they can be changed."""
        known = self._holding.get(jaxpr)
        if known is None:
            found: set[Called] = set()
            for equation in self.outlined(jaxpr).eqns:
                row = self.find(equation)
                if row is not None and has_input(equation):
                    found.add(row[0])
                elif row is None and equation.primitive.name not in OWN_DERIVATIVE:
                    found |= self.held_by(equation)
            known = self._holding[jaxpr] = frozenset(found)
        return known

    def outlined(self, jaxpr: Any) -> Any:
        """Return a jaxpr in which inlined functions that are meant have their calls again."""
        if not self.inlined:
            return jaxpr
        known = self._outlined.get(jaxpr)
        if known is None:
            known = self._outlined[jaxpr] = outline(jaxpr, self.inlined)
        return known

    def held_by(self, equation: Any) -> frozenset[Called]:
        """Return which of the operations are called inside of an equation."""
        return frozenset().union(*(self.held(inner) for inner in jaxprs_of(equation)))

    def checked(
        self, name: str, closed: Any, arguments: Sequence[Tensor], state: Sequence[Tensor]
    ) -> list[Tensor]:
        """Compute the jaxpr of a whole function, with the rules.

        Raises:
            RuleValueError: it does not call what a selector means.
        """
        unmet = [meant for meant, _ in self.rows if meant not in self.held(closed.jaxpr)]
        if unmet:
            refuse_unmet(name, closed.jaxpr, unmet)
        return self.run(closed.jaxpr, closed.consts, [*arguments, *state])

    def run(self, jaxpr: Any, consts: Sequence[Any], arguments: Sequence[Tensor]) -> list[Tensor]:
        """Compute a jaxpr, with the rules."""
        jaxpr = self.outlined(jaxpr)

        def compute(equation: Any, operands: list[Tensor]) -> list[Tensor]:
            info = equation.source_info
            stack = source_info_util.current_name_stack() + info.name_stack
            with (
                source_info_util.user_context(info.traceback, name_stack=stack),
                equation.ctx.manager,
            ):
                return self.compute(equation, operands)

        return walk(jaxpr, consts, arguments, compute, last=last_uses(jaxpr))

    def compute(self, equation: Any, operands: list[Tensor]) -> list[Tensor]:
        """Return the results of one equation, with the rules.

        Raises:
            RuleValueError: it holds an operation that is meant and cannot be opened.
        """
        row = self.find(equation)
        if row is not None:
            return (
                self.replace(*row, equation, operands)
                if has_input(equation)
                else bind(equation, operands)
            )
        primitive = equation.primitive.name
        if primitive in OWN_DERIVATIVE:
            return bind(equation, operands)
        held = self.held_by(equation)
        if not held:
            return bind(equation, operands)
        refuse_differentiated(equation, min(each.name for each in held))
        if primitive in ("jit", "pjit"):
            return self.under_jit(equation, operands)
        inside = INSIDE.get(primitive)
        if inside is None:
            name = min(each.name for each in held)
            raise RuleValueError(
                f"operation {name!r} is called inside of {primitive!r}, whose code cannot be "
                "changed: override the function that is given to it"
            )
        return list(inside(self.run, equation, operands))

    def replace(
        self, meant: Called, rule: Function, equation: Any, operands: list[Tensor]
    ) -> list[Tensor]:
        """Return the result of an equation, whose gradient is the rule's."""
        refuse_differentiated(equation, meant.name)
        at = input_of(meant, equation)
        tin = jnp.asarray(operands[at])
        held = [*operands[:at], jax.lax.stop_gradient(tin), *operands[at + 1 :]]
        (out,) = bind(equation, held)
        check_fit(rule.name, f"operation {meant.name!r}", tin.shape, out.shape)
        return [rule(tin, out)]

    def under_jit(self, equation: Any, operands: list[Tensor]) -> list[Tensor]:
        """Return the results of a call under `jit`."""
        params = equation.params
        closed = params["jaxpr"]
        known = self._jitted.get(closed)
        if known is None:

            def call(*arguments: Tensor) -> list[Tensor]:
                return self.run(held().jaxpr, held().consts, arguments)

            held: Any = ref(closed)
            call.__name__ = call.__qualname__ = params["name"]
            known = self._jitted[closed] = jax.jit(call, **jit_options(params))
        return known(*operands)


def jit_options(params: dict[str, Any]) -> dict[str, Any]:
    """Return the options of `jax.jit` by which a call was made."""
    options: dict[str, Any] = {"keep_unused": params["keep_unused"], "inline": params["inline"]}
    for name in ("in_shardings", "out_shardings"):
        if any(hasattr(each, "device_set") or hasattr(each, "spec") for each in params[name]):
            given = [each if hasattr(each, "device_set") else None for each in params[name]]
            options[name] = tuple(given) if name == "in_shardings" else given
    return options


def last_uses(jaxpr: Any) -> dict[int, list[Any]]:
    """Return the variables whose last use each equation is."""
    last: dict[Any, int] = {}
    for i, equation in enumerate(jaxpr.eqns):
        for atom in (*equation.invars, *equation.outvars):
            if not isinstance(atom, core.Literal):
                last[atom] = i
    for atom in jaxpr.outvars:
        if not isinstance(atom, core.Literal):
            last.pop(atom, None)
    found: dict[int, list[Any]] = {}
    for variable, i in last.items():
        found.setdefault(i, []).append(variable)
    return found


def is_float(atom: Any) -> bool:
    return hasattr(atom.aval, "dtype") and bool(jnp.issubdtype(atom.aval.dtype, jnp.floating))


def has_input(equation: Any) -> bool:
    """Return whether a gradient can flow through an equation: from floats to floats."""
    floats = [a for a in equation.invars if is_float(a) and not isinstance(a, core.Literal)]
    return bool(floats) and any(map(is_float, equation.outvars))


def input_of(meant: Called, equation: Any) -> int:
    """Return the position of the operand that a rule acts on: the one of the result's shape.

    Raises:
        RuleValueError: there are several, or there is more than one result.
    """
    if len(equation.outvars) != 1:
        raise RuleValueError(
            f"operation {meant.name!r} has {len(equation.outvars)} results; a rule needs one"
        )
    shape = equation.outvars[0].aval.shape
    floats = [
        i
        for i, atom in enumerate(equation.invars)
        if is_float(atom) and not isinstance(atom, core.Literal)
    ]
    fitting = [i for i in floats if equation.invars[i].aval.shape == shape] or floats
    return one_input(meant.name, fitting, shape, "a function of one array")


def refuse_differentiated(equation: Any, name: str) -> None:
    """Refuse an operation under a derivative that the function takes itself.

    Raises:
        RuleValueError: it is one.
    """
    stack = str(equation.source_info.name_stack)
    if "jvp(" in stack or "transpose(" in stack:
        raise RuleValueError(
            f"operation {name!r} is called where the function takes a gradient itself, which was "
            "taken before its code could be changed: override the function that is differentiated "
            "there"
        )


# --- what holds other jaxprs ----------------------------------------------------------------------
def scan(run: Run, equation: Any, operands: list[Tensor]) -> list[Tensor]:
    params = equation.params
    body, n, m = params["jaxpr"], params["num_consts"], params["num_carry"]
    consts, carry, rows = operands[:n], operands[n : n + m], operands[n + m :]

    def turn(carry: Sequence[Tensor], row: Sequence[Tensor]) -> tuple[Any, Any]:
        results = run(body.jaxpr, body.consts, [*consts, *carry, *row])
        return tuple(results[:m]), tuple(results[m:])

    options = {
        k: params[k] for k in ("length", "reverse", "unroll", "_split_transpose") if k in params
    }
    last, stacked = jax.lax.scan(turn, tuple(carry), tuple(rows), **options)
    return [*last, *stacked]


def while_loop(run: Run, equation: Any, operands: list[Tensor]) -> list[Tensor]:
    params = equation.params
    going, body = params["cond_jaxpr"], params["body_jaxpr"]
    n, m = params["cond_nconsts"], params["body_nconsts"]
    of_cond, of_body, carry = operands[:n], operands[n : n + m], operands[n + m :]

    def is_going(carry: Sequence[Tensor]) -> Tensor:
        return run(going.jaxpr, going.consts, [*of_cond, *carry])[0]

    def turn(carry: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return tuple(run(body.jaxpr, body.consts, [*of_body, *carry]))

    return list(jax.lax.while_loop(is_going, turn, tuple(carry)))


def cond(run: Run, equation: Any, operands: list[Tensor]) -> list[Tensor]:
    which, *arguments = operands
    branches = [_closed(run, branch) for branch in equation.params["branches"]]
    return list(jax.lax.switch(which, branches, *arguments))


def _closed(run: Run, closed: Any) -> Callable[..., tuple[Tensor, ...]]:
    return lambda *arguments: tuple(run(closed.jaxpr, closed.consts, arguments))


def checkpoint(run: Run, equation: Any, operands: list[Tensor]) -> list[Tensor]:
    params = equation.params

    def call(*arguments: Tensor) -> list[Tensor]:
        return run(params["jaxpr"], (), arguments)

    again = jax.checkpoint(call, prevent_cse=params["prevent_cse"], policy=params["policy"])
    return list(again(*operands))


def shard_map(run: Run, equation: Any, operands: list[Tensor]) -> list[Tensor]:
    params = equation.params

    def call(*arguments: Tensor) -> tuple[Tensor, ...]:
        return tuple(run(params["jaxpr"], (), arguments))

    mapped = jax.shard_map(
        call,
        mesh=params["mesh"],
        in_specs=tuple(params["in_specs"]),
        out_specs=tuple(params["out_specs"]),
        axis_names=versions.axes_of_shard_map(params),
        check_vma=params["check_vma"],
    )
    return list(mapped(*operands))


def call(run: Run, equation: Any, operands: list[Tensor]) -> list[Tensor]:
    held = called(equation)
    assert held is not None  # by the table below
    return run(*held, operands)


INSIDE = {
    "scan": scan,
    "while": while_loop,
    "cond": cond,
    "checkpoint": checkpoint,
    "remat": checkpoint,
    "remat2": checkpoint,
    "shard_map": shard_map,
    "closed_call": call,
    "core_call": call,
}
