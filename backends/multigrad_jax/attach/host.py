"""A `custom_vjp` around code that is not emitted: another framework's, or the user's, unchanged.

Another framework's: eager code gives the guest jax's memory directly and keeps the guest's pullback
among the residuals. Where jax stages code out, a callback calls the guest with NumPy's view of the
memory, and backward begins with a second forward: nothing but arrays may pass from one to the
other.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from multigrad.backend import Backend, Guest, Kind, Pull, SharedBuffer, kind_of, make_zeros
from multigrad.capture.user_code.inspection import contents
from multigrad.functions.calls.arguments import replace_at
from multigrad.functions.function import Function

from ..distributed import Varying, vary_alike, vary_as, varying
from ..kernels.random import place_like
from ..versions import custom_vjp_of_values, take_current_trace
from .render import make_strong
from .vjp import forbid_derivative

Tensor: TypeAlias = jax.Array
Run: TypeAlias = Callable[..., Any]
Pullback: TypeAlias = Callable[..., tuple[Tensor | None, ...]]
WIDE = ("float64", "int64", "uint64")  # dtypes that jax makes narrower by default


def precision(dtype: str) -> AbstractContextManager[Any]:
    """Return a context that keeps a dtype: jax narrows 64 bits to 32 by default."""
    return jax.enable_x64(True) if dtype in WIDE else nullcontext()


def is_traced(x: Any) -> bool:
    return isinstance(x, jax.core.Tracer)


def is_weak(value: Any) -> bool:
    return getattr(value, "weak_type", False)


def find_weak(run: Callable[..., Any], arrays: Sequence[Any]) -> Sequence[bool]:
    """Return which results of a function are weakly typed; () if jax cannot trace it."""
    structs = [jax.ShapeDtypeStruct(x.shape, x.dtype, weak_type=is_weak(x)) for x in arrays]
    try:
        return [*map(is_weak, jax.eval_shape(run, *structs))]
    except Exception:  # noqa: BLE001 (it is the user's code, which looks at values)
        return ()


def weak(value: Any, dtype: Any) -> Any:
    """Return a scalar that does not promote the tensor that it meets."""
    if isinstance(value, bool | int | float) or is_weak(value):
        return value
    return value.astype(dtype)


def lend(x: jax.Array) -> SharedBuffer:
    """Return an array for other frameworks to read, without a copy if it is on the CPU."""
    device = next(iter(x.devices()))
    exporter = x if device.platform == "cpu" and len(x.devices()) == 1 else None
    return SharedBuffer(x.dtype.name, x.shape, partial(np.asarray, x), exporter)


def borrow(lent: SharedBuffer, own: bool = False) -> jax.Array:
    with precision(lent.dtype):  # whatever the user's mode is: a lent dtype must not be narrowed
        if own or lent.exporter is None:
            return jnp.array(lent.array(), copy=own)
        return jax.dlpack.from_dlpack(lent.exporter)


def bridge(guest: Guest, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Apply code of another framework whose gradient flows back in jax's autodiff."""
    # a weakly typed input would reach the rules as a Python number (jax 0.10)
    return apply(guest, *map(make_strong, map(jnp.asarray, tensors)))


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def apply(guest: Guest, *tensors: Tensor) -> tuple[Tensor, ...]:
    if is_at_hand(tensors):
        outputs = guest.run([lend(x) for x in tensors])
        return tuple(place(borrow(y, guest.owns), tensors) for y in outputs)
    kinds = guest.infer([kind_of(x) for x in tensors])
    return call_back(guest, guest.run, tensors, kinds)


@jax.tree_util.register_static
class GuestResiduals:
    """The guest's pullback among the residuals, with the kinds and devices of its inputs."""

    def __init__(self, pull: Pull, inputs: Sequence[Tensor]) -> None:
        self.pull = pull
        self.kinds = [kind_of(x) for x in inputs]
        self.places = [x.sharding for x in inputs]


def keep(guest: Guest, *tensors: Tensor) -> tuple[tuple[Tensor, ...], Any]:
    if is_at_hand(tensors):
        buffers, pull = guest.record([lend(x) for x in tensors])
        outputs = tuple(place(borrow(y, guest.owns), tensors) for y in buffers)
        return outputs, (GuestResiduals(pull, tensors), ())
    return apply(guest, *tensors), (None, tensors)  # under another derivative: `apply` has its own


def pull_back(
    guest: Guest, residuals: Any, cotangents: tuple[Tensor, ...]
) -> tuple[Tensor | None, ...]:
    guest_residuals, tensors = residuals
    cotangents_in = [
        jnp.asarray(c)
        if guest.carries(i, str(c.dtype))
        else None  # that of an integer has no bytes
        for i, c in enumerate(cotangents)
    ]
    if guest_residuals is not None and is_at_hand([c for c in cotangents_in if c is not None]):
        lent = guest_residuals.pull([None if c is None else lend(c) for c in cotangents_in])
        return tuple(
            None if g is None else jax.device_put(borrow(g, guest.owns), sharding)
            for g, sharding in zip(lent, guest_residuals.places, strict=True)
        )
    kinds = [kind_of(x) for x in tensors] if guest_residuals is None else guest_residuals.kinds
    # A callback has no derivative of its own, so a second derivative raises here.
    guard = forbid_derivative(str(guest.refusal()))
    tensors = tuple(guard(x) if jnp.issubdtype(x.dtype, jnp.inexact) else x for x in tensors)
    are_carried = [c is not None for c in cotangents_in]
    arrays = [guard(c) for c in cotangents_in if c is not None]

    def backward(buffers: Sequence[SharedBuffer]) -> list[SharedBuffer]:
        cotangent_buffers = iter(buffers[len(tensors) :])
        upstream = [next(cotangent_buffers) if is_carried else None for is_carried in are_carried]
        gradients = (
            guest_residuals.pull(upstream)
            if guest_residuals is not None
            else guest.gradients(buffers[: len(tensors)], upstream)
        )
        return [gradients[i] or _zeros(kinds[i]) for i in guest.wrt]

    results = call_back(guest, backward, (*tensors, *arrays), [kinds[i] for i in guest.wrt])
    gradients = dict(zip(guest.wrt, results, strict=True))
    return tuple(gradients.get(i) for i in range(len(kinds)))


apply.defvjp(keep, pull_back)


def call_back(
    guest: Guest,
    function: Callable[[Sequence[SharedBuffer]], list[SharedBuffer]],
    tensors: tuple[Tensor, ...],
    kinds: Sequence[Kind],
) -> tuple[Tensor, ...]:
    types = tuple(jax.ShapeDtypeStruct(shape, jnp.dtype(name)) for shape, name in kinds)

    def call(*arrays: Tensor) -> tuple[np.ndarray[Any, Any], ...]:
        return tuple(y.array() for y in function([lend(x) for x in arrays]))

    # a batched guest takes the mapped axis itself
    method = "broadcast_all" if getattr(guest, "is_batched", False) else "sequential"
    return tuple(jax.pure_callback(call, types, *tensors, vmap_method=method))


def _zeros(kind: Kind) -> SharedBuffer:
    shape, dtype = kind
    return make_zeros(tuple(n or 0 for n in shape), dtype)


def is_at_hand(tensors: Sequence[Tensor]) -> bool:
    """Return whether code runs now on values, not on tracers."""
    with take_current_trace() as trace:
        pass
    return is_eager(trace) and not any(map(is_traced, tensors))


def place(y: Tensor, tensors: Sequence[Tensor]) -> Tensor:
    """Move a result to the device of an input of its shape, if there is one."""
    like = next((x for x in tensors if x.shape == y.shape), None)
    return y if like is None else place_like(y, like)


# --- the user's own forward and backward code -----------------------------------------------------
# In eager code, and derivatives of it, the user's code gets values, so it may branch on them. Where
# jax stages code out, or the function closes over a tracer, it is traced once: the values that it
# closes over and those that its backward keeps become arguments and residuals, as `custom_vjp` (jax
# 0.10) would leak them.
EAGER = ("EvalTrace", "JVPTrace", "LinearizeTrace")  # traces that compute at once
CLOSED = (str, bytes, int, float, complex, type, types.ModuleType, jax.Array, Backend)
MOST_OBJECTS = 10_000  # searched for a tracer; beyond that, none is assumed


def attach_function(run: Run, tensors: tuple[Tensor, ...], name: str) -> tuple[Tensor, ...]:
    """Apply a function to tensors; its own gradient flows back to them.

    Args:
        run: `run(*tensors) -> (outputs, pull, undifferentiable)`; `pull(*cotangents)` gives a
            gradient or None for each tensor, `undifferentiable` are positions of outputs without
            gradients.
    """
    with take_current_trace() as trace:
        pass
    strong = tuple(map(make_strong, tensors))
    if type(trace).__name__ == "EvalTrace":  # no derivative is taken
        return tuple(map(jnp.asarray, run(*strong)[0]))
    attach = _attach_at_once if is_eager(trace) and not has_tracer(run, tensors) else _attach_traced
    outputs, undifferentiable = attach(run, vary_alike(strong), name)
    return tuple(
        jax.lax.stop_gradient(output) if i in undifferentiable else output
        for i, output in enumerate(outputs)
    )


def is_eager(trace: Any) -> bool:
    while trace is not None:
        if type(trace).__name__ not in EAGER:
            return False
        trace = getattr(trace, "parent_trace", None)
    return True


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
        yield from getattr(value, "__dict__", {}).values()
        for kind in type(value).__mro__:
            slots = kind.__dict__.get("__slots__", ())
            names = (slots,) if isinstance(slots, str) else slots
            yield from (getattr(value, name, None) for name in names if name != "__weakref__")
