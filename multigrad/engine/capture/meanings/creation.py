"""Array creation from a symbolic shape, as in `torch.ones(x.shape)`.

No symbolic value is among the arguments, so no protocol (`__torch_function__`) sees the call:
captured code gets stand-ins for the libraries' functions. With any other shape the library's own
function makes an array, which becomes a constant when it meets a symbolic value.
Tested by tests/capture/values/test_capture_constants.py and tests/capture/names.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ....core.ir.graph import freeze
from ....core.ir.op import BOOL, FLOATS, WHOLE, T
from ....core.passes.facts import BUFFERS
from ....core.trace.coercion import array_node, is_exact
from ....core.trace.trace import Value, constant, copy_of, dtype_name, is_symbolic_tensor, lift
from ....core.trace.xp import all as xp
from ...trace.code_trace import CodeTrace
from ..symbols import SymbolicDType, SymbolicShape, cast, number, own_dtype
from . import composites
from .complexes import Complex
from .parts import rank


def dtype_to_create_in(dtype: Any, like: Any = None) -> Any:
    """Return the dtype to create in: bool, else the input's, as for any constant.

    A library that types exactly gets the dtype that was asked for.
    """
    if isinstance(like, Value) and is_exact(like.trace):
        return dtype
    return BOOL if dtype is not None and dtype_name(dtype) == BOOL else None


def ones(like: Value, dtype: Any = None) -> Value:
    return xp.ones_like(like, dtype_to_create_in(dtype, like))


def zeros(like: Value, dtype: Any = None) -> Value:
    return xp.zeros_like(like, dtype_to_create_in(dtype, like))


def full(like: Value, fill_value: Any, dtype: Any = None) -> Value:
    return xp.full_like(like, fill_value, dtype_to_create_in(dtype, like))


def rand(like: Value, dtype: Any = None) -> Value:
    return drawn(xp.rand_like, like, dtype_to_create_in(dtype, like))


def randn(like: Value, dtype: Any = None) -> Value:
    return drawn(xp.randn_like, like, dtype_to_create_in(dtype, like))


def drawn(draw: Callable[[Value], Value], like: Value, dtype: Any = None) -> Value:
    """Return a draw in a dtype, by default that of `like`."""
    name = dtype.symbol if isinstance(dtype, SymbolicDType) else dtype and dtype_name(dtype)
    return draw(xp.zeros_like(like, dtype) if name and name != own_dtype(like) else like)


def normal(shape: Any, mean: Any = 0.0, stddev: Any = 1.0, *, seed: Any = None) -> Value:
    """Return a normal draw of a tensor's shape."""
    return composites.normal(shaped_as(shape), mean, stddev, generator=seed)


def uniform(shape: Any, minval: Any = 0.0, maxval: Any = 1.0, *, seed: Any = None) -> Value:
    return composites.uniform(shaped_as(shape), minval, maxval, generator=seed)


def shaped_as(shape: Any) -> Value:
    """Return the tensor whose shape it is."""
    if not isinstance(shape, SymbolicShape):
        raise TypeError("a draw of another shape than the whole of a tensor's, as of grad_out")
    return shape.value


def refuse_shape(name: str, like: Value, /, *args: Any, **kwargs: Any) -> Value:
    raise TypeError(f"{name} takes numbers, not a shape")


# --- the stand-ins --------------------------------------------------------------------------------
# Name: whether the result is a copy, which an update of the original does not reach.
CONVERTERS = {
    "array": True,
    "as_tensor": False,
    "asanyarray": False,
    "asarray": False,
    "tensor": True,
}
CUTTING = ("tensor",)  # torch.tensor takes the values alone
# In a function these are recorded as nodes even if all lengths are known: its draws must follow the
# key, and a tensor that code writes symbols into must be a symbol itself.
RECORDED_WITH_KNOWN_LENGTHS = (full, ones, rand, randn, zeros)
CREATORS: dict[str, Callable[..., Any]] = {
    "empty": zeros,
    **{make.__name__: make for make in RECORDED_WITH_KNOWN_LENGTHS},
    **{name: partial(refuse_shape, name) for name in ("arange", "eye", "linspace")},
}
# What a recorded tensor does not take: it has the device and layout of the input, and `create`
# reads the shape.
NOT_TAKEN = ("device", "layout", "like", "order", "pin_memory", "requires_grad", "shape", "size")


def stand_ins_of(libraries: Iterable[str]) -> dict[Any, Callable[..., Any]]:
    """Return the stand-ins for creation functions of the libraries' top modules."""
    stand_ins: dict[Any, Callable[..., Any]] = {}
    for library in libraries:
        for name in (*CONVERTERS, *CREATORS):
            function = getattr(sys.modules.get(library), name, None)
            if function is not None:
                # What is replaced during captures is known by what user code imported, too.
                original = getattr(function, "original", function)
                stand_ins[function] = stand_ins[original] = stand_in_for(name, function)
    return stand_ins


# Functions that make an array of numbers alone.
OF_NUMBERS = ("eye", "geomspace", "identity", "linspace", "logspace", "tri")


def creators_of(
    library: Any, names: Iterable[str], at_once: Callable[[Any], Any]
) -> dict[str, Callable[..., Any]]:
    """Return stand-ins for a library's functions of these names and those OF_NUMBERS that it has.

    `at_once` is put around the library's own.
    """
    stand_ins = {name: stand_in_for(name, at_once(getattr(library, name))) for name in names}
    for name in OF_NUMBERS:
        if hasattr(library, name):
            stand_ins[name] = partial(with_numbers, at_once(getattr(library, name)))
    return stand_ins


def stand_in_for(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    if name in CONVERTERS:
        return TraceBound(partial(convert, function, CONVERTERS[name], name in CUTTING))
    return TraceBound(partial(create, function, CREATORS[name]))


@dataclass(frozen=True, slots=True)
class TraceBound:
    """A stand-in whose result depends on the capture: `run` is called with the trace, then with the
    arguments of a call. The trace is None before `in_trace` binds it.
    """

    run: Callable[..., Any]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.run(None, *args, **kwargs)


def in_trace(stand_in: Any, trace: CodeTrace) -> Any:
    """Return a stand-in, bound to the trace if its result depends on the capture."""
    return partial(stand_in.run, trace) if isinstance(stand_in, TraceBound) else stand_in


def convert(
    function: Callable[..., Any],
    is_copy: bool,
    is_cut: bool,
    trace: CodeTrace | None,
    /,
    obj: Any,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Return a symbolic tensor, or a stacked list of them; else call the library's `function`.

    The result is independent of later updates of the argument if `is_copy`; `is_cut` stops the
    gradient.
    """
    dtype = kwargs.get("dtype", args[0] if args else None)
    if isinstance(obj, list | tuple | SymbolicShape):
        items = list(obj)
        is_stacked = any(map(is_symbolic_tensor, items))
        obj = xp.stack(items, 0) if is_stacked else _with_lengths(obj)
    if not isinstance(obj, Value):
        # in the dtype of the input: a constant takes it without being asked
        if isinstance(dtype, SymbolicDType) and dtype.symbol == T:
            if trace is not None and is_exact(trace) and is_plain(obj):
                return in_dtype_of_input(trace, obj)
            return as_buffer(trace, function(obj))
        return as_buffer(trace, function(obj, *args, **kwargs))
    result = obj if dtype is None else cast(obj, dtype)
    for _ in range(kwargs["ndmin"] - rank(result) if "ndmin" in kwargs else 0):
        result = xp.expand_dims(result, 0)
    if is_cut:
        return xp.stop_gradient(result)
    return copy_of(result) if kwargs.get("copy", is_copy) else result


def create(
    function: Callable[..., Any],
    make: Callable[..., Any],
    trace: CodeTrace | None,
    /,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Create a tensor: recorded by `make`, like another tensor, or by the library's `function`."""
    # NumPy and jax take the dtype by position too, after the number that `full` takes.
    dtype_position = 2 if make is full else 1
    if len(args) == dtype_position + 1 and is_dtype(args[-1]):
        args, kwargs = args[:-1], {**kwargs, "dtype": args[-1]}
    shape = args[0] if args else kwargs.get("size", kwargs.get("shape"))
    options = {name: value for name, value in kwargs.items() if name not in NOT_TAKEN}
    typed = partial(typed_options, function, args[1:2] if make is full else (), options)
    if isinstance(shape, SymbolicShape):
        options, is_weak = typed(shape.value.trace)
        return mark_weak(make(shape.value, *args[1:], **options), is_weak)
    # Symbolic lengths become numbers.
    args = tuple(tuple(map(length, x)) if isinstance(x, tuple | list) else length(x) for x in args)
    if trace is not None:
        # The library's own call needs this too: it notes a dtype's cause, as torch's default dtype.
        options, is_weak = typed(trace)
        # A rule needs no such node: `Witness` refuses its draws, and a tensor that it writes into
        # becomes a symbol in `as_buffer`.
        if trace.kind != "rule" and make in RECORDED_WITH_KNOWN_LENGTHS:
            if kwargs.get("generator") is not None:
                advice = trace.words.advise("leave it out: draws then follow the key")
                raise trace.error(f"draws from a generator that no key seeds{advice}")
            sizes, remaining = split_sizes(list(args) or [shape], make is full)
            # an int decides the dtype of `full`, which the library knows
            is_filled = make is full and bool(remaining) and not isinstance(remaining[0], int)
            # A tensor of no other dtype takes that of the tensors that it meets.
            dtype = kwargs.get("dtype")
            is_open = dtype is None or isinstance(dtype, SymbolicDType)
            gives_way = is_open or dtype_name(dtype) in FLOATS
            if sizes and (is_filled or not remaining) and gives_way:
                like = trace.value(lift(trace, np.zeros(sizes)))
                return mark_weak(make(like, *remaining, **options), is_weak)
    return as_buffer(trace, function(*args, **kwargs), is_zero=make is zeros)


def typed_options(
    function: Callable[..., Any], fills: tuple[Any, ...], options: dict[str, Any], trace: CodeTrace
) -> tuple[dict[str, Any], bool]:
    """Return the options with the dtype that the library gives, and whether the dtype is weak.

    Args:
        fills: the number that `full` takes; else empty.
    """
    if not is_exact(trace):
        return options, False
    library_function = getattr(function, "__wrapped__", function)
    type_and_weakness = trace.types.type_created(library_function, ((1,), *fills), options)
    dtype, is_weak = type_and_weakness or (options.get("dtype"), False)
    return {**options, "dtype": dtype}, is_weak


def is_dtype(value: Any) -> bool:
    return isinstance(value, type | str | np.dtype | SymbolicDType)


def mark_weak(made: Value, is_weak: bool) -> Value:
    # Its dtype then gives way to others.
    if is_weak:
        made.trace.types.weak.add(made.node)
    return made


def is_plain(obj: Any) -> bool:
    if isinstance(obj, list | tuple):
        return all(map(is_plain, obj))
    return type(obj) in (bool, int, float)


def in_dtype_of_input(trace: CodeTrace, obj: Any) -> Any:
    """Return numbers as a constant of the input's dtype, stored exactly, in float64."""
    array = np.asarray(obj)
    if not array.ndim:
        return trace.value(constant(array.item()))
    return trace.value(array_node(trace.like(), freeze(array.astype(np.float64)), T))


def as_buffer(trace: CodeTrace | None, made: Any, *, is_zero: bool = False) -> Any:
    """Return a created tensor as a symbol of its dtype if the code writes into such ones.

    `is_zero`: whether it is to hold zeros, where `empty` has whatever was there.
    """
    if trace is None or BUFFERS not in trace.facts or not hasattr(made, "ndim"):
        return made
    if "complex" in str(made.dtype):
        return Complex(*(as_buffer(trace, x, is_zero=is_zero) for x in (made.real, made.imag)))
    name, node = dtype_name(made.dtype), lift(trace, np.zeros(made.shape) if is_zero else made)
    if node.type.kind == "scalar":
        node = array_node(trace.like(), freeze(np.asarray(node.attr("value"))), T)
    value = trace.value(node)
    own_dtypes = (BOOL, *WHOLE, *FLOATS) if is_exact(trace) else (BOOL, *WHOLE)
    # A cast may share memory with its operand, which nothing else refers to here.
    return trace.value(cast(value, name).node) if name in own_dtypes else value


def split_sizes(arguments: list[Any], is_single: bool) -> tuple[tuple[int, ...], list[Any]]:
    """Split positional arguments into lengths, () if some are unknown, and the rest."""
    first = arguments[0] if arguments else ()
    sizes = tuple(first) if isinstance(first, tuple | list) else ()
    count = 1
    if isinstance(first, int):
        count = 1 if is_single else len(arguments)
        sizes = tuple(arguments[:count])
    are_known = all(isinstance(n, int) and not isinstance(n, bool) for n in sizes)
    return (sizes if are_known else ()), arguments[count:]


def _with_lengths(items: Any) -> Any:
    nested = isinstance(items, list | tuple | SymbolicShape)
    return [_with_lengths(item) for item in items] if nested else length(items)


def length(x: Any) -> Any:
    # A symbolic length becomes a number, which makes it a fact of the capture.
    return operator.index(x) if isinstance(x, Value) and x.node.type.dtype == "int" else x


def with_numbers(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a library's function with the numbers of symbolic scalars, which become facts."""
    numbers = [number(value) for value in args]
    return function(*numbers, **{name: number(value) for name, value in kwargs.items()})
