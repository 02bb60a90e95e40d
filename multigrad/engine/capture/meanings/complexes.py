"""Complex tensors in captured code: two symbols, the real and the imaginary part.

A graph holds real numbers only, so a complex result is composed from the parts: a linear function
is applied to each part, a product to each pair of parts, and the rest has a row in `HANDLERS`.
Anything else is refused by name, as is a complex argument or result of the captured function.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterator
from typing import Any

import numpy as np

from ....core.trace.trace import is_symbolic_tensor
from ....core.trace.xp import all as xp
from ...lowering.calls import route_gradient
from ...trace.code_trace import Pair
from ..foreign_calls import record_call
from ..name_tables import Handler, handlers_by_name, reflected
from .parts import rank

Tensor = Any

# Functions f with f(a + ib) = f(a) + i f(b).
LINEAR = frozenset(
    {
        *("broadcast_to", "cat", "chunk", "clone", "concat", "concatenate", "contiguous", "cumsum"),
        *("detach", "diagonal", "expand", "expand_dims", "flatten", "flip", "identity", "mean"),
        *("moveaxis", "movedim", "neg", "negative", "permute", "permute_dims", "ravel"),
        *("reduce_mean", "reduce_sum", "repeat", "reshape", "roll", "split", "squeeze", "stack"),
        *("stop_gradient", "sum", "swapaxes", "tile", "trace", "transpose", "tril", "triu"),
        *("unbind", "unsqueeze"),
    }
)
# Functions that are linear in each of two operands.
PRODUCTS = frozenset(
    {
        *("bmm", "dot", "einsum", "inner", "kron", "matmul", "mm", "mv", "outer", "tensordot"),
    }
)
OF_SHAPE = ("device", "dim", "ndimension", "nelement", "numel", "size")
# Attributes by which code and libraries probe any object; an AttributeError is the answer.
ASKED = ("graph", "is_tensor_like", "node", "value")


class Complex(Pair):
    """A complex tensor, made of two symbolic real ones."""

    __slots__ = ("imag", "real")
    # Above that of np.ndarray, so that `array * z` calls `z.__rmul__`.
    __array_priority__ = 2000
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, real: Tensor, imag: Tensor) -> None:
        # A class-wide flag: until one complex value exists, `record_call` skips the search for
        # pairs.
        Pair.is_made = True
        self.real, self.imag = real, imag

    @property
    def trace(self) -> Any:  # type: ignore[override]
        return self.real.trace

    @property
    def shape(self) -> Any:
        return self.real.shape

    @property
    def ndim(self) -> int:
        return self.real.ndim

    def __getattr__(self, name: str) -> Any:
        if name in HANDLERS:
            return functools.partial(HANDLERS[name], self)
        if name in ("T", "mT"):
            return Complex(getattr(self.real, name), getattr(self.imag, name))
        if name in ("H", "mH"):
            return conjugate(getattr(self, name.replace("H", "T")))
        if name in OF_SHAPE:
            return getattr(self.real, name)
        if name in LINEAR:
            return functools.partial(self.by_part, name)
        if name.startswith("_") or name in ASKED:
            raise AttributeError(name)
        raise self.refused(f".{name}")

    def by_part(self, name: str, *args: Any, **kwargs: Any) -> Complex:
        for word in ("dtype", "initial"):  # which belong to the number, not to each part
            if word in kwargs:
                raise self.refused(f".{name} with {word}=")
        return Complex(*(getattr(x, name)(*args, **kwargs) for x in (self.real, self.imag)))

    def refused(self, shown: str) -> Exception:
        return self.trace.error(
            f"uses {shown} of complex numbers, which is not captured: write it with .real and .imag"
        )

    def called(self, library: str, function: Any, args: Any, kwargs: Any, shown: str) -> Any:
        """Return the result of a library function that is called with complex arguments."""
        name = str(getattr(function, "__name__", function))
        # torch.fft.fft is named "fft_fft", torch.linalg.norm "linalg_norm".
        name = name.removeprefix("fft_").removeprefix("linalg_")
        call = functools.partial(record_call, library, function, trace=self.trace, shown=shown)
        if name not in KNOWN:  # it may be wrapped; this is how people write it
            name = shown.rpartition(".")[2]
        try:
            if name in HANDLERS:
                return HANDLERS[name](*args, **kwargs)
            if name in LINEAR and kwargs.keys().isdisjoint(("dtype", "initial")):
                parts = [call(with_part(args, i), kwargs) for i in (0, 1)]
                if isinstance(parts[0], tuple | list):
                    return type(parts[0])(map(Complex, *parts))
                return Complex(*parts)
            if name in PRODUCTS:
                return product_by(lambda *operands: call(operands, kwargs), args)
        except (TypeError, ValueError) as error:
            raise self.trace.error(f"calls {shown} in a way not captured: {error}") from error
        raise self.refused(shown)

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        return record_call("torch", function, args, kwargs or {})

    def __array_ufunc__(self, ufunc: Any, method: str, *args: Any, **kwargs: Any) -> Any:
        if method != "__call__" or kwargs:
            raise self.refused(f"{ufunc.__name__}.{method}")
        return record_call("numpy", ufunc, args, kwargs)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return record_call("numpy", function, args, kwargs)

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise self.refused("the numbers")

    def __bool__(self) -> bool:
        raise self.refused("the truth")

    def __eq__(self, other: object) -> Any:
        raise self.refused("==")

    def __len__(self) -> int:
        return len(self.real)

    def __iter__(self) -> Iterator[Complex]:
        return iter([self[i] for i in range(len(self))])

    def __getitem__(self, item: Any) -> Complex:
        return Complex(self.real[item], self.imag[item])

    def __setitem__(self, item: Any, value: Any) -> None:
        real, imag = parts_of(value)
        self.real[item], self.imag[item] = real, 0.0 if imag is None else imag

    def __neg__(self) -> Complex:
        return Complex(-self.real, -self.imag)

    def __abs__(self) -> Tensor:
        return absolute(self)

    def __pow__(self, n: Any) -> Any:
        if not isinstance(n, int) or not 1 <= n <= 8:
            raise self.refused(f"the power {n!r}")
        return functools.reduce(multiply, [self] * n)


def parts_of(x: Any) -> tuple[Any, Any]:
    if isinstance(x, Complex | complex) or "complex" in str(getattr(x, "dtype", "")):
        return x.real, x.imag
    return x, None


def with_part(tree: Any, i: int) -> Any:
    """Return nested arguments with part i of each complex one.

    The imaginary part of a real tensor in a list of complex ones is zero; a real argument by itself
    stays, as does a list of integers.
    """

    def within(item: Any, in_list: bool) -> Any:
        if isinstance(item, tuple | list) and any(parts_of(x)[1] is not None for x in item):
            return type(item)(within(x, True) for x in item)
        real, imag = parts_of(item)
        if imag is None and in_list:
            imag = xp.zeros_like(item) if hasattr(item, "ndim") else 0.0
        return real if i == 0 or imag is None else imag

    return tuple(within(item, False) for item in tree)


def is_complex(x: Complex) -> bool:
    # Only calls with a complex argument come to the handlers here.
    return True


# --- arithmetic, and the two parts ----------------------------------------------------------------
def negative(x: Any) -> Any:
    return -x


def add(x: Any, y: Any) -> Complex:
    (a, b), (c, d) = parts_of(x), parts_of(y)
    # A real operand adds nothing to the imaginary part, which only has to be broadcast.
    if b is None or d is None:
        real, imag = a + c, d if b is None else b
        return Complex(real + xp.zeros_like(imag), imag + xp.zeros_like(real))
    return Complex(a + c, b + d)


def subtract(x: Any, y: Any) -> Complex:
    return add(x, negative(y))


def multiply(x: Any, y: Any) -> Complex:
    return product_by(operator.mul, (x, y))


def product_by(multiply: Handler, args: tuple[Any, ...]) -> Complex:
    """Return a product that is linear in both operands, or in the only complex one."""
    places = [i for i, x in enumerate(args) if parts_of(x)[1] is not None]

    def of(*which: int) -> Any:
        # The product of these parts, 0 real and 1 imaginary, of the complex operands.
        operands = list(args)
        for i, part in zip(places, which, strict=True):
            operands[i] = parts_of(args[i])[part]
        return multiply(*operands)

    if len(places) == 1:
        return Complex(of(0), of(1))
    if len(places) != 2:
        raise TypeError(f"a product of {len(places)} complex numbers; multiply two at a time")
    return Complex(of(0, 0) - of(1, 1), of(0, 1) + of(1, 0))


def divide(x: Any, y: Any) -> Complex:
    # Divide by the absolute value twice: its square could overflow.
    (a, b), (c, d) = parts_of(x), parts_of(y)
    if d is None:
        return Complex(a / c, b / c)
    modulus = xp.hypot(c, d)
    return divide(multiply(Complex(c / modulus, -d / modulus), x), modulus)


def matmul(x: Any, y: Any) -> Complex:
    return product_by(operator.matmul, (x, y))


OPERATORS = {"add": add, "sub": subtract, "mul": multiply, "truediv": divide, "matmul": matmul}
for _name, _method in OPERATORS.items():
    setattr(Complex, f"__{_name}__", _method)
    # `add` and `mul` commute; the others need their operands exchanged.
    _reflected = _method if _name in ("add", "mul") else reflected(_method)
    setattr(Complex, f"__r{_name}__", _reflected)


def square(x: Complex) -> Complex:
    return multiply(x, x)


def absolute(x: Complex) -> Tensor:
    return xp.hypot(x.real, x.imag)


def angle(x: Complex) -> Tensor:
    return xp.atan2(x.imag, x.real)


def conjugate(x: Complex) -> Complex:
    return Complex(x.real, -x.imag)


def exp(x: Complex) -> Complex:
    return _turned(xp.exp(x.real), x.imag)


def where(condition: Tensor, x: Any, y: Any) -> Complex:
    (a, b), (c, d) = parts_of(x), parts_of(y)
    imaginary_parts = [0.0 if part is None else part for part in (b, d)]
    return Complex(*(xp.where(condition, *pair) for pair in ((a, c), imaginary_parts)))


def polar(abs: Tensor, angle: Tensor) -> Complex:
    if is_symbolic_tensor(abs):
        # torch's slope has the sign of the modulus, which it takes to be positive: 0 at 0.
        abs = route_gradient(abs.trace, abs.node, to=xp.abs(abs).node)
    return _turned(abs, angle)


def _turned(modulus: Tensor, angle: Tensor) -> Complex:
    return Complex(modulus * xp.cos(angle), modulus * xp.sin(angle))


def view_as_real(x: Complex) -> Tensor:
    return xp.stack([x.real, x.imag], -1)


def view_as_complex(x: Tensor) -> Complex:
    return Complex(x[..., 0], x[..., 1])


def view(x: Complex, *shape: Any) -> Complex:
    if not all(isinstance(each, int | tuple | list) for each in shape):
        raise TypeError("view of complex numbers as another dtype; use view_as_real")
    return Complex(x.real.reshape(*shape), x.imag.reshape(*shape))


# --- transforms -----------------------------------------------------------------------------------
def transform(kind: str, default_axes: Any) -> Handler:
    """Return a Fourier transform with the parameters of all array libraries.

    The axes are `dim` in torch, `axis` or `axes` in NumPy and JAX; the lengths are `n`, for several
    axes `s`, and `fft_length` in TensorFlow.
    """
    run = getattr(xp, kind.replace("2", "").removesuffix("n"))

    def record(
        x: Any,
        n: Any = None,
        dim: Any = default_axes,
        norm: Any = None,
        *,
        s: Any = None,
        axis: Any = None,
        axes: Any = None,
        fft_length: Any = None,
        out: Any = None,
    ) -> Any:
        if out is not None:
            raise TypeError(f"{kind} with out=")
        axes_taken = next((each for each in (axes, axis) if each is not None), dim)
        lengths = next((each for each in (s, fft_length) if each is not None), n)
        lengths = lengths.tolist() if isinstance(lengths, np.ndarray) else lengths
        options = {
            "n": tuple(lengths) if isinstance(lengths, tuple | list) else lengths,
            "axes": tuple(axes_taken) if isinstance(axes_taken, tuple | list) else axes_taken,
            "norm": norm or "backward",
        }
        # The transforms of real input take no imaginary part.
        if kind.startswith("rfft"):
            if isinstance(x, Complex):
                raise TypeError(f"{kind} of complex numbers")
            return Complex(*run(x, **options))
        real, imag = parts_of(x)
        result = run(real, xp.zeros_like(real) if imag is None else imag, **options)
        return Complex(*result) if isinstance(result, tuple) else result

    record.__name__ = record.__qualname__ = kind
    return record


KINDS = ("fft", "ifft", "rfft", "irfft")
TRANSFORMS: dict[str, Handler] = {
    **{kind: transform(kind, -1) for kind in KINDS},
    **{f"{kind}2": transform(f"{kind}2", (-2, -1)) for kind in KINDS},
    **{f"{kind}n": transform(f"{kind}n", None) for kind in KINDS},
}
# TensorFlow's names.
TRANSFORMS_2D = {
    **{kind: TRANSFORMS[kind] for kind in KINDS},
    **{f"{kind}2d": TRANSFORMS[f"{kind}2"] for kind in KINDS},
}


def shifted(x: Any, dim: Any = None, *, axes: Any = None, back: bool = False) -> Any:
    """Roll by half the length along the given axes, or along all of them."""
    dim = dim if axes is None else axes
    places = range(rank(x)) if dim is None else [dim] if isinstance(dim, int) else dim
    if isinstance(x, Complex):
        return Complex(*(shifted(part, dim, back=back) for part in (x.real, x.imag)))
    for axis in places:
        half = operator.index(xp.dim(x, axis)) // 2
        x = xp.roll(x, -half if back else half, axis)
    return x


SHIFTS: dict[str, Handler] = {
    "fftshift": shifted,
    "ifftshift": functools.partial(shifted, back=True),
}
HANDLERS: dict[str, Handler] = {
    **TRANSFORMS,
    **TRANSFORMS_2D,
    **SHIFTS,
    **handlers_by_name(
        {
            __name__: """
                absolute: abs absolute complex_abs; add: add __add__ __radd__; angle;
                conjugate: conj conjugate conj_physical resolve_conj;
                divide: divide div true_divide truediv __truediv__; exp;
                is_complex: is_complex iscomplexobj; multiply: multiply mul __mul__ __rmul__;
                square; subtract: subtract sub __sub__; view; view_as_real; where
            """
        }
    ),
    "imag": operator.attrgetter("imag"),
    "real": operator.attrgetter("real"),
}
KNOWN = frozenset((*HANDLERS, *LINEAR, *PRODUCTS))


def of_library(module: Any) -> dict[Any, Handler]:
    """Return handlers for a library's transforms and shifts, by function."""
    return {getattr(module, name): handler for name, handler in (TRANSFORMS | SHIFTS).items()}
