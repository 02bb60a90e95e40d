"""NumPy: the reference backend, and the meaning of a rule.

Scalars are cast to the input's dtype before they meet it (`weak`), since NumPy would promote bfloat16. Floating-point
warnings are silent: inf and NaN are results here as in every framework.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import random
from ..ir import ops
from ..ir.meaning import as_numpy_dtype
from ..ir.types import T, Type
from .backend import Backend
from .patterns import enabled
from .reference_bridge import borrow, bridge, lend, outside
from .reference_differences import DIFFERENCES
from .reference_kernels import FAST, by_blocks

if TYPE_CHECKING:
    from .code import Lowering

Array = Any

OPS = {op: op.numpy for op in ops.CALLABLE_OPS if op.symbol is None}


def tensor_types() -> tuple[type, ...]:
    return (np.ndarray, np.generic)


def weak(value: Any, dtype: Any) -> Any:
    """Return a Python number as a scalar of the tensor's dtype."""
    return dtype.type(value)


def quiet(function: Callable[..., Any]) -> Callable[..., Any]:
    """Silence floating-point warnings and return an array of the input's dtype."""

    @functools.wraps(function)
    def call(x: Array, *args: Any) -> Array:
        x = np.asarray(x)
        args = tuple(np.asarray(a) if isinstance(a, np.generic) else a for a in args)
        with np.errstate(all="ignore"):
            return np.asarray(function(x, *args), dtype=x.dtype)

    return call


def silent(function: Callable[..., Any]) -> Callable[..., Any]:
    """Silence floating-point warnings."""

    @functools.wraps(function)
    def call(*args: Any) -> Any:
        with np.errstate(all="ignore"):
            return function(*args)

    return call


class ReferenceFunction:
    """A Function on NumPy: `f(*inputs)` is the forward, `f.vjp(*inputs)` gives the output and the pullback.

    Run-time params follow the inputs. With several outputs there is a tuple of them, and the pullback takes a tuple
    of cotangents (None: zero); with several inputs it returns a tuple of gradients.

    Example:
        >>> f = xg.lower("triangular", "numpy", forward="Heaviside")
        >>> y, pullback = f.vjp(x)
        >>> grad_in = pullback(np.ones_like(y))
    """

    def __init__(
        self,
        forward: Callable[..., Any],
        keep: Callable[..., tuple[Array, ...]],
        backward: Callable[..., Any],
        lowering: Lowering,
    ) -> None:
        self.forward = forward
        self.keep = keep
        self.backward = backward
        self.name = lowering.name
        self.count = len(lowering.inputs)
        self.single = lowering.single
        self.carries = lowering.carries
        self.shapes = tuple(lowering.inputs.index(name) for name in lowering.shapes)
        self.random = lowering.draws
        self.defaults = tuple(lowering.defaults.get(name) for name in lowering.params)
        self.read = tuple(lowering.params.index(name) for name in lowering.forward_params)

    def __repr__(self) -> str:
        return f"<NumPy function {self.name}>"

    def _split(self, args: tuple[Any, ...]) -> tuple[tuple[Array, ...], tuple[Any, ...]]:
        """Return the inputs as arrays, and the params with their defaults."""
        given = args[self.count :]
        values = (*given, *self.defaults[len(given) :])
        if self.random and values[-1] is None:
            values = (*values[:-1], random.draw_key())
        return tuple(map(np.asarray, args[: self.count])), values

    def __call__(self, *args: Any) -> Any:
        """Return the output, or the outputs, for the inputs."""
        inputs, values = self._split(args)
        return self.forward(*inputs, *(values[i] for i in self.read))

    def vjp(self, *args: Any) -> tuple[Any, Callable[..., Any]]:
        """Return the output for the inputs, and the map from its cotangent to the gradients."""
        inputs, values = self._split(args)
        output = self.forward(*inputs, *(values[i] for i in self.read))
        outputs = (output,) if self.single else output
        like = tuple((each.shape, each.dtype) for each in outputs)
        shapes = tuple(inputs[i].shape for i in self.shapes)
        kept = self.keep(*inputs, *outputs, *values)
        return output, self._pull(like, (*kept, *values, *shapes))

    def _pull(self, like: tuple[Any, ...], kept: tuple[Any, ...]) -> Callable[..., Any]:
        """Return the pullback; it holds the residuals and nothing else."""

        def pullback(cotangent: Any) -> Any:
            given = (cotangent,) if self.single else cotangent
            cotangents = (
                as_cotangent(each, *known) for each, known in zip(given, like, strict=True)
            )
            return self.backward(*cotangents, *kept)

        return pullback


def as_cotangent(cotangent: Array | None, shape: tuple[int, ...], dtype: Any) -> Array:
    """Return a cotangent as an array of its output's dtype; None is zero."""
    return np.zeros(shape, dtype) if cotangent is None else np.asarray(cotangent, dtype=dtype)


def quiet_arrays(
    function: Callable[..., Any], types: Sequence[Type | None], like: int | None, single: bool
) -> Callable[..., Any]:
    """Silence floating-point warnings and return arrays of these types; None for a result that is None.

    `like` is the position of an argument whose dtype T is.
    """

    @functools.wraps(function)
    def call(*args: Any) -> Any:
        with np.errstate(all="ignore"):
            results = function(*args)
        own = None if like is None else args[like].dtype
        arrays = tuple(
            None if type_ is None else np.asarray(result, dtype=own if type_.dtype == T else None)
            for result, type_ in zip(results, types, strict=True)
        )
        return arrays[0] if single else arrays

    return call


def render(lowering: Lowering) -> str:
    """Return the source of forward, of what it keeps, and of backward."""
    f, k, b = lowering.fast.forward, lowering.fast.keep, lowering.fast.backward
    computed = iter(k.results)
    kept = "".join(
        f"{next(computed) if name in lowering.computed else name}, " for name in lowering.residuals
    )
    residuals = "".join(f", {name}" for name in lowering.residuals)
    shapes = "".join(f", shape_of_{name}" for name in lowering.shapes)
    inputs, cotangents = ", ".join(lowering.inputs), ", ".join(lowering.cotangents)
    outputs = ", ".join(lowering.outputs)
    given = "".join(f", {name}" for name in lowering.forward_params)
    result, gradients = f.result, lowering.gradients(b)[0]
    if not is_plain(lowering):
        result = f"({f.result},)"
        gradients = f"({', '.join(lowering.gradients(b))},)"
    return f"""\
def forward({inputs}{given}):
{f.indented(4)}    return {result}


def keep({inputs}, {outputs}{lowering.arguments}):
{k.indented(4)}    return ({kept.strip()})


def backward({cotangents}{residuals}{lowering.arguments}{shapes}):
{b.indented(4)}    return {gradients}
"""


def is_plain(lowering: Lowering) -> bool:
    """Return whether there is one input and one output of the same shape and dtype, as under a rule."""
    return lowering.inputs == ("tin",) and lowering.single and not lowering.forward_params


def finish(namespace: dict[str, Any], lowering: Lowering) -> ReferenceFunction:
    forward, backward = namespace["forward"], namespace["backward"]
    if is_plain(lowering):
        if enabled("numpy.blocks"):
            forward = by_blocks(forward) if lowering.forward.elementwise else forward
            backward = by_blocks(backward) if lowering.backward.elementwise else backward
        # What computes nothing cannot warn: at 1e6 elements of clip_norm two guards are 2 of 135 us.
        code = lowering.fast.forward
        forward = np.asarray if code.result == "tin" and not code.lines else quiet(forward)
        backward = quiet(backward)
    else:
        forward, backward = _finish_pair(forward, backward, lowering)
    keep = silent(namespace["keep"]) if lowering.computed else namespace["keep"]
    return ReferenceFunction(forward, keep, backward, lowering)


def _finish_pair(
    forward: Callable[..., Any], backward: Callable[..., Any], lowering: Lowering
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return the functions of any inputs and outputs, whose results are arrays."""
    pair = lowering.pair
    assert pair is not None
    nodes = {node.attr("name"): node for node in (*pair.backward.inputs, *pair.forward.inputs)}
    given = [nodes[name].type if name in nodes else None for name in lowering.inputs]
    found = dict(zip(lowering.wrt, (n.type for n in pair.backward.outputs), strict=True))
    types = [found.get(name) for name in lowering.inputs]
    return (
        quiet_arrays(
            forward, [n.type for n in pair.forward.outputs], first_float(given), lowering.single
        ),
        quiet_arrays(
            backward,
            types,
            first_float([n.type for n in pair.forward.outputs]),
            len(lowering.inputs) == 1,
        ),
    )


def first_float(types: Sequence[Type | None]) -> int | None:
    """Return the position of the first tensor of the dtype T."""
    return next((i for i, t in enumerate(types) if t is not None and t.dtype == T), None)


def attach_native(
    forward: Callable[..., Array], backward: Callable[..., Array], name: str
) -> Callable[..., Array]:
    return lambda tin, values: quiet(forward)(tin)


def attach_function(
    run: Callable[..., Any], tensors: tuple[Array, ...], name: str
) -> tuple[Array, ...]:
    return run(*tensors)[0]


def call(native: ReferenceFunction, lowering: Lowering) -> Callable[..., Array]:
    if is_plain(lowering):
        forward = native.forward
        return lambda tin, *values: forward(tin)
    return native


def is_traced(value: Any) -> bool:
    return False


backend = Backend(
    name="numpy",
    module="numpy",
    distribution="numpy",
    tensor_types=tensor_types,
    ops=OPS,
    unsupported={},
    dtype=as_numpy_dtype,
    render=render,
    finish=finish,
    attach_native=attach_native,
    attach_function=attach_function,
    call=call,
    draw_key=random.draw_key,
    key_pair=random.key_pair,
    fold_in=random.fold_in,
    is_traced=is_traced,
    to_numpy=np.asarray,
    from_numpy=np.asarray,
    fast=FAST,
    differentiates_residuals=True,  # nobody differentiates NumPy code
    weak=weak,
    weak_literals=True,
    wrap=quiet,
    lend=lend,
    borrow=borrow,
    bridge=bridge,
    outside=outside,
    replays_draws=True,  # it has no draws of its own that are captured
    differences=DIFFERENCES,
)
