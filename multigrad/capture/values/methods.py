"""Tensor methods as rules write them (`x.clamp(min=0)`, `x.mean(dim=-1)`), by name, and what
becomes of each other attribute.

Names and defaults are those that tensor libraries share. Where two differ (`std`: n or n - 1), the
keyword decides, then the modules that the rule mentions.

A name without a row is refused, and fails a test that walks through each library's class, so that a
new attribute gets a decision. Other ways in which Python reads a value are in `FORMS`.
"""

from __future__ import annotations

import builtins
import fnmatch
import functools
import math
import operator
from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np

from ...graph import ops
from ...graph.ir.types import BOOL, is_float
from ...graph.support.class_bases import dataclass
from ...trace import trace
from ...trace.coercion import is_exact
from ...trace.trace import NeedsConcrete, Value, copy_of, dtype_name, lift
from ...trace.xp import all as xp
from .. import dtypes, memory_layout, symbols
from ..dialect import Dialect, find_dialect, passes_at
from ..dtypes import cast, own_dtype
from ..meanings import arrays, composites, creation, places, reductions
from ..meanings.places import MISSING
from ..name_tables import handlers_by_name, handlers_by_signature, ops_by_name
from ..symbols import SymbolicShape
from ..user_code.libraries import library_for

Tensor = Any


def axis_of(dim: Any, axis: Any) -> Any:
    """Return the axis, given under either name."""
    if dim is not MISSING and dim is not None and axis is not MISSING:
        raise TypeError("give dim or axis, not both")
    chosen = axis if dim is MISSING or dim is None else dim
    return None if chosen is MISSING else chosen


def kept(keepdim: Any, keepdims: Any) -> bool:
    """Return whether reduced axes stay, given under either name.

    Raises:
        TypeError: it is a dtype, which NumPy takes in the same position.
    """
    for given in (keepdim, keepdims):
        if not isinstance(given, bool | int | np.bool_):
            raise TypeError(f"keepdim is True or False, not {given!r}; name other arguments")
    return bool(keepdim or keepdims)


def reduction(record: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a reduction that takes torch's parameter names and NumPy's."""

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
        return record(x, axis=axis_of(dim, axis), keepdims=kept(keepdim, keepdims), **options)

    return reduce


def extreme(record: Callable[..., Tensor]) -> Callable[..., Tensor]:
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
    given = creation.number(p)  # the order is a part of the op
    order = 2 if given in ("fro", None) else given
    return xp.norm(x, axis_of(dim, MISSING), keepdim, order)


def deviation(record: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a measure of spread that takes torch's parameter names and NumPy's."""

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
        n = _correction(x, unbiased, correction, axis, ddof)
        axes, keep = axis_of(dim, axis), kept(keepdim, keepdims)
        return record(x, axis=axes, keepdims=keep, correction=n, **options)

    return deviate


def _correction(x: Tensor, unbiased: Any, correction: Any, axis: Any, ddof: Any) -> Any:
    # From the explicit to the implied: correction, ddof, unbiased, NumPy's axis=, the library.
    if correction is not MISSING:
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
        return composites.clamp_stopping(x, min, max)
    if not is_float(x.node.type) or (min is None) == (max is None):
        return xp.clip(x, min, max)
    return xp.clip(x, -math.inf if min is None else min, math.inf if max is None else max)


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
    flags = [given for given in args if isinstance(given, bool)]  # non_blocking, copy
    for given in args:
        x = places.as_tensor(x, given) if isinstance(given, Value) else x
        if not isinstance(given, bool) and type(given).__name__ != "SymbolicDevice":
            dtype = _dtype_of(given) if hasattr(type(given), "dtype") else given
    result = x if dtype is None else cast(x, dtype)
    if copy or flags[1:] == [True]:
        return copy_of(result)
    return memory_layout.in_format(result, memory_format)


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
    is_same = x.base is None and (x.trace.kind == "rule" or x.node.op is ops.INPUT or x.notes)
    if str(memory_format) not in ("None", "torch.contiguous_format"):
        return memory_layout.in_format(x, memory_format)
    return x if is_same else memory_layout.contiguous(x)


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
    whole = composites.is_whole(x) and composites.is_whole(other)
    return composites.quotient(x, other) if whole else xp.trunc(xp.divide(x, other))


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
        return xp.full_like(size.value, fill_value, creation.dtype_to_create_in(dtype))
    lengths = [operator.index(n) for n in ([size] if isinstance(size, int | Value) else size)]
    array = np.full(
        lengths, fill_value if isinstance(fill_value, int) else builtins.float(fill_value)
    )
    return _like_made(x, x.trace.value(lift(x.trace, array)), dtype)


def _like_made(x: Tensor, value: Value, dtype: Any) -> Tensor:
    if is_exact(x.trace):
        return x.trace.types.cast(value, x.node.type.dtype if dtype is None else dtype_name(dtype))
    return value if creation.dtype_to_create_in(dtype) is None else cast(value, "bool")


def new_zeros(x: Tensor, *size: Any, **options: Any) -> Tensor:
    return new_full(x, size[0] if len(size) == 1 else size, 0.0, **options)


def new_ones(x: Tensor, *size: Any, **options: Any) -> Tensor:
    return new_full(x, size[0] if len(size) == 1 else size, 1.0, **options)


def new_tensor(x: Tensor, data: Any, *, dtype: Any = None, **ignored: Any) -> Tensor:
    if isinstance(data, int | builtins.float) and is_exact(x.trace):
        return xp.squeeze(new_full(x, (1,), data, dtype=dtype), 0)
    return _like_made(x, xp.stop_gradient(x.trace.value(lift(x.trace, data))), dtype)


def made(called: Callable[..., Any], names: str) -> dict[str, Callable[..., Any]]:
    return {name: called(record) for name, record in handlers_by_name({reductions: names}).items()}


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
    **dtypes.METHODS,
    **handlers_by_signature(
        {
            __name__: "clamp_max(x, max): clamp; clamp_min(x, min): clamp",
            # How a copy lies in memory does not show in its values.
            trace: "clone(x, *, memory_format=None): copy_of; copy(x, order='C'): copy_of(order=)",
            xp: """
                detach(x): stop_gradient; masked_fill(x, mask, value): where(mask=condition,
                value=a, x=b); numel(x): size; unsqueeze(x, dim): expand_dims; where(x, condition,
                other): where
            """,
        }
    ),
    **made(reduction, "sum; prod; mean; any; all; max: amax; min: amin"),
    **made(extreme, "max; min"),
    **made(deviation, "std; var"),
    **handlers_by_name(
        {
            composites: "addcdiv; addcmul; bernoulli",
            symbols: "item; to_list: tolist",
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

REFUSED = {
    "backward": "a rule is the backward pass. Return the gradient",
    "numpy": "a symbolic tensor holds no numbers. Use array functions on it",
    "requires_grad_": "a rule's tensors carry no gradient of their own",
}


# --- attributes: each is modelled, a fact, or refused with its reason -----------------------------
Kind = Literal["modelled", "fact", "refused", "absent"]
Refusals = Callable[[str], str | None]


@dataclass(frozen=True, slots=True)
class AttributeRow:
    """What a symbol does when one attribute is read.

    Attributes:
        kind: modelled: recorded with the library's meaning; fact: fixed for the capture, which is
            repeated; refused: the function runs unconverted; absent: an AttributeError, since the
            library's tensors have no such attribute.
        reason: why it is refused.
    """

    kind: Kind
    reason: str = ""


MODELLED, FACT, ABSENT = AttributeRow("modelled"), AttributeRow("fact"), AttributeRow("absent")
_FACTS = """
    __bool__ __class__ __complex__ __float__ __format__ __hash__ __index__ __int__ __len__ __repr__
    __str__ device dtype ndim shape
"""
FACTS = frozenset(_FACTS.split())
NUMBERS = "which needs the tensor's numbers; a symbol holds none"
VALUES = "whose result depends on the tensor's values in its shape or in Python"
MEMORY = "which tells of memory; one graph serves all layouts and devices"
INDICES = "which gives or takes integer indices in a way not captured"
PARTS = "which is not captured; use indices and xp.concat"
ALGEBRA = "which is linear algebra that is not captured"
COMPLEX = "which is of complex numbers; rules compute in bool and float dtypes"
BUFFER = "which hands the memory to another library"
PRIVATE = "which is private to the library"
OBJECT = "which is Python's own of the real object"

# Python protocols that no symbol can answer soundly.
NEVER: dict[str, str] = {
    **dict.fromkeys(("__array__", "__reduce_ex__", "__tf_tensor__"), NUMBERS),
    **dict.fromkeys(("__contains__", "__iter__", "__reversed__"), VALUES),
}
SHARED = {
    OBJECT: """
        __delattr__ __dict__ __dir__ __getattribute__ __getstate__ __init_subclass__ __new__
        __reduce__ __setattr__ __setstate__ __sizeof__ __subclasshook__ __class_getitem__
        __weakref__ __annotations__ __abstractmethods__ __firstlineno__ __static_attributes__
        __slots__ __orig_bases__ __annotate_func__ __annotations_cache__
    """,
    BUFFER: """
        __array_interface__ __array_struct__ __array_finalize__ __array_wrap__ __buffer__ __dlpack*
        __cuda_array_interface__
    """,
    "which updates in place in a way not captured": "__delitem__",
    "which is not captured; write // and %": "__divmod__ __rdivmod__",
}
NUMPY = {
    VALUES: "argpartition choose compress nonzero partition",
    INDICES: "put searchsorted take",
    PARTS: "diagonal flat",
    ALGEBRA: "dot",
    MEMORY: """
        byteswap ctypes flags getfield itemsize nbytes resize setfield setflags strides to_device
        base
    """,
    NUMBERS: "dump dumps tobytes tofile",
    PRIVATE: "_set_dtype _set_shape",  # NumPy 2.5
    # From 2.0 on NumPy itself raises an error, before 2.3 in its own words.
    "which arrays of NumPy 2 do not have; use its functions": "itemset newbyteorder ptp tostring",
}


def refusals(groups: Mapping[str, str]) -> Refusals:
    """Return a function that gives the reason for refusing an attribute, or None.

    The groups map reasons to names, in which `*` matches any letters.
    """
    exact: dict[str, str] = {}
    patterns: list[tuple[str, str]] = []
    for reason, names in (*SHARED.items(), *groups.items()):
        for name in names.split():
            if "*" in name:
                patterns.append((name, reason))
            else:
                exact[name] = reason

    def find(name: str) -> str | None:
        reason = exact.get(name)
        if reason is not None:
            return reason
        return next((r for pattern, r in patterns if fnmatch.fnmatchcase(name, pattern)), None)

    return find


def find_row(name: str, dialect: Dialect | None, kind: type[Value]) -> AttributeRow | None:
    """Return the row of an attribute in a library, or None if it has none.

    Args:
        dialect: the library's; None: it is not known.
        kind: the class of symbols, whose own attributes are the first part of the table.
    """
    # The order decides: facts, protocols, the library's own attributes, our methods, refusals.
    if name in FACTS:
        return FACT
    if name in NEVER:
        return AttributeRow("refused", NEVER[name])
    if dialect is not None and dialect.classes.refusals is not None:
        if (
            name.startswith("__")
            and hasattr(dialect.tensors.tensor, name)
            and hasattr(object, name)
        ):
            return MODELLED if _owns(kind, name) else AttributeRow("refused", OBJECT)
        if name in dialect.names.attributes:
            return MODELLED
        if not hasattr(dialect.tensors.tensor, name):
            return ABSENT
    if _owns(kind, name) or find_method(name, dialect) is not None:
        return MODELLED
    if name in REFUSED:
        return AttributeRow("refused", REFUSED[name])
    reason = (
        None
        if dialect is None or dialect.classes.refusals is None
        else dialect.classes.refusals(name)
    )
    return None if reason is None else AttributeRow("refused", reason)


def check_callers(value: Value, name: str) -> None:
    """Check that the caller has not set an attribute of this name on an argument, which is a fact.

    Raises:
        TraceError: the caller has.
        AttributeError: the library of the tensor is not known, and the caller has set none.
    """
    trace, node = value.trace, value.node
    if trace.kind == "rule" or node.op is not ops.INPUT or node.type.kind != "tensor":
        return
    argument = node.attr("name")
    if trace.backward.is_running and argument.startswith("grad_out"):
        return
    fact = f"attribute.{name}:{argument}"
    if fact not in trace.facts:
        raise NeedsConcrete(fact)
    if trace.facts[fact]:
        raise trace.error(f"uses .{name}, which the caller has set on its argument {argument!r}")
    if not trace.reading.dialect:
        raise AttributeError(f"the argument {argument!r} has no attribute {name!r}")


def _owns(kind: type[Value], name: str) -> bool:
    return any(name in vars(base) for base in kind.__mro__[:-1])


def find_method(name: str, dialect: Dialect | None) -> tuple[Callable[..., Any], bool] | None:
    """Return a method's handler and whether it updates its tensor; None if not captured."""
    methods = {} if dialect is None else dialect.names.methods
    method = methods.get(name) or METHODS.get(name)
    if method is not None:
        return method, False
    if name.startswith("__"):
        return None
    plain = name.removesuffix("_")
    method = IN_PLACE.get(name)
    if method is None and plain != name:
        method = methods.get(plain) or METHODS.get(plain)
    if method is not None:
        return method, True
    method = _find_other(name, plain, dialect)
    return None if method is None else (method, plain != name)


def _find_other(name: str, plain: str, dialect: Dialect | None) -> Callable[..., Any] | None:
    # A method without a row, of a library that can tell how it computes it.
    if dialect is None or dialect.calls.other_way is None or name in REFUSED:
        return None
    if dialect.classes.refusals is not None and dialect.classes.refusals(name) is not None:
        return None
    method = getattr(dialect.tensors.tensor, plain, None)
    return None if method is None else dialect.calls.other_way(method)


# Other ways in which Python reads a value: the form, its kind for a number and for a tensor.
FORMS: tuple[tuple[str, Kind, Kind, str], ...] = (
    ("if x, while x, x and y, not x", "fact", "refused", VALUES),
    ("the same of a function's tensor of one element", "fact", "modelled", "all ways, up to 16"),
    ("float(x), int(x), complex(x)", "fact", "refused", NUMBERS),
    ("x.item() of a function's tensor of one element", "fact", "modelled", "stays a tensor"),
    ("assert x > 0, if x < 0: raise", "fact", "modelled", "assumed; its own framework runs it"),
    ("x.name = ..., which x does not have", "refused", "modelled", "callers: on its own framework"),
    ("range(x), an index of a list", "fact", "refused", NUMBERS),
    ("{x: ...}, x in {...}, hash(x)", "fact", "refused", NUMBERS),
    ("str(x), repr(x), f'{x}', format(x)", "fact", "refused", NUMBERS),
    ("x.shape as a tuple, x.dtype as a key or by `is`", "fact", "fact", ""),
    ("len(x), x.shape[i]", "refused", "modelled", "a number has no length"),
    ("isinstance(x, ...), type(x), x.__class__, match, singledispatch", "modelled", "modelled", ""),
    ("for row in x, list(x), zip(x), enumerate(x)", "refused", "fact", "in a rule refused"),
    ("reversed(x)", "refused", "refused", VALUES),
    ("copy.deepcopy(x)", "modelled", "modelled", ""),
    ("copy.copy(x)", "modelled", "refused", "a view in one library, a copy in another"),
    ("pickle.dumps(x), id(x)", "refused", "refused", NUMBERS),
    ("hasattr(x, name), getattr(x, name, default)", "modelled", "modelled", ""),
    ("try: ... except: around any of these", "fact", "refused", "what x could not say is kept"),
    ("random, numpy.random, torch.rand without a symbol", "refused", "refused", "drawn once"),
    ("time, os.urandom, uuid, secrets", "refused", "refused", "another value each time"),
    ("print, open, input", "refused", "refused", "once, and not at each call"),
    ("global, nonlocal, list.append, self.last = x", "refused", "refused", "once, on a symbol"),
    ("a tensor of an object, a variable", "refused", "refused", "may change between calls"),
    ("a number, an array or a tensor of the module or the closure", "modelled", "modelled", ""),
)
