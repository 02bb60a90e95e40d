"""Tensor methods as rules write them (`x.clamp(min=0)`, `x.mean(dim=-1)`), by name.

`METHODS` has what each records, `IN_PLACE` those that exist only with a "_" at the end. A library's
own meanings (`Dialect.names.methods`) come before both; `find_method` looks a name up in all three.
What becomes of other attributes is in `attributes.py`.

Names and defaults are those that tensor libraries share. Where two differ (`std`: n or n - 1), the
keyword decides, then the modules that the rule mentions.
"""

from __future__ import annotations

import builtins
import functools
import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Number
from typing import Any, NamedTuple

import numpy as np

from ....core.ir.op import BOOL, INT32, INT64, is_float
from ....core.trace import trace
from ....core.trace.coercion import is_exact
from ....core.trace.trace import NeedsConcrete, Value, copy_of, dtype_name, lift
from ....core.trace.xp import all as xp
from .. import symbols
from ..dialect import Dialect, find_dialect, passes_at
from ..meanings import arrays, composites, creation, places, reductions
from ..meanings.places import MISSING
from ..name_tables import handlers_by_name, handlers_by_signature, ops_by_name
from ..symbols import SymbolicShape, cast, cast_in_graph, own_dtype
from ..user_code.libraries import library_for
from . import memory

Tensor = Any


def axis_of(dim: Any, axis: Any) -> Any:
    """Return the axis, given under either name."""
    if dim is not MISSING and dim is not None and axis is not MISSING:
        raise TypeError("give dim or axis, not both")
    given_axis = axis if dim is MISSING or dim is None else dim
    return None if given_axis is MISSING else given_axis


def keeps_axes(keepdim: Any, keepdims: Any) -> bool:
    # Given under either name. A dtype, which NumPy takes in the same position, is refused.
    for flag in (keepdim, keepdims):
        if not isinstance(flag, bool | int | np.bool_):
            raise TypeError(f"keepdim is True or False, not {flag!r}; name other arguments")
    return bool(keepdim or keepdims)


def reduction(record: Callable[..., Tensor]) -> Callable[..., Tensor]:
    @functools.wraps(record)
    def reduce(
        x: Tensor,
        dim: Any = MISSING,
        keepdim: bool = False,
        *,
        axis: Any = MISSING,
        keepdims: bool = False,
        **options: Any,
    ) -> Tensor:
        return record(x, axis=axis_of(dim, axis), keepdims=keeps_axes(keepdim, keepdims), **options)

    return reduce


def minimum_or_maximum(record: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a handler of `x.max()` and `x.max(axis=...)`; with a dim, torch returns places too."""
    name = record.__name__

    def reduce(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if "dim" in kwargs:
            return places.EXTREMES[name](x, *args, **kwargs)
        if args or not kwargs.keys() <= {"axis", "keepdims", "initial", "where"}:
            raise TypeError(
                f"{name} with a dim returns places in torch; write dim=, a{name} or axis="
            )
        return record(x, **kwargs)

    return reduce


def norm(x: Tensor, p: Any = 2, dim: Any = MISSING, keepdim: bool = False) -> Tensor:
    number = symbols.number(p)  # the order is a part of the op
    order = 2 if number in ("fro", None) else number
    return xp.norm(x, axis_of(dim, MISSING), keepdim, order)


def deviation(record: Callable[..., Tensor]) -> Callable[..., Tensor]:
    @functools.wraps(record)
    def deviate(
        x: Tensor,
        dim: Any = MISSING,
        unbiased: Any = MISSING,
        keepdim: bool = False,
        *,
        correction: Any = MISSING,
        axis: Any = MISSING,
        keepdims: bool = False,
        ddof: Any = MISSING,
        **options: Any,
    ) -> Tensor:
        if isinstance(dim, bool):  # torch's x.std(False)
            dim, unbiased = MISSING, dim
        if unbiased is not MISSING:
            places.check_flag("unbiased", unbiased)  # NumPy takes a dtype in this position
        n = _correction(x, unbiased, correction, axis, ddof)
        axes, keep = axis_of(dim, axis), keeps_axes(keepdim, keepdims)
        return record(x, axis=axes, keepdims=keep, correction=n, **options)

    return deviate


def _correction(x: Tensor, unbiased: Any, correction: Any, axis: Any, ddof: Any) -> Any:
    # From the explicit to the implied: correction, ddof, unbiased, NumPy's axis=, the library.
    if correction is not MISSING and correction is not None:
        return correction
    if ddof is not MISSING:
        return ddof
    if unbiased is not MISSING:
        return 1 if unbiased else 0
    if axis is not MISSING:
        return 0
    library = library_for(x.trace, "std")
    dialect = find_dialect(library)
    if not library:
        raise TypeError("torch divides by n - 1, NumPy by n; write correction=1 or correction=0")
    return 0 if dialect is None else dialect.tensors.correction


def clamp(x: Tensor, min: Any = None, max: Any = None) -> Tensor:
    # Unlike at the limits of `maximum`, the whole gradient passes at a limit, in some releases.
    if is_float(x.node.type) and not passes_at(x.trace, "clamp"):
        limits = [each for each in (min, max) if each is not None]
        if not all(map(_is_tensor, limits)):
            return _between_numbers(x, min, max)
        if min is None or max is None:
            return xp.minimum(x, max) if min is None else xp.maximum(x, min)
        return _between_tensors(x, *(places.as_tensor(each, x) for each in limits))
    if not is_float(x.node.type) or (min is None) == (max is None):
        return xp.clip(x, min, max)
    return xp.clip(x, -math.inf if min is None else min, math.inf if max is None else max)


def _is_tensor(x: Any) -> bool:
    return symbols.is_tensor(x) if isinstance(x, Value) else not isinstance(x, Number)


def _between_numbers(x: Tensor, low: Any, high: Any) -> Tensor:
    # The gradient passes strictly between the limits.
    passes = [] if low is None else [x > low]
    passes += [] if high is None else [x < high]
    y = xp.stop_gradient(xp.clip(x, low, high))
    return xp.where(functools.reduce(xp.logical_and, passes), x, y)


def _between_tensors(x: Tensor, low: Tensor, high: Tensor) -> Tensor:
    # A limit that x equals shares the gradient with it; x has that of NaN, and where all are equal.
    y = xp.stop_gradient(xp.clip(x, low, high))
    is_above = xp.logical_or(x > high, low > high)
    by_x = xp.where(is_above, high, xp.where(x < low, low, x))
    by_limits = xp.where(x >= high, high, xp.where(x <= low, low, x))
    by_both = xp.maximum(by_x, xp.where(low < high, by_limits, by_x))
    return xp.where(xp.isnan(y), x + y, by_both)


def clip(
    x: Tensor, min: Any = None, max: Any = None, *, a_min: Any = None, a_max: Any = None
) -> Tensor:
    return xp.clip(x, min if a_min is None else a_min, max if a_max is None else a_max)


def to(
    x: Tensor,
    *args: Any,
    dtype: Any = None,
    device: Any = None,
    copy: bool = False,
    non_blocking: bool = False,
    memory_format: Any = None,
) -> Tensor:
    # Change the dtype; a rule stays on its input's device, so a device is ignored.
    flags = [argument for argument in args if isinstance(argument, bool)]  # non_blocking, copy
    for argument in args:
        x = places.as_tensor(x, argument) if isinstance(argument, Value) else x
        if not isinstance(argument, bool) and type(argument).__name__ != "SymbolicDevice":
            dtype = _dtype_of(argument) if hasattr(type(argument), "dtype") else argument
    result = x if dtype is None else cast(x, dtype)
    if copy or flags[1:] == [True]:
        if result.base is x and not result.is_certain:  # of which a cast may be a copy already
            raise NeedsConcrete("dtype")
        return memory.clone(result, memory_format) if result is x else result
    return memory.in_format(result, memory_format)


def to_dtype(dtype: str) -> Callable[[Any], Any]:
    def to(x: Any, *, memory_format: Any = None) -> Any:
        return memory.in_format(cast(x, dtype), memory_format)

    return to


def astype(x: Tensor, dtype: Any, copy: bool = True) -> Tensor:
    result = cast(x, dtype)
    return copy_of(result) if copy else result


def type_(x: Tensor, dtype: Any = None) -> Tensor:
    if dtype is None:
        raise TypeError("type() without a dtype gives a string; use x.dtype")
    return cast(x, dtype)


def type_as(x: Tensor, other: Tensor) -> Tensor:
    x = places.as_tensor(x, other) if isinstance(other, Value) else x
    return cast(x, _dtype_of(other))


def _dtype_of(x: Any) -> Any:
    return own_dtype(x) or x.dtype


def dim(x: Tensor) -> int:
    return x.ndim


def identity(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    return x


def contiguous(x: Tensor, memory_format: Any = None) -> Tensor:
    # Itself or a copy, which depends on the strides; a rule's tensors count as contiguous.
    if str(memory_format) not in ("None", "torch.contiguous_format"):
        return memory.in_format(x, memory_format)
    if x.base is None and (x.trace.kind == "rule" or x.notes):
        return x
    return memory.contiguous(x)


def add(x: Tensor, other: Any, *, alpha: Any = 1) -> Tensor:
    return xp.add(x, _scaled(other, alpha))


def sub(x: Tensor, other: Any, *, alpha: Any = 1) -> Tensor:
    return xp.subtract(x, _scaled(other, alpha))


def _scaled(other: Any, alpha: Any) -> Any:
    if isinstance(alpha, int) and alpha == 1:
        return other
    if isinstance(other, Value) and other.node.type.dtype == BOOL:
        raise TypeError("bools times alpha")
    return xp.multiply(alpha, other)


def div(x: Tensor, other: Any, *, rounding_mode: str | None = None) -> Tensor:
    if rounding_mode not in (None, "floor", "trunc"):
        raise TypeError(f"div with the rounding_mode {rounding_mode!r}")
    if rounding_mode == "floor":
        return xp.floor_divide(x, other)
    if rounding_mode is None:
        return xp.divide(x, other)
    are_integers = composites.is_whole(x) and composites.is_whole(other)
    return composites.quotient(x, other) if are_integers else xp.trunc(xp.divide(x, other))


def fill(x: Tensor, value: Any) -> None:
    # NumPy's method, in place; it returns nothing.
    x.update(xp.full_like(x, value))


def copy_from(x: Tensor, source: Any, non_blocking: bool = False) -> Tensor:
    source = x.trace.value(lift(x.trace, source))
    return xp.full_like(x, source) if source.node.type.kind == "scalar" else source


def expand_as(x: Tensor, other: Tensor) -> Tensor:
    return xp.broadcast_to(places.as_tensor(x, other), other)


def is_floating_point(x: Tensor) -> bool:
    return is_float(x.node.type)


def new_full(x: Tensor, size: Any, fill_value: Any, *, dtype: Any = None, **ignored: Any) -> Any:
    """Return a tensor of one number on x's device: of a symbolic shape, or a constant."""
    if isinstance(size, SymbolicShape):
        own = x.node.type.dtype if dtype is None else dtype
        created = own if is_exact(x.trace) else creation.dtype_to_create_in(dtype)
        return xp.full_like(size.value, fill_value, created)
    lengths = [operator.index(n) for n in ([size] if isinstance(size, int | Value) else size)]
    array = np.full(
        lengths, fill_value if isinstance(fill_value, int) else builtins.float(fill_value)
    )
    return _as_created(x, x.trace.value(lift(x.trace, array)), dtype)


def _as_created(x: Tensor, value: Value, dtype: Any) -> Tensor:
    """Return a constant in the dtype in which a creation function of x's library gives it."""
    if is_exact(x.trace):
        return cast_in_graph(value, x.node.type.dtype if dtype is None else dtype_name(dtype))
    return value if creation.dtype_to_create_in(dtype) is None else cast(value, "bool")


def new_zeros(x: Tensor, *size: Any, **options: Any) -> Tensor:
    return new_full(x, size[0] if len(size) == 1 else size, 0.0, **options)


def new_ones(x: Tensor, *size: Any, **options: Any) -> Tensor:
    return new_full(x, size[0] if len(size) == 1 else size, 1.0, **options)


def new_tensor(x: Tensor, data: Any, *, dtype: Any = None, **ignored: Any) -> Tensor:
    if isinstance(data, int | builtins.float) and is_exact(x.trace):
        return xp.squeeze(new_full(x, (1,), data, dtype=dtype), 0)
    return _as_created(x, xp.stop_gradient(x.trace.value(lift(x.trace, data))), dtype)


def each_as(adapter: Callable[..., Any], names: str) -> dict[str, Callable[..., Any]]:
    """Return the reductions of these names, each with the parameters that an adapter gives it."""
    return {name: adapter(record) for name, record in handlers_by_name({reductions: names}).items()}


# torch has these as functions with the same parameters.
ELEMENTWISE: dict[str, Callable[..., Any]] = {
    **ops_by_name("""
        fmax; fmin; copysign; frac; floor_divide; remainder; fmod; hypot; atan2: arctan2 atan2;
        lerp; exp2; log2; log10; logaddexp; xlogy; tan; asin: arcsin asin; acos: acos arccos;
        deg2rad; rad2deg; sinh; cosh; asinh: arcsinh asinh; acosh: acosh arccosh;
        atanh: arctanh atanh; erfc; erfinv; lgamma; digamma; sinc; signbit; bitwise_and; bitwise_or;
        bitwise_xor; bitwise_invert: bitwise_not; bitwise_left_shift; bitwise_right_shift;
        nextafter
    """),
    **handlers_by_name({composites: "logit; nan_to_num"}),
    **handlers_by_signature({composites: "polygamma(x, n): polygamma"}),
}
# torch's methods that cast, by name: `x.half()`.
DTYPE_OF_METHOD = {
    "bfloat16": "bfloat16",
    "bool": BOOL,
    "byte": "uint8",
    "char": "int8",
    "double": "float64",
    "float": "float32",
    "half": "float16",
    "int": INT32,
    "long": INT64,
    "short": "int16",
}
METHODS: dict[str, Callable[..., Any]] = {
    **ops_by_name("""
        mul: mul multiply; neg: neg negative; pow; square; sqrt; rsqrt; reciprocal; maximum;
        minimum; abs: abs absolute; sign: sign sgn; floor; ceil; round; trunc; exp; expm1; log;
        log1p; sin; cos; atan: arctan atan; tanh; erf; sigmoid; lt; le; gt; ge; eq; ne;
        and: logical_and; or: logical_or; xor: logical_xor; not: logical_not; isnan; isinf;
        isfinite; relu
    """),
    **ELEMENTWISE,
    **arrays.METHODS,
    **{name: to_dtype(dtype) for name, dtype in DTYPE_OF_METHOD.items()},
    **handlers_by_signature(
        {
            __name__: "clamp_max(x, max): clamp; clamp_min(x, min): clamp",
            trace: "copy(x, order='C'): copy_of(order=)",
            xp: """
                detach(x): stop_gradient; masked_fill(x, mask, value): where(mask=condition,
                value=a, x=b); numel(x): size; unsqueeze(x, dim): expand_dims; where(x, condition,
                other): where
            """,
        }
    ),
    **each_as(reduction, "sum; prod; mean; any; all; max: amax; min: amin"),
    **each_as(minimum_or_maximum, "max; min"),
    **each_as(deviation, "std; var"),
    **handlers_by_name(
        {
            composites: "addcdiv; addcmul; bernoulli",
            memory: "clone",
            symbols: "item; to_list: tolist; to_numpy: numpy",
            __name__: """
                add; astype; clamp; clip; contiguous; dim; div: div divide true_divide;
                expand_as; fill; identity: conj conjugate positive; is_floating_point; new_full;
                new_ones; new_tensor; new_zeros: new_zeros new_empty; norm; sub: sub subtract; to;
                type_: type; type_as
            """,
        }
    ),
}

# In-place methods of torch, which end in "_", that have no other form.
IN_PLACE: dict[str, Callable[..., Any]] = {
    "bernoulli_": composites.bernoulli_anew,
    "copy_": copy_from,
    "fill_": xp.full_like,
    "normal_": composites.normal,
    "uniform_": composites.uniform,
    "zero_": xp.zeros_like,
}

# Names that no library's code can use on a symbol, and the reason. The advice.
REFUSED = {
    "backward": "a rule is the backward pass. Return the gradient",
    "requires_grad_": "a rule's tensors carry no gradient of their own",
    **{
        f"{name}_": f"it changes the shape of a tensor in place. Use .{name}()"
        for name in ("squeeze", "swapaxes", "swapdims", "t", "transpose", "unsqueeze")
    },
}


class Method(NamedTuple):
    """What a method's name means: a handler, and whether the tensor takes its result as its new
    value, as `x.add_(1)` does.
    """

    record: Callable[..., Any]
    updates: bool


def find_method(name: str, dialect: Dialect | None) -> Method | None:
    """Return a tensor method's meaning in a library's code, None if it is not captured."""
    methods = {} if dialect is None else dialect.names.methods
    record = methods.get(name) or METHODS.get(name)
    if record is not None:
        return Method(record, updates=False)
    if name.startswith("__") or name in REFUSED:
        return None
    plain = name.removesuffix("_")
    record = IN_PLACE.get(name)
    if record is None and plain != name:
        record = methods.get(plain) or METHODS.get(plain)
    if record is not None:
        return Method(record, updates=True)
    record = _find_other_way(name, plain, dialect)
    return None if record is None else Method(record, updates=plain != name)


def _find_other_way(name: str, plain: str, dialect: Dialect | None) -> Callable[..., Any] | None:
    # A method without a row, of a library that can tell how it computes it.
    if dialect is None or dialect.calls.other_way is None or name in REFUSED:
        return None
    if dialect.classes.refusals is not None and dialect.classes.refusals(name) is not None:
        return None
    method = getattr(dialect.tensors.tensor, plain, None)
    return None if method is None else dialect.calls.other_way(method)


@dataclass(slots=True, eq=False)
class BoundMethod:
    """A method of a symbol that waits for its arguments: `x.clamp`, before `(min=0)`."""

    method: Method
    value: Any
    name: str

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        trace, record = self.value.trace, self.method.record
        try:
            if kwargs.get("out") is not None:
                raise TypeError("with out=; use its result")
            if trace.types is None:
                result = record(self.value, *args, **kwargs)
            else:
                result = trace.types.confirmed(
                    method_named(self.name), (self.value, *args), kwargs, record, self.name
                )
        except TypeError as error:
            name = getattr(record, "__name__", self.name)
            raise trace.error(f"calls .{name}() in a way not captured: {error}") from error
        return self.value.update(result) if self.method.updates else result


@functools.cache
def method_named(name: str) -> Callable[..., Any]:
    """Return a function that calls the method of a name.

    Cached: a type oracle is asked by function, so each name must give one object.
    """

    def call(x: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(x, name)(*args, **kwargs)

    call.__name__ = call.__qualname__ = name
    return call
