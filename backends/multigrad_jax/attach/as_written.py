"""A `custom_vjp` around the user's own forward and backward, which run as they are written.

In eager code, and derivatives of it, the user's code gets values, so it may branch on them. Where
jax stages code out, or the function closes over a tracer, it is traced once: the values that it
closes over and those that its backward keeps become arguments and residuals, as `custom_vjp` (jax
0.10) would leak them.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp

from multigrad.core.backend.contract import Backend
from multigrad.engine.capture.user_code.inspection import contents
from multigrad.engine.functions.calls.arguments import replace_at
from multigrad.engine.functions.function import Function
from multigrad.engine.trace.contents import attributes_of

from ..core.attach.host import is_traced
from ..core.attach.render import make_strong
from ..core.versions import custom_vjp_of_values, kinds_of_traces
from ..distributed import Varying, vary_alike, vary_as, varying
from .vjp import forbid_derivative

Tensor: TypeAlias = jax.Array
Run: TypeAlias = Callable[..., Any]
Pullback: TypeAlias = Callable[..., tuple[Tensor | None, ...]]
EAGER = frozenset({"EvalTrace", "JVPTrace", "LinearizeTrace"})  # traces that compute at once
CLOSED = (str, bytes, int, float, complex, type, types.ModuleType, jax.Array, Backend)
MOST_OBJECTS = 10_000  # searched for a tracer; beyond that, none is assumed


def attach_function(run: Run, tensors: tuple[Tensor, ...], name: str) -> tuple[Tensor, ...]:
    """Apply a function to tensors; its own gradient flows back to them.

    Args:
        run: `run(*tensors) -> (outputs, pull, undifferentiable)`; `pull(*cotangents)` gives a
            gradient or None for each tensor, `undifferentiable` are positions of outputs without
            gradients.
    """
    strong = tuple(map(make_strong, tensors))
    if kinds_of_traces()[0] == "EvalTrace":  # no derivative is taken
        return tuple(map(jnp.asarray, run(*strong)[0]))
    attach = _attach_at_once if is_eager() and not has_tracer(run, tensors) else _attach_traced
    outputs, undifferentiable = attach(run, vary_alike(strong), name)
    return tuple(
        jax.lax.stop_gradient(output) if i in undifferentiable else output
        for i, output in enumerate(outputs)
    )


def is_eager() -> bool:
    return EAGER.issuperset(kinds_of_traces())


@jax.tree_util.register_static
class _Kept:
    """The user's pullback among the residuals, with the types of its outputs."""

    def __init__(self, pull: Pullback, outputs: tuple[Tensor, ...]) -> None:
        self.pull = pull
        self.types = tuple(jax.typeof(output) for output in outputs)


def _attach_at_once(
    run: Run, tensors: tuple[Tensor, ...], name: str
) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
    last_positions: list[tuple[int, ...]] = []  # of the outputs without gradients in the last run

    def compute(*inputs: Tensor) -> tuple[tuple[Tensor, ...], Pullback]:
        outputs, pull, undifferentiable = run(*map(jnp.asarray, inputs))  # jax may pass NumPy's
        last_positions[:] = [undifferentiable]
        return tuple(map(jnp.asarray, outputs)), pull

    @custom_vjp_of_values
    def native(*inputs: Tensor) -> tuple[Tensor, ...]:
        return compute(*inputs)[0]

    def keep(*inputs: Tensor) -> tuple[tuple[Tensor, ...], _Kept]:
        outputs, pull = compute(*inputs)
        if any(map(is_traced, inputs)):
            outputs = native(*inputs)  # the outer derivative must use the user's too
        return outputs, _Kept(pull, outputs)

    def pull_back(residuals: _Kept, cotangents: tuple[Tensor, ...]) -> tuple[Tensor | None, ...]:
        # the cotangent of an integer output is float0 to jax, and zeros to the user's code
        upstream = [
            jnp.asarray(c) if jnp.issubdtype(t.dtype, jnp.inexact) else jnp.zeros(t.shape, t.dtype)
            for c, t in zip(cotangents, residuals.types, strict=True)
        ]
        return vary_as(
            tuple(None if g is None else jnp.asarray(g) for g in residuals.pull(*upstream)), axes
        )

    axes = Varying(map(varying, tensors))
    native.defvjp(keep, pull_back)
    native.__name__ = name
    return native(*tensors), last_positions[0]


class _Traced:
    """The jaxprs of a function's forward, and of its backward from the residuals.

    One run of the user's function records both; an instance lives while a call is traced.
    """

    def __init__(self, run: Run, tensors: tuple[Tensor, ...]) -> None:
        self.run = run
        # the next three are filled by `_forward`, when make_jaxpr runs it
        self.undifferentiable: tuple[int, ...] = ()
        self.carrying: tuple[int, ...] = ()
        self.receiving: tuple[int, ...] = ()
        self.count = len(tensors)
        self.backward: Any = None
        self.failure: Exception | None = None
        closed_jaxpr, shapes = jax.make_jaxpr(self._forward, return_shape=True)(*tensors)
        self.outputs = len(shapes[0])
        self.forward, self.closed_over = closed_jaxpr.jaxpr, tuple(closed_jaxpr.consts)

    def _forward(self, *tensors: Tensor) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        outputs, pull, self.undifferentiable = self.run(*tensors)
        outputs = tuple(map(jnp.asarray, outputs))
        self.carrying = tuple(
            i
            for i, output in enumerate(outputs)
            if jnp.issubdtype(output.dtype, jnp.inexact) and i not in self.undifferentiable
        )

        def gradients(*cotangents: Tensor) -> list[Tensor]:
            zeros = [jnp.zeros_like(output) for output in outputs]
            pulled_gradients = pull(*replace_at(zeros, self.carrying, cotangents))
            self.receiving = tuple(i for i, each in enumerate(pulled_gradients) if each is not None)
            return [jnp.asarray(pulled_gradients[i]) for i in self.receiving]

        examples = [make_strong(outputs[i]) for i in self.carrying]
        try:
            closed_jaxpr = jax.make_jaxpr(gradients)(*examples)
        except Exception as failure:  # noqa: BLE001  (any of the user's: raised with a gradient)
            self.failure = failure
            return outputs, ()
        self.backward = closed_jaxpr.jaxpr
        return outputs, tuple(closed_jaxpr.consts)

    def compute(
        self, closed_over: Sequence[Tensor], tensors: Sequence[Tensor]
    ) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        results = jax.core.eval_jaxpr(self.forward, closed_over, *tensors)
        return tuple(results[: self.outputs]), tuple(results[self.outputs :])

    def pull(
        self, residuals: tuple[Tensor, ...], cotangents: tuple[Tensor, ...]
    ) -> tuple[Tensor | None, ...]:
        """Return a gradient or None for each tensor; raise if the backward could not be traced."""
        if self.failure is not None:
            raise self.failure
        upstream = [cotangents[i] for i in self.carrying]
        results = jax.core.eval_jaxpr(self.backward, residuals, *upstream)
        gradients = dict(zip(self.receiving, results, strict=True))
        return tuple(gradients.get(i) for i in range(self.count))


def _attach_traced(
    run: Run, tensors: tuple[Tensor, ...], name: str
) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
    jaxprs = _Traced(run, tensors)
    count = len(jaxprs.closed_over)

    @custom_vjp_of_values
    def native(closed_over: tuple[Tensor, ...], inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return jaxprs.compute(closed_over, inputs)[0]

    def keep(closed_over: tuple[Tensor, ...], inputs: tuple[Tensor, ...]) -> tuple[Any, Any]:
        return native(closed_over, inputs), jaxprs.compute(closed_over, inputs)[1]

    def pull_back(residuals: tuple[Tensor, ...], cotangents: tuple[Tensor, ...]) -> tuple[Any, Any]:
        return (None,) * count, vary_as(jaxprs.pull(residuals, cotangents), axes)

    axes = Varying(map(varying, tensors))
    native.defvjp(keep, pull_back)
    native.__name__ = name
    return native(refuse_derivative(jaxprs.closed_over, name), tensors), jaxprs.undifferentiable


def refuse_derivative(closed_over: tuple[Tensor, ...], name: str) -> tuple[Tensor, ...]:
    """Return closed-over values of which a derivative raises: the function's gradient has none."""
    refuse = forbid_derivative(
        f"function {name!r} reads a value from around it with respect to which a derivative is "
        "taken, and its gradient has none for it. Pass the value as an argument, or stop its "
        "gradient: jax.lax.stop_gradient(value)"
    )
    return tuple(
        refuse(each) if jnp.issubdtype(jnp.result_type(each), jnp.inexact) else each
        for each in closed_over
    )


def has_tracer(function: Callable[..., Any], arguments: Sequence[Tensor]) -> bool:
    """Return whether a function reaches a tracer other than its own arguments."""
    # identities: arrays have no truth value and may be unhashable
    visited = {id(each) for each in arguments}
    stack: list[Any] = [function]
    for _ in range(MOST_OBJECTS):
        if not stack:
            break
        value = stack.pop()
        if id(value) in visited:
            continue
        visited.add(id(value))
        if is_traced(value):
            return True
        # through closures, defaults and attributes
        stack.extend(held(value))
    return False


def held(value: Any) -> Iterator[Any]:
    if value is None or isinstance(value, CLOSED):
        return
    if isinstance(value, types.FunctionType):
        yield from (contents(cell) for cell in value.__closure__ or ())
        yield from (value.__defaults__, value.__kwdefaults__)
    elif isinstance(value, types.MethodType):
        yield from (value.__func__, value.__self__)
    elif isinstance(value, functools.partial):
        yield from (value.func, value.args, value.keywords)
    elif isinstance(value, list | tuple | set | frozenset):
        yield from value
    elif isinstance(value, dict):
        yield from value.values()
    elif isinstance(value, Function):
        yield value.recipe
    else:
        yield from (each for _, each in attributes_of(value))
