"""`xg.override` for functions of jax: each call is traced and its jaxpr computed with the rules.

A function is traced again at each call, as the values that it closes over may have changed; under
`jax.jit` that happens once.
"""

from __future__ import annotations

import functools
import operator
import sys
from collections.abc import Callable, Iterable, Sequence
from types import MethodType
from typing import Any
from weakref import WeakKeyDictionary, ref

import jax
import jax.numpy as jnp
from jax.extend import core, source_info_util

from multigrad.capture.user_code.signature import name_of
from multigrad.errors import RuleValueError
from multigrad.functions.function import Function
from multigrad.models.gradient_replacement import replace_gradient
from multigrad.models.override import Following, SelectedCalls, one_input

from .. import versions
from ..jaxprs import bind, called, jaxprs_of, walk
from .operations import (
    OWN_DERIVATIVE,
    CalledOperation,
    find,
    is_float,
    names_in,
    outline,
    refuse_hidden,
)
from .relevance import composite_of, reads_layers, run

Tensor = Any
Run = Callable[[Any, Sequence[Any], Sequence[Tensor]], list[Tensor]]
Compute = Callable[[Any, Sequence[Any], Sequence[Any]], list[Any]]


def override_calls(function: Callable[..., Any], rules: Any) -> Callable[..., Any]:
    """Return a function with rules on the operations that it calls."""
    if reads_layers(rules):
        composite = composite_of(rules)

        @functools.wraps(function)
        def attributed(*args: Any, **kwargs: Any) -> Any:
            compute = functools.partial(run, composite, name_of(function))
            return call(compute, function, args, kwargs)

        return attributed
    acting = Following(rules, find, functools.partial(Rewriting, name_of(function)))

    @functools.wraps(function)
    def overridden(*args: Any, **kwargs: Any) -> Any:
        return call(acting.now().checked, function, args, kwargs)

    return overridden


def call(compute: Compute, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Trace a call, and compute it with the rules.

    Args:
        compute: computes a jaxpr of arguments, and of the state of objects among them, with rules.

    Raises:
        RuleValueError: it calls none of the operations that a selector selects.
    """
    # only arrays are traced; other leaves are constants of this call
    leaves, tree = jax.tree_util.tree_flatten((args, kwargs), is_leaf=is_object)
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, jax.Array)]
    owner = getattr(function, "__self__", function)
    # nnx forbids changing a module within a trace: copies are changed, and read back after
    objects = Objects(function, leaves) if any(map(is_object, [owner, *leaves])) else None
    result: list[Any] = []

    def traced(arrays: list[Any], state: list[Any]) -> tuple[list[Any], list[Any]]:
        whole = list(leaves)
        for i, array in zip(places, arrays, strict=True):
            whole[i] = array
        called, copies = function, []
        if objects is not None:
            copies = objects.copies(state)
            called = objects.put_into(whole, copies)
        args, kwargs = jax.tree_util.tree_unflatten(tree, whole)
        outputs, tree_out = jax.tree_util.tree_flatten(called(*args, **kwargs))
        positions = [i for i, leaf in enumerate(outputs) if isinstance(leaf, jax.Array)]
        result[:] = [
            tree_out,
            positions,
            [None if i in positions else o for i, o in enumerate(outputs)],
        ]
        return [outputs[i] for i in positions], objects.state_of(copies) if objects else []

    arrays, state = [leaves[i] for i in places], objects.arrays if objects else []
    try:
        closed = jax.make_jaxpr(traced)(arrays, state)
    except Exception as error:
        refuse_changed(function, error)
        raise
    computed = compute(closed, arrays, state)
    tree_out, positions, outputs = result
    for i, each in zip(positions, computed, strict=False):
        outputs[i] = each
    if objects is not None:
        objects.update(computed[len(positions) :])
    return jax.tree_util.tree_unflatten(tree_out, outputs)


# --- functions whose calls change objects of flax nnx ---------------------------------------------
class Objects:
    """The nnx modules of a call: those among the arguments, and the function or its owner."""

    def __init__(self, function: Callable[..., Any], leaves: list[Any]) -> None:
        nnx = sys.modules["flax.nnx"]
        self.function = function
        owner = getattr(function, "__self__", function)
        self.places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, nnx.Module)]
        self.is_owned = isinstance(owner, nnx.Module)
        self.objects = [leaves[i] for i in self.places] + ([owner] if self.is_owned else [])
        self.definition, state = nnx.split(self.objects)
        self.arrays, self.tree = jax.tree_util.tree_flatten(state)
        self.tree_after: Any = self.tree

    def copies(self, arrays: list[Any]) -> list[Any]:
        state = jax.tree_util.tree_unflatten(self.tree, arrays)
        return sys.modules["flax.nnx"].merge(self.definition, state)

    def put_into(self, leaves: list[Any], copies: list[Any]) -> Callable[..., Any]:
        """Replace the objects by copies; return the function to call."""
        for i, copy in zip(self.places, copies, strict=False):
            leaves[i] = copy
        if not self.is_owned:
            return self.function
        own = getattr(self.function, "__func__", None)
        return copies[-1] if own is None else MethodType(own, copies[-1])

    def state_of(self, copies: list[Any]) -> list[Any]:
        state = sys.modules["flax.nnx"].state(copies)
        arrays, self.tree_after = jax.tree_util.tree_flatten(state)
        return arrays

    def update(self, arrays: list[Any]) -> None:
        """Copy the state of the copies back into the objects."""
        # most calls change nothing, and then nothing is written
        unchanged = self.tree_after == self.tree and all(map(operator.is_, arrays, self.arrays))
        if not unchanged:
            state = jax.tree_util.tree_unflatten(self.tree_after, arrays)
            sys.modules["flax.nnx"].update(self.objects, state)


def is_object(leaf: Any) -> bool:
    """Return whether a leaf of arguments is an nnx module, which stays whole."""
    nnx = sys.modules.get("flax.nnx")
    return nnx is not None and isinstance(leaf, nnx.Module)


def refuse_changed(function: Callable[..., Any], error: Exception) -> None:
    """Raise, with advice, if an error says that a closed-over nnx module was changed."""
    if type(error).__name__ == "TraceContextError":
        raise RuleValueError(
            f"function {name_of(function)!r} changes a module of flax nnx that it closes over "
            f"({error.args[0]:.60}...): give the module itself, xg.override(model, ...), or give "
            "it to the function as an argument"
        ) from error


# --- a jaxpr computed again, with rules for some of its equations --------------------------------
# An equation that holds no such equation is bound unchanged, with its params. A function with a
# custom derivative is never opened.
class Rewriting(SelectedCalls[CalledOperation]):
    """The rules of one `override`, as they act on jaxprs.

    What is derived from a jaxpr under `jit` lives as long as jax keeps that jaxpr: it compiles
    once.
    """

    def __init__(self, name: str, rows: Iterable[tuple[CalledOperation, Function]]) -> None:
        super().__init__(name, rows)
        inlined = [meant.inlined for meant, _ in self.rows if meant.inlined is not None]
        self.inlined = tuple(inlined)
        self._outlined: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()
        self._holding: WeakKeyDictionary[Any, frozenset[CalledOperation]] = WeakKeyDictionary()
        self._jitted: WeakKeyDictionary[Any, Callable[..., Any]] = WeakKeyDictionary()

    def find(self, equation: Any) -> tuple[CalledOperation, Function] | None:
        """Return the row that selects an equation, if any."""
        for row in self.rows:
            if row[0].fits(equation):
                return row
        return None

    def held(self, jaxpr: Any) -> frozenset[CalledOperation]:
        """Return the operations within a jaxpr that are selected and can be replaced."""
        known = self._holding.get(jaxpr)
        if known is None:
            operations: set[CalledOperation] = set()
            for equation in self.outlined(jaxpr).eqns:
                row = self.find(equation)
                if row is not None and has_input(equation):
                    operations.add(row[0])
                elif row is None and equation.primitive.name not in OWN_DERIVATIVE:
                    operations |= self.held_by(equation)
            known = self._holding[jaxpr] = frozenset(operations)
        return known

    def outlined(self, jaxpr: Any) -> Any:
        """Return a jaxpr in which selected inlined functions have their calls again."""
        if not self.inlined:
            return jaxpr
        known = self._outlined.get(jaxpr)
        if known is None:
            known = self._outlined[jaxpr] = outline(jaxpr, self.inlined)
        return known

    def held_by(self, equation: Any) -> frozenset[CalledOperation]:
        return frozenset().union(*(self.held(inner) for inner in jaxprs_of(equation)))

    def checked(
        self, closed: Any, arguments: Sequence[Tensor], state: Sequence[Tensor]
    ) -> list[Tensor]:
        """Compute the jaxpr of a whole call, once all that is selected was found in it."""
        held = self.held(closed.jaxpr)
        missing = next((meant for meant, _ in self.rows if meant not in held), None)
        if missing is not None:
            refuse_hidden(self.name, closed.jaxpr, missing)
            self.refuse_unmet(missing, names_in(closed.jaxpr))
        return self.run(closed.jaxpr, closed.consts, [*arguments, *state])

    def run(self, jaxpr: Any, consts: Sequence[Any], arguments: Sequence[Tensor]) -> list[Tensor]:
        """Compute a jaxpr with the rules."""
        jaxpr = self.outlined(jaxpr)

        def compute(equation: Any, operands: list[Tensor]) -> list[Tensor]:
            info = equation.source_info
            # errors and profiles still show the user's own lines
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
            RuleValueError: it holds a selected operation and cannot be opened.
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
                f"operation {name!r} is called inside {primitive!r}, whose code cannot be "
                "changed: override the function that is given to it"
            )
        return list(inside(self.run, equation, operands))

    def replace(
        self, meant: CalledOperation, rule: Function, equation: Any, operands: list[Tensor]
    ) -> list[Tensor]:
        """Return the result of an equation, with the rule's gradient."""
        refuse_differentiated(equation, meant.name)
        at = input_of(meant, equation)
        tin = jnp.asarray(operands[at])
        # the other operands keep their own gradients
        held = [*operands[:at], jax.lax.stop_gradient(tin), *operands[at + 1 :]]
        (out,) = bind(equation, held)
        return [replace_gradient(rule, rule.name, f"operation {meant.name!r}", tin, out)]

    def under_jit(self, equation: Any, operands: list[Tensor]) -> list[Tensor]:
        params = equation.params
        closed = params["jaxpr"]
        known = self._jitted.get(closed)
        if known is None:

            def call(*arguments: Tensor) -> list[Tensor]:
                return self.run(held().jaxpr, held().consts, arguments)

            # a strong reference would keep its own key of `_jitted` alive
            held: Any = ref(closed)
            call.__name__ = call.__qualname__ = params["name"]
            known = self._jitted[closed] = jax.jit(call, **jit_options(params))
        return known(*operands)


def jit_options(params: dict[str, Any]) -> dict[str, Any]:
    options: dict[str, Any] = {"keep_unused": params["keep_unused"], "inline": params["inline"]}
    for name in ("in_shardings", "out_shardings"):
        if any(hasattr(each, "device_set") or hasattr(each, "spec") for each in params[name]):
            given = [each if hasattr(each, "device_set") else None for each in params[name]]
            options[name] = tuple(given) if name == "in_shardings" else given
    return options


def last_uses(jaxpr: Any) -> dict[int, list[Any]]:
    """Return the variables that no later equation reads, by the position of the equation."""
    last: dict[Any, int] = {}
    for i, equation in enumerate(jaxpr.eqns):
        for atom in (*equation.invars, *equation.outvars):
            if not isinstance(atom, core.Literal):
                last[atom] = i
    for atom in jaxpr.outvars:
        if not isinstance(atom, core.Literal):
            last.pop(atom, None)
    by_equation: dict[int, list[Any]] = {}
    for variable, i in last.items():
        by_equation.setdefault(i, []).append(variable)
    return by_equation


def has_input(equation: Any) -> bool:
    """Return whether a gradient can flow through an equation: from floats to floats."""
    floats = [a for a in equation.invars if is_float(a) and not isinstance(a, core.Literal)]
    return bool(floats) and any(map(is_float, equation.outvars))


def input_of(meant: CalledOperation, equation: Any) -> int:
    """Return the position of the operand that a rule acts on: the one of the result's shape."""
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
    """Raise for an operation under a derivative that the function itself takes."""
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
    def chosen(branch: Any, *arguments: Tensor) -> tuple[Tensor, ...]:
        return tuple(run(branch.jaxpr, branch.consts, arguments))

    which, *arguments = operands
    branches = [functools.partial(chosen, branch) for branch in equation.params["branches"]]
    return list(jax.lax.switch(which, branches, *arguments))


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


def called_as(run: Run, equation: Any, operands: list[Tensor]) -> list[Tensor]:
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
    "closed_call": called_as,
    "core_call": called_as,
}
