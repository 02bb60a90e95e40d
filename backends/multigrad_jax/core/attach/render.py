"""The source of `jax.custom_vjp` and `jax.custom_jvp` functions from an emitted lowering, and how
they are called.

The rule's forward calls the custom function itself, not its plain forward, as the second derivative
would be lost otherwise.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero
from jax.interpreters import ad, batching, mlir

from multigrad.core.backend.emitted import tuple_of
from multigrad.core.support.lazy_modules import NEEDS_ENGINE, provided
from multigrad.errors import GradientError, UnsupportedOp

from ..compile import is_tracing_kept
from ..kernels.elementwise import is_staged_out, is_tensor
from ..versions import core, primal_of

if TYPE_CHECKING:
    from multigrad.core.backend.emitted import Body, Emitted


Tensor: TypeAlias = jax.Array


def render(emitted: Emitted) -> str:
    # `custom_vjp` hides its arguments, so a function around it refuses arrays for numbers
    if emitted.check_arguments:
        return render_around(emitted, emitted.names.params)
    if emitted.derivative.tangent is not None:
        return render_forward_mode(emitted, emitted.derivative.tangent)
    f, b, name = emitted.forward, emitted.backward, emitted.names.identifier
    inputs = ", ".join(emitted.names.inputs)
    residuals = [*emitted.kept, *emitted.read_params]
    residuals += [f"StaticShape({each}.shape)" for each in emitted.residuals.shapes]
    names = tuple_of(held_names(emitted))
    unpack = f"    {names} = residuals\n" if names != "()" else ""
    gradients = tuple_of([*emitted.gradients(b), *(["None"] * len(emitted.names.params))])
    arguments = f"{inputs}{emitted.arguments}"
    outputs, results = emitted.returned(emitted.names.outputs), emitted.returned(f.results)
    run = run_lines(emitted, outputs, f"{name}({arguments})")
    return f"""\
@custom_vjp
def {name}({inputs}{emitted.signature}):
{f.indented(4)}    return {results}


def forward({arguments}):
{run}{emitted.keep.indented(4)}    return {outputs}, {tuple_of(residuals)}


def backward(residuals, {emitted.names.cotangents[0] if emitted.single else "cotangents"}):
{unpack}{_receive(emitted)}{b.indented(4)}    return {gradients}


{name}.defvjp(forward, backward)
"""


def held_names(emitted: Emitted) -> list[str]:
    shapes = [f"shape_of_{each}" for each in emitted.residuals.shapes]
    return [*emitted.residuals.names, *emitted.read_params, *shapes]


def render_around(emitted: Emitted, arguments: Sequence[str]) -> str:
    name = f"{emitted.names.identifier}_custom"
    custom = replace(
        emitted,
        names=replace(emitted.names, identifier=name, defaults={}),
        checks=replace(emitted.checks, arguments={}, facts={}),
    )
    refuse = "".join(f"    {line}\n" for line in emitted.check_arguments)
    return f"""\
{render(custom)}

def {emitted.names.identifier}({", ".join(emitted.names.inputs)}{emitted.signature}):
{refuse}    return {name}({", ".join([*emitted.names.inputs, *arguments])})
"""


def _receive(emitted: Emitted) -> str:
    lines = [] if emitted.single else [f"{tuple_of(emitted.names.cotangents)} = cotangents"]
    if "key" in emitted.names.params:
        # An eager pullback may be given NumPy's array, which has no device to draw on.
        carrying = zip(emitted.names.cotangents, emitted.carries, strict=True)
        lines += [f"{name} = asarray({name})" for name, carries in carrying if carries]
    return "".join(f"    {line}\n" for line in lines)


@provided
def render_forward_mode(emitted: Emitted, tangent: Body) -> str:
    """Return the source of a `custom_jvp`, and of its tangent map as a function."""
    raise UnsupportedOp(f"forward mode of {emitted.origin.name} {NEEDS_ENGINE}")


def run_lines(emitted: Emitted, outputs: str, call: str) -> str:
    # A rule calls the function itself, whose derivative can be taken again; a loop that gives both
    # outputs and residuals is run instead.
    whole = emitted.code.whole
    if whole is None:
        return f"    {outputs} = {call}\n"
    results = whole.results[: len(emitted.names.outputs)]
    return f"{whole.indented(4)}    {outputs} = {emitted.returned(results)}\n"


# Whether a trace is for a proof, which interprets the jaxpr and never compiles it.
REHEARSED: ContextVar[bool] = ContextVar("multigrad_jax_rehearsed", default=False)


def custom_jvp(compute: Callable[..., Any]) -> Any:
    """Return a `jax.custom_jvp` function that a `scan` keeps where it is differentiated.

    The derivative of a `scan` (jax 0.10) has the bare primal in place of the function, so that a
    second derivative would be the primal's. A checkpoint is left whole there: so the primal, where
    jax stages it out, is the same function in a checkpoint, which recomputes nothing.
    """
    inside = jax.custom_jvp(compute)
    policy = jax.checkpoint_policies.everything_saveable
    whole = jax.checkpoint(inside, prevent_cse=False, policy=policy)

    @functools.wraps(compute)
    def primal(*args: Any) -> Any:
        is_kept = is_tracing_kept() and not REHEARSED.get()
        return (whole if is_kept else compute)(*args)

    function = jax.custom_jvp(primal)
    define = function.defjvp

    def defjvp(rule: Callable[..., Any], symbolic_zeros: bool = False) -> Callable[..., Any]:
        inside.defjvp(rule, symbolic_zeros)
        return define(rule, symbolic_zeros)

    function.defjvp = defjvp
    return function


def tangent_of(given: Any, x: Tensor) -> Any:
    """Return a tangent or cotangent of an array; float0, of no bytes, for an integer."""
    if not jnp.issubdtype(x.dtype, jnp.inexact):
        return np.zeros(x.shape, jax.dtypes.float0)
    return jnp.zeros_like(x) if given is None else jnp.asarray(given, x.dtype)


def no_tangent(output: Tensor) -> Tensor:
    return tangent_of(None, output)


@jax.tree_util.register_static
class StaticShape(tuple[Any, ...]):
    """A shape among the residuals, where jax allows only arrays and registered static objects."""


def custom_vjp(compute: Callable[..., Any]) -> Any:
    """Return a `jax.custom_vjp` function, traced once for all arguments of the same types."""
    native = jax.custom_vjp(traced_once(compute))
    defvjp = native.defvjp
    native.defvjp = lambda forward, backward: defvjp(forward, traced_once(backward, numbers=False))
    return native


def traced_once(run: Callable[..., Any], *, numbers: bool = True) -> Callable[..., Any]:
    """Return a function that, where jax stages it out, writes the equations of its earlier trace
    for arguments of these types; elsewhere it runs.

    `numbers`: whether it runs on Python numbers; an eager pullback may get one as a cotangent.
    """
    stage = staged(run)

    @functools.wraps(run)
    def once(*args: Any) -> Any:
        leaves = jax.tree.leaves(args)
        if all(map(is_tensor, leaves)):
            return (stage if any(map(is_staged_out, leaves)) else run)(*args)
        if numbers:  # as an array it would be a traced argument
            return run(*args)
        residuals, cotangents = args
        return run(
            residuals,
            jax.tree.map(lambda c: jnp.asarray(c) if isinstance(c, float) else c, cotangents),
        )

    once.__signature__ = inspect.signature(run)  # type: ignore[attr-defined]
    return once


def staged(run: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that writes the equations of jax's cached trace inline, or as one call."""
    # Both take the same trace. To write an equation inline costs some twenty Python calls, which
    # a proof avoids by the call.
    inline_run, called_run = jax.jit(run, inline=True), jax.jit(run)

    def stage(*args: Any) -> Any:
        return (called_run if REHEARSED.get() else inline_run)(*args)

    return stage


NAMESPACE = {
    "StaticShape": StaticShape,
    "asarray": jnp.asarray,
    "custom_jvp": custom_jvp,
    "custom_vjp": custom_vjp,
    "no_tangent": no_tangent,
}


def finish(namespace: dict[str, Any], emitted: Emitted) -> Callable[..., Any]:
    native = namespace[emitted.names.identifier]
    native.__doc__ = f"{emitted.origin.name}, as emitted by multigrad."
    if "push" in namespace:
        native.push = namespace["push"]
    return _keyed(native, namespace["draw_key"]) if emitted.draws else native


def _keyed(native: Callable[..., Any], draw_key: Callable[[], Any]) -> Callable[..., Any]:
    # a key may be two ints, and a missing one is refused
    signature = inspect.signature(native)

    @functools.wraps(native)
    def call_with_key(*args: Any, **kwargs: Any) -> Tensor:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        key_argument = bound.arguments["key"]
        key = draw_key() if key_argument is None else key_words(key_argument)
        return native(**{**bound.arguments, "key": key})

    return call_with_key


def key_words(key: Tensor) -> Tensor:
    # NumPy's array belongs to no trace, and so cannot leak from one
    return np.array(key, np.uint32) if isinstance(key, tuple) else key


def is_manual() -> bool:
    """Return whether code is in a `shard_map`, or a `pmap`."""
    return bool(jax.sharding.get_abstract_mesh().manual_axes)


@provided
def in_shards(native: Any, emitted: Emitted) -> Callable[..., Any]:
    """Return a custom function for shards."""
    raise UnsupportedOp(f"{emitted.origin.name} in a jax.shard_map {NEEDS_ENGINE}")


def call(native: Any, emitted: Emitted) -> Callable[..., Any]:
    """Return the function as the hot path calls it: on arrays, or with a key of two ints."""
    has_key = "key" in emitted.names.params
    count = len(emitted.names.inputs)
    # made at the first call in a `shard_map`, which many functions never see
    shard_forms: list[Callable[..., Any]] = []
    unsharded = native
    if emitted.derivative.dual is not None and isinstance(native, jax.custom_vjp):
        unsharded = in_both_modes(native, emitted)

    def run(*values: Any) -> Any:
        if not is_manual():
            return unsharded(*values)
        if not shard_forms:
            shard_forms.append(in_shards(native, emitted))
        return shard_forms[0](*values)

    def call_with_arrays(*values: Any) -> Any:
        inputs = map(make_strong, values[:count])
        if has_key:
            return run(*inputs, *values[count:-1], key_words(values[-1]))
        return run(*inputs, *values[count:])

    return call_with_arrays


def make_strong(x: Tensor) -> Tensor:
    """Return an array without a weak type, which custom_vjp (jax 0.10) would pass as a number."""
    return jax.lax.convert_element_type(x, x.dtype) if x.weak_type else x


# --- both modes in one object: what a call of a Function runs -------------------------------------
# `custom_vjp` (jax 0.10) has no forward mode, and the transpose of a `custom_jvp` rule keeps what
# that reads. So this rule computes the residuals, and applies one primitive to them and the
# tangents, which is linear in the tangents: forward mode runs it as the tangent map, and its
# transpose is the emitted backward.
# (residuals, linear arguments) -> results
Linear: TypeAlias = Callable[[Sequence[Tensor], Sequence[Tensor]], Sequence[Tensor]]
MOVED = core.Primitive("multigrad_tangents")
MOVED.multiple_results = True


@dataclass(frozen=True, slots=True, eq=False)
class LinearPair:
    """A map that is linear in all but its residuals, with its transpose.

    Attributes:
        count: the number of residuals, which come first among the arguments.
        found: the types of the results.
    """

    run: Linear
    transposed: Linear
    count: int
    found: tuple[Any, ...]

    def apply(self, *args: Tensor) -> list[Tensor]:
        return list(self.run(args[: self.count], args[self.count :]))

    def mapped(self, axis: Any, axes: tuple[Any, ...]) -> LinearPair:
        """Return the map over axis 0 of its linear arguments, and over `axes` of the residuals."""
        words = {"axis_size": axis.size, "axis_name": axis.name, "spmd_axis_name": axis.spmd_name}

        def over(run: Linear) -> Linear:
            mapped_run = jax.vmap(run, in_axes=(axes, 0), **words)
            return lambda residuals, arguments: mapped_run(tuple(residuals), tuple(arguments))

        types = tuple([type_.update(shape=(axis.size, *type_.shape)) for type_ in self.found])
        return LinearPair(over(self.run), over(self.transposed), self.count, types)


@MOVED.def_impl
def _compute(*args: Tensor, pair: LinearPair) -> list[Tensor]:
    return pair.apply(*args)


@MOVED.def_abstract_eval
def _describe(*_: Any, pair: LinearPair) -> tuple[Any, ...]:
    return pair.found


def _transpose(cotangents: Sequence[Any], *args: Any, pair: LinearPair) -> list[Any]:
    residuals, linear = args[: pair.count], args[pair.count :]
    full_cotangents = [ad.instantiate_zeros(cotangent) for cotangent in cotangents]
    transposed = pair.transposed(residuals, full_cotangents)
    are_asked = map(ad.is_undefined_primal, linear)
    gradients = [
        each if is_asked else None for each, is_asked in zip(transposed, are_asked, strict=True)
    ]
    return [None] * pair.count + gradients


def _push(primals: Sequence[Tensor], tangents: Sequence[Any], *, pair: LinearPair) -> Any:
    # by jax's own derivative of the map, with respect to its residuals too
    moves = [ad.instantiate_zeros(tangent) for tangent in tangents]
    return jax.jvp(pair.apply, list(primals), moves)


def _batch(axis: Any, args: Sequence[Tensor], axes: Sequence[Any], *, pair: LinearPair) -> Any:
    # jax asks this rule even where nothing is mapped, and then nothing may become so
    if all(place is None for place in axes):
        return MOVED.bind(*args, pair=pair), [None] * len(pair.found)
    size, count = axis.size, pair.count
    linear = [
        jnp.broadcast_to(x, (size, *x.shape)) if place is None else jnp.moveaxis(x, place, 0)
        for x, place in zip(args[count:], axes[count:], strict=True)
    ]
    results = MOVED.bind(*args[:count], *linear, pair=pair.mapped(axis, tuple(axes[:count])))
    return results, [0] * len(results)


ad.primitive_transposes[MOVED] = _transpose
ad.primitive_jvps[MOVED] = _push
batching.fancy_primitive_batchers[MOVED] = _batch
mlir.register_lowering(
    MOVED, mlir.lower_fun(lambda *args, pair: pair.apply(*args), multiple_results=True)
)


def within(namespace: dict[str, Any], function: Any) -> Any:
    """Return an emitted function with another namespace for its globals."""
    copy = types.FunctionType(
        function.__code__, namespace, function.__name__, function.__defaults__
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


def in_both_modes(native: Any, emitted: Emitted) -> Any:
    """Return a function with the gradient of an emitted `custom_vjp`, and forward mode as well."""
    namespace = dict(inspect.unwrap(primal_of(native)).__globals__)
    forward = within(namespace, inspect.unwrap(native.fwd))
    count, dual = len(emitted.names.inputs), emitted.derivative.dual
    assert dual is not None
    wrt_positions = [i for i, name in enumerate(emitted.names.inputs) if name in emitted.names.wrt]
    targets = [i for i, carries in enumerate(emitted.carries) if carries]

    def rule(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> Any:
        outputs, residuals = forward(*primals)
        flat_outputs = (outputs,) if emitted.single else outputs
        # symbolic zeros would cost a tangent map for inputs that nothing moves
        sources = [i for i in wrt_positions if type(tangents[i]) is not SymbolicZero]
        arrays, tree = jax.tree.flatten(residuals)
        types = [jax.typeof(x).to_tangent_aval() for x in primals[:count]]
        out_types = [jax.typeof(y).to_tangent_aval() for y in flat_outputs]

        def push(leaves: Sequence[Tensor], tangents_in: Sequence[Tensor]) -> Sequence[Tensor]:
            moves = dict(zip(sources, tangents_in, strict=True))
            directions = [moves[i] if i in moves else _zeros(types[i]) for i in range(count)]
            try:
                emitted_push = dual().native.push
            except UnsupportedOp as error:
                raise GradientError(str(error)) from error
            shapes = tuple(map(_zeros, out_types))
            return emitted_push(jax.tree.unflatten(tree, leaves), directions, shapes)

        def pull(leaves: Sequence[Tensor], cotangents_in: Sequence[Tensor]) -> Sequence[Tensor]:
            upstream = dict(zip(targets, cotangents_in, strict=True))
            seeds = [upstream[i] if i in upstream else _zeros(t) for i, t in enumerate(out_types)]
            cotangents = seeds[0] if emitted.single else tuple(seeds)
            gradients = native.bwd(jax.tree.unflatten(tree, leaves), cotangents)
            return [gradients[i] for i in sources]

        by_output: dict[int, Tensor] = {}
        if sources and targets:
            pair = LinearPair(push, pull, len(arrays), tuple(out_types[i] for i in targets))
            results = MOVED.bind(*arrays, *[tangents[i] for i in sources], pair=pair)
            by_output.update(zip(targets, results, strict=True))
        changes = [by_output[i] if i in by_output else _zeros(t) for i, t in enumerate(out_types)]
        return outputs, changes[0] if emitted.single else tuple(changes)

    function = custom_jvp(primal_of(native))
    function.defjvp(rule, symbolic_zeros=True)
    function.in_reverse_mode = native
    # the emitted forward calls the function by name: from here on, this one
    namespace[emitted.names.identifier] = function
    return function


def _zeros(type_: Any) -> Tensor:
    make = np.zeros if type_.dtype == jax.dtypes.float0 else jnp.zeros
    return make(type_.shape, type_.dtype)
