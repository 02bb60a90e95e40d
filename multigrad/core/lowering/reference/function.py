"""Functions lowered to NumPy: forward, `vjp`, `jvp`, and the constants that they prepare."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from contextvars import Context
from typing import Any, TypeAlias

import numpy as np

from ....errors import UnsupportedOp
from ...backend.emitted import Emitted, find_like
from ...backend.rows import enabled
from ...ir.op import T, Type
from .kernels import MANY, by_blocks

Array = Any
Convert: TypeAlias = Callable[[Any, Sequence[Array]], Any]
# NumPy keeps its error state in a context variable: to run in a copy of a context where warnings
# are off takes 0.1 us, `np.errstate` 0.8. Nothing that emitted code calls reads another variable.
WARNINGS_OFF = Context()
WARNINGS_OFF.run(np.seterr, all="ignore")
copy_context = WARNINGS_OFF.copy
asarray, generic = np.asarray, np.generic


class ReferenceFunction:
    """A Function on NumPy: `f(*inputs)` is the forward, `f.vjp(*inputs)` gives the output and the
    pullback.

    Lowered with `forward_mode=True` it has `f.jvp(inputs, tangents)` as well. Run-time params
    follow the inputs. With several outputs there is a tuple of them, and the pullback takes a tuple
    of cotangents (None: zero); with several inputs it returns a tuple of gradients.

    Examples:
        >>> f = xg.lower("triangular", "numpy", forward="Heaviside")
        >>> y, pullback = f.vjp(np.array([0.25]))
        >>> pullback(np.ones_like(y))
        array([0.75])
    """

    def __init__(self, namespace: Mapping[str, Any], emitted: Emitted) -> None:
        names, origin, code = emitted.names, emitted.origin, emitted.fast.forward
        forward, backward = namespace["forward"], namespace["backward"]
        is_identity = origin.is_rule and code.result == "tin" and not code.lines
        self.forward = None if is_identity else forward
        self.keep = namespace["keep"] if emitted.residuals.names else None
        self.backward = backward
        self._large_forward, self._large_backward = forward, backward
        self._outputs: Convert = as_array
        self._gradients: Convert = as_array
        if not origin.is_rule:
            gradients = dict(zip(names.wrt, origin.gradient_types, strict=True))
            types = [gradients.get(name) for name in names.inputs]
            self._outputs = as_arrays(origin.output_types, origin.input_types, emitted.single)
            self._gradients = as_arrays(types, origin.output_types, len(names.inputs) == 1)
        elif enabled("numpy.blocks"):
            self._large_forward = by_blocks(forward) if emitted.forward.elementwise else forward
            self._large_backward = by_blocks(backward) if emitted.backward.elementwise else backward
        self._push = namespace.get("push")
        prepare = namespace.get("prepare")
        self._prepare = no_constants if prepare is None else remembering(prepare, emitted)
        # Whether nothing is computed before backward.
        self._is_idle = self.forward is self.keep is prepare is None
        # Positions: of inputs whose shape backward takes, and of params that forward reads.
        self._shapes = tuple(names.inputs.index(name) for name in emitted.residuals.shapes)
        self._read = tuple(names.params.index(name) for name in emitted.forward_params)
        # A rule's numbers reach its backward alone.
        self._takes_numbers = not origin.is_rule and bool(self._read or prepare)
        self._computes = bool(emitted.residuals.computed)
        self._draw_key = namespace["draw_key"] if emitted.draws else None
        places = (*names.inputs, *names.params)
        facts = emitted.checks.facts.items()
        self._facts = tuple((places.index(name), namespace[check]) for name, check in facts)
        self._count = len(names.inputs)
        self.name = origin.name
        self.single = emitted.single
        self.carries = emitted.carries
        self.defaults = tuple(as_operand(names.defaults.get(name)) for name in names.params)

    def __repr__(self) -> str:
        return f"<NumPy function {self.name}>"

    def _split(self, args: tuple[Any, ...]) -> tuple[tuple[Array, ...], tuple[Any, ...]]:
        # Params that are left out have their defaults, and a missing key is drawn.
        count, values = self._count, self.defaults
        inputs = (asarray(args[0]),) if count == 1 else tuple(map(asarray, args[:count]))
        if len(args) > count:
            params = args[count:]
            values = (*map(as_operand, params), *values[len(params) :])
        if self._draw_key is not None and values[-1] is None:
            values = (*values[:-1], self._draw_key())
        for place, check in self._facts:
            check((*inputs, *values)[place])
        return inputs, values

    def __call__(self, *args: Any) -> Any:
        inputs, values = self._split(args)
        return copy_context().run(self._run, inputs, values)

    def vjp(self, *args: Any) -> tuple[Any, Callable[..., Any]]:
        """Return the output for the inputs, and the map from its cotangent to the gradients."""
        inputs, values = self._split(args)
        if self._is_idle:
            output, tensors = inputs[0], values
        else:
            output, tensors = copy_context().run(self._record, inputs, values)
        # The pullback holds the residuals, the numbers, and no more.
        pull = self._pull
        if self.single:
            shape, dtype = output.shape, output.dtype

            def pull_one(cotangent: Array | None) -> Any:
                if cotangent is None:
                    cotangent = np.zeros(shape, dtype)
                return copy_context().run(pull, (asarray(cotangent, dtype),), tensors)

            return output, pull_one
        specs = [(each.shape, each.dtype) for each in output]

        def pull_several(cotangents: Sequence[Array | None]) -> Any:
            arrays = [as_cotangent(c, *spec) for c, spec in zip(cotangents, specs, strict=True)]
            return copy_context().run(pull, arrays, tensors)

        return output, pull_several

    def jvp(self, inputs: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        """Return the output for the inputs, and its tangent, where it was lowered with forward
        mode; run-time params follow the inputs, and None among tangents is zero.
        """
        push = self._push
        if push is None:
            raise UnsupportedOp(f"{self.name} was lowered without forward_mode=True")
        arrays, values = self._split(tuple(inputs))
        output = copy_context().run(self._run, arrays, values)
        outputs = (output,) if self.single else output
        dx = [as_cotangent(t, x.shape, x.dtype) for t, x in zip(tangents, arrays, strict=True)]
        pushed = copy_context().run(push, *dx, *arrays, *outputs, *values)
        pairs = zip(pushed, outputs, strict=True)
        tangents_out = tuple(None if t is None else asarray(t, y.dtype) for t, y in pairs)
        return output, tangents_out[0] if self.single else tangents_out

    def _run(self, inputs: tuple[Array, ...], values: tuple[Any, ...]) -> Any:
        constants = self._prepare(inputs, values) if self._takes_numbers else ()
        return self._apply(inputs, values, constants)

    def _record(self, inputs: tuple[Array, ...], values: tuple[Any, ...]) -> Any:
        constants = self._prepare(inputs, values)
        output = self._apply(inputs, values, constants)
        if self.keep is not None:
            outputs = (output,) if self.single else output
            residuals = self.keep(*inputs, *outputs, *values, *constants)
            values = (*(map(as_operand, residuals) if self._computes else residuals), *values)
        if self._shapes:
            values = (*values, *[inputs[i].shape for i in self._shapes])
        return output, (*values, *constants)

    def _apply(
        self, inputs: tuple[Array, ...], values: tuple[Any, ...], constants: tuple[Any, ...]
    ) -> Any:
        if self.forward is None:  # it computes nothing
            return inputs[0]
        arguments = inputs
        if self._takes_numbers:
            arguments = (*inputs, *[values[i] for i in self._read], *constants)
        forward = self.forward if inputs[0].size < MANY else self._large_forward
        return self._outputs(forward(*arguments), inputs)

    def _pull(self, cotangents: Sequence[Array], residuals: tuple[Any, ...]) -> Any:
        backward = self.backward if cotangents[0].size < MANY else self._large_backward
        return self._gradients(backward(*cotangents, *residuals), cotangents)


def no_constants(inputs: Sequence[Array], values: tuple[Any, ...]) -> tuple[Array, ...]:
    return ()


def as_cotangent(cotangent: Array | None, shape: tuple[int, ...], dtype: Any) -> Array:
    # None among cotangents means zero.
    return np.zeros(shape, dtype) if cotangent is None else asarray(cotangent, dtype)


def as_array(result: Any, args: Sequence[Array]) -> Array:
    return asarray(result, args[0].dtype)


def as_arrays(types: Sequence[Type | None], given: Sequence[Type | None], single: bool) -> Convert:
    """Return a function that converts results to arrays of these types, None to None.

    `given` are the types of the arguments; the first float one determines the dtype T.
    """
    like = find_like(given)

    def convert(results: Any, args: Sequence[Array]) -> Any:
        input_dtype = None if like is None else args[like].dtype
        arrays = tuple(
            None if type_ is None else asarray(result, input_dtype if type_.dtype == T else None)
            for result, type_ in zip(results, types, strict=True)
        )
        return arrays[0] if single else arrays

    return convert


def quiet(function: Callable[..., Any]) -> Callable[..., Any]:
    """Silence floating-point warnings and return an array of the input's dtype."""

    def run(x: Any, *args: Any) -> Any:
        return np.asarray(function(x, *args), dtype=x.dtype)

    @functools.wraps(function)
    def call(x: Any, *args: Any) -> Any:
        return copy_context().run(run, np.asarray(x), *map(as_operand, args))

    return call


def as_operand(value: Any) -> Any:
    """Return NumPy's scalars as arrays without dimensions, and others unchanged."""
    return asarray(value) if isinstance(value, generic) else value


# Immutable, and equal ones are the same but for zeros, so a tuple of them may be remembered.
FLOATS = frozenset({float})


def remembering(prepare: Callable[..., Any], emitted: Emitted) -> Callable[..., tuple[Array, ...]]:
    """Return `(inputs, values) -> constants`, which gives those of the last call again if the
    numbers and the dtype are the same.
    """
    like = find_like(emitted.origin.input_types) or 0
    # One tuple, so that threads see all of it or none.
    latest: tuple[Any, ...] = (None, None, ())

    def constants_of(inputs: Sequence[Array], values: tuple[Any, ...]) -> tuple[Array, ...]:
        nonlocal latest
        dtype = inputs[like].dtype
        numbers, known_dtype, prepared = latest
        if dtype is known_dtype and (values is numbers or is_same(values, numbers)):
            return prepared
        prepared = prepare(lambda value: np.asarray(dtype.type(value)), *values)
        # Arrays may be changed in place, so they are prepared at each call.
        if FLOATS.issuperset(map(type, values)):
            latest = values, dtype, prepared
        return prepared

    return constants_of


def is_same(values: tuple[Any, ...], floats: tuple[Any, ...]) -> bool:
    is_equal = FLOATS.issuperset(map(type, values)) and values == floats
    return is_equal and not (0.0 in values and repr(values) != repr(floats))  # -0.0 equals 0.0
