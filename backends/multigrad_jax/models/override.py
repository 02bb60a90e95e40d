"""`xg.override` for functions of jax: each call is traced and its jaxpr computed with the rules.

    override_calls        returns the function with rules
      trace_and_compute   one call: to a jaxpr, whose results go back to where they were
        OverriddenCalls   computes a jaxpr, with a rule's gradient for each selected equation
          INSIDE          computes what holds other jaxprs: loops, branches, checkpoints

A function is traced again at each call, as the values that it closes over may have changed; under
`jax.jit` that happens once.
"""

from __future__ import annotations

import functools
import operator
import sys
from collections.abc import Callable, Iterable, Sequence
from types import MethodType
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary, ref

import jax
import jax.numpy as jnp
from jax.extend import core, source_info_util

from multigrad.core.rules.signature import name_of
from multigrad.core.trace.lookups import Meanings, look_up_all
from multigrad.engine.functions.calls.arguments import replace_at
from multigrad.engine.functions.function import Function
from multigrad.errors import RuleValueError
from multigrad.models.gradient_replacement import replace_gradient
from multigrad.models.override import Following, SelectedCalls, one_input

from ..core import versions
from ..jaxprs import (
    TracedResults,
    bind_unchanged,
    called_jaxpr,
    inner_jaxprs,
    last_uses,
    scan_parts,
    walk,
    while_parts,
)
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

Tensor: TypeAlias = jax.Array
# Computes a jaxpr with rules: (jaxpr, constants, arguments) -> results.
Run = Callable[[Any, Sequence[Any], Sequence[Tensor]], list[Tensor]]
# Computes that of a whole call: (closed jaxpr, arrays, state of objects) -> arrays, state after it.
Compute = Callable[[Any, Sequence[Any], Sequence[Any]], list[Any]]


def override_calls(function: Callable[..., Any], rules: Any) -> Callable[..., Any]:
    if reads_layers(rules):
        composite = composite_of(rules)
        compute = functools.partial(run, composite, name_of(function))

        @functools.wraps(function)
        def attributed(*args: Any, **kwargs: Any) -> Any:
            return trace_and_compute(compute, function, args, kwargs)

        return attributed
    overridden_calls = Following(rules, find, functools.partial(OverriddenCalls, name_of(function)))

    @functools.wraps(function)
    def overridden(*args: Any, **kwargs: Any) -> Any:
        return trace_and_compute(overridden_calls.now().compute_all, function, args, kwargs)

    return overridden


def trace_and_compute(
    compute: Compute, function: Callable[..., Any], args: Any, kwargs: Any
) -> Any:
    """Trace a call, compute it with the rules, and return its result."""
    # Only arrays are traced; other leaves are constants of this call.
    leaves, tree = jax.tree_util.tree_flatten((args, kwargs), is_leaf=is_object)
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, jax.Array)]
    owner = getattr(function, "__self__", function)
    objects = Objects(function, leaves) if any(map(is_object, [owner, *leaves])) else None
    results = TracedResults((jax.Array,))

    def run(arrays: list[Any], state: list[Any]) -> tuple[list[Any], list[Any]]:
        arguments = replace_at(leaves, places, arrays)
        function_to_call = function if objects is None else objects.put_copies(arguments, state)
        call_args, call_kwargs = jax.tree_util.tree_unflatten(tree, arguments)
        outputs = results.split(function_to_call(*call_args, **call_kwargs))
        return outputs, [] if objects is None else objects.read_copies()

    arrays, state = [leaves[i] for i in places], [] if objects is None else objects.arrays
    try:
        closed_jaxpr = jax.make_jaxpr(run)(arrays, state)
    except Exception as error:
        refuse_changed(function, error)
        raise
    computed_arrays = iter(compute(closed_jaxpr, arrays, state))
    result = results.join(computed_arrays)
    if objects is not None:
        objects.update(list(computed_arrays))  # what follows the arrays of the result
    return result


# --- functions whose calls change objects of flax nnx ---------------------------------------------
class Objects:
    """The nnx modules of a call: those among the arguments, and the function or its owner.

    nnx forbids changing a module within a trace. So the trace changes copies, and the modules get
    their state after it: `put_copies` and `read_copies` are called within the trace, `update` with
    the computed state.

    Attributes:
        places: where modules are among the leaves of the arguments.
        is_owned: whether the function is a module or its method; that module is the last object.
        arrays: the state of all objects before the call.
    """

    def __init__(self, function: Callable[..., Any], leaves: list[Any]) -> None:
        nnx = sys.modules["flax.nnx"]
        self.function = function
        owner = getattr(function, "__self__", function)
        self.places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, nnx.Module)]
        self.is_owned = isinstance(owner, nnx.Module)
        self.objects = [leaves[i] for i in self.places] + ([owner] if self.is_owned else [])
        self.definition, state = nnx.split(self.objects)
        self.arrays, self.tree = jax.tree_util.tree_flatten(state)
        self.tree_after: Any = self.tree  # of the state; `read_copies` writes it
        self._copies: list[Any] = []

    def put_copies(self, leaves: list[Any], arrays: list[Any]) -> Callable[..., Any]:
        """Replace the objects by copies with this state; return the function to call."""
        state = jax.tree_util.tree_unflatten(self.tree, arrays)
        self._copies = sys.modules["flax.nnx"].merge(self.definition, state)
        for i, copy in zip(self.places, self._copies, strict=False):
            leaves[i] = copy
        if not self.is_owned:
            return self.function
        method = getattr(self.function, "__func__", None)
        return self._copies[-1] if method is None else MethodType(method, self._copies[-1])

    def read_copies(self) -> list[Any]:
        """Return the state of the copies after the call, and let go of them."""
        state = sys.modules["flax.nnx"].state(self._copies)
        self._copies = []
        arrays, self.tree_after = jax.tree_util.tree_flatten(state)
        return arrays

    def update(self, arrays: list[Any]) -> None:
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


class OverriddenCalls(SelectedCalls[CalledOperation]):
    """The rules of one `override`, as they act on jaxprs.

    An equation that holds no selected operation is bound unchanged, with its params, and a function
    with a custom derivative is never opened.

    What is derived from a jaxpr under `jit` lives as long as jax keeps that jaxpr: it compiles
    once.

    Attributes:
        inlined: the selected functions that leave no call in a jaxpr, to be found by their code.
    """

    def __init__(self, name: str, rows: Iterable[tuple[CalledOperation, Function]]) -> None:
        super().__init__(name, rows)
        functions = [op.inlined for op, _ in self.rows if op.inlined is not None]
        self.inlined = tuple(functions)
        # By jaxpr: with calls of inlined functions; the selected operations in it; compiled, with
        # what the rules read then.
        self._outlined: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()
        self._selected: WeakKeyDictionary[Any, frozenset[CalledOperation]] = WeakKeyDictionary()
        self._jitted: WeakKeyDictionary[Any, tuple[Callable[..., Any], Any]] = WeakKeyDictionary()

    def compute_all(
        self, closed: Any, arguments: Sequence[Tensor], state: Sequence[Tensor]
    ) -> list[Tensor]:
        """Compute the jaxpr of a whole call, once all that is selected was found in it."""
        operations = self.selected_in(closed.jaxpr)
        missing = next((op for op, _ in self.rows if op not in operations), None)
        if missing is not None:
            refuse_hidden(self.name, closed.jaxpr, missing)
            self.refuse_unmet(missing, names_in(closed.jaxpr))
        return self.run(closed.jaxpr, closed.consts, [*arguments, *state])

    def selected_in(self, jaxpr: Any) -> frozenset[CalledOperation]:
        """Return the operations within a jaxpr that are selected and can be replaced."""
        cached_operations = self._selected.get(jaxpr)
        if cached_operations is None:
            operations: set[CalledOperation] = set()
            for equation in self.outlined(jaxpr).eqns:
                row = self.row_of(equation)
                if row is not None and has_input(equation):
                    operations.add(row[0])
                elif row is None and equation.primitive.name not in OWN_DERIVATIVE:
                    operations |= self.selected_inside(equation)
            cached_operations = self._selected[jaxpr] = frozenset(operations)
        return cached_operations

    def selected_inside(self, equation: Any) -> frozenset[CalledOperation]:
        return frozenset().union(*(self.selected_in(inner) for inner in inner_jaxprs(equation)))

    def outlined(self, jaxpr: Any) -> Any:
        """Return a jaxpr in which selected inlined functions have their calls again."""
        if not self.inlined:
            return jaxpr
        cached_jaxpr = self._outlined.get(jaxpr)
        if cached_jaxpr is None:
            cached_jaxpr = self._outlined[jaxpr] = outline(jaxpr, self.inlined)
        return cached_jaxpr

    def row_of(self, equation: Any) -> tuple[CalledOperation, Function] | None:
        return next((row for row in self.rows if row[0].fits(equation)), None)

    def run(self, jaxpr: Any, consts: Sequence[Any], arguments: Sequence[Tensor]) -> list[Tensor]:
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
        """Return the results of one equation, with the rules."""
        row = self.row_of(equation)
        if row is not None and has_input(equation):
            return self.replace(*row, equation, operands)
        primitive = equation.primitive.name
        if row is not None or primitive in OWN_DERIVATIVE:
            return bind_unchanged(equation, operands)
        operations = self.selected_inside(equation)
        if not operations:
            return bind_unchanged(equation, operands)
        name = min(each.name for each in operations)
        refuse_differentiated(equation, name)
        if primitive in ("jit", "pjit"):
            return self.compute_jit(equation, operands)
        handler = INSIDE.get(primitive)
        if handler is None:
            raise RuleValueError(
                f"operation {name!r} is called inside {primitive!r}, whose code cannot be "
                "changed: override the function that is given to it"
            )
        return list(handler(self.run, equation, operands))

    def replace(
        self, operation: CalledOperation, rule: Function, equation: Any, operands: list[Tensor]
    ) -> list[Tensor]:
        refuse_differentiated(equation, operation.name)
        i = input_of(operation, equation)
        tin = jnp.asarray(operands[i])
        # the other operands keep their own gradients
        stopped_operands = [*operands[:i], jax.lax.stop_gradient(tin), *operands[i + 1 :]]
        (out,) = bind_unchanged(equation, stopped_operands)
        return [replace_gradient(rule, rule.name, f"operation {operation.name!r}", tin, out)]

    def compute_jit(self, equation: Any, operands: list[Tensor]) -> list[Tensor]:
        params = equation.params
        closed_jaxpr = params["jaxpr"]
        compiled_call, meanings = self._jitted.get(closed_jaxpr, (None, None))
        if compiled_call is None or meanings != self.meanings():

            def call(*arguments: Tensor) -> list[Tensor]:
                return self.run(closed_ref().jaxpr, closed_ref().consts, arguments)

            # a strong reference would keep its own key of `_jitted` alive
            closed_ref: Any = ref(closed_jaxpr)
            call.__name__ = call.__qualname__ = params["name"]
            compiled_call = jax.jit(call, **jit_options(params))
        results = compiled_call(*operands)
        # The call may have captured a rule: only then is it known what that reads.
        self._jitted[closed_jaxpr] = compiled_call, self.meanings()
        return results

    def meanings(self) -> list[Meanings]:
        """Return the present values of what the rules read that have been captured so far."""
        return [
            look_up_all(getattr(rule, "function", rule).captures.facts) for _, rule in self.rows
        ]


def jit_options(params: dict[str, Any]) -> dict[str, Any]:
    options: dict[str, Any] = {"keep_unused": params["keep_unused"], "inline": params["inline"]}
    for name in ("in_shardings", "out_shardings"):
        if any(hasattr(each, "device_set") or hasattr(each, "spec") for each in params[name]):
            shardings = [each if hasattr(each, "device_set") else None for each in params[name]]
            options[name] = tuple(shardings) if name == "in_shardings" else shardings
    return options


def has_input(equation: Any) -> bool:
    """Return whether a gradient can flow through an equation: from floats to floats."""
    return bool(float_inputs(equation)) and any(map(is_float, equation.outvars))


def float_inputs(equation: Any) -> list[int]:
    atoms = enumerate(equation.invars)
    return [i for i, a in atoms if is_float(a) and not isinstance(a, core.Literal)]


def input_of(operation: CalledOperation, equation: Any) -> int:
    """Return the position of the operand that a rule acts on: the one of the result's shape."""
    if len(equation.outvars) != 1:
        raise RuleValueError(
            f"operation {operation.name!r} has {len(equation.outvars)} results; a rule needs one"
        )
    shape = equation.outvars[0].aval.shape
    floats = float_inputs(equation)
    candidates = [i for i in floats if equation.invars[i].aval.shape == shape] or floats
    return one_input(operation.name, candidates, shape, "a function of one array")


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
# (run, equation, operands) -> results; `run` computes a jaxpr with the rules.


def scan(run: Run, equation: Any, operands: list[Tensor]) -> list[Tensor]:
    params = equation.params
    body, n_carry = params["jaxpr"], params["num_carry"]
    consts, carry, rows = scan_parts(params, operands)

    def turn(carry: Sequence[Tensor], row: Sequence[Tensor]) -> tuple[Any, Any]:
        results = run(body.jaxpr, body.consts, [*consts, *carry, *row])
        return tuple(results[:n_carry]), tuple(results[n_carry:])

    options = {
        k: params[k] for k in ("length", "reverse", "unroll", "_split_transpose") if k in params
    }
    final_carry, stacks = jax.lax.scan(turn, tuple(carry), tuple(rows), **options)
    return [*final_carry, *stacks]


def while_loop(run: Run, equation: Any, operands: list[Tensor]) -> list[Tensor]:
    params = equation.params
    condition, body = params["cond_jaxpr"], params["body_jaxpr"]
    condition_constants, body_constants, carry = while_parts(params, operands)

    def is_going(carry: Sequence[Tensor]) -> Tensor:
        return run(condition.jaxpr, condition.consts, [*condition_constants, *carry])[0]

    def turn(carry: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return tuple(run(body.jaxpr, body.consts, [*body_constants, *carry]))

    return list(jax.lax.while_loop(is_going, turn, tuple(carry)))


def cond(run: Run, equation: Any, operands: list[Tensor]) -> list[Tensor]:
    def chosen(branch: Any, *arguments: Tensor) -> tuple[Tensor, ...]:
        return tuple(run(branch.jaxpr, branch.consts, arguments))

    index, *arguments = operands
    branches = [functools.partial(chosen, branch) for branch in equation.params["branches"]]
    return list(jax.lax.switch(index, branches, *arguments))


def checkpoint(run: Run, equation: Any, operands: list[Tensor]) -> list[Tensor]:
    params = equation.params

    def call(*arguments: Tensor) -> list[Tensor]:
        return run(params["jaxpr"], (), arguments)

    rerun = jax.checkpoint(call, prevent_cse=params["prevent_cse"], policy=params["policy"])
    return list(rerun(*operands))


def shard_map(run: Run, equation: Any, operands: list[Tensor]) -> list[Tensor]:
    params = equation.params

    def call(*arguments: Tensor) -> tuple[Tensor, ...]:
        return tuple(run(params["jaxpr"], (), arguments))

    mapped_call = jax.shard_map(
        call,
        mesh=params["mesh"],
        in_specs=tuple(params["in_specs"]),
        out_specs=tuple(params["out_specs"]),
        axis_names=versions.axes_of_shard_map(params),
        check_vma=params["check_vma"],
    )
    return list(mapped_call(*operands))


def plain_call(run: Run, equation: Any, operands: list[Tensor]) -> list[Tensor]:
    inner = called_jaxpr(equation)
    assert inner is not None  # by the table below
    return run(*inner, operands)


INSIDE = {
    "scan": scan,
    "while": while_loop,
    "cond": cond,
    "checkpoint": checkpoint,
    "remat": checkpoint,
    "remat2": checkpoint,
    "shard_map": shard_map,
    "closed_call": plain_call,
    "core_call": plain_call,
}
