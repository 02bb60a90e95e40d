"""What each elementwise op means, as text for the witness: nothing of the op table is asked.

A formula is a real function of the op's operands, written as mathematics has it and not as floats
need it. Its derivative is sympy's; where a formula has steps, which sympy knows no derivative of,
the slopes stand beside it. What is taken at ties and of NaN is in `cases.py`, at other kinks in
`KINKS` of multigrad/core/ops/properties.py.

A text has operands, attributes, numbers, comparisons, Python's operators (`**` is a power), `inf`,
`pi`, `where(c, a, b)` and functions. `_words` in `witness.py` has them all, as has the error for a
word that is none.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from multigrad_conformance.vectors import OF_OURS


@dataclass(frozen=True, slots=True)
class Formula:
    """A function as text.

    Attributes:
        value: of the operands and the attributes; `where(c, a, b)` chooses.
        operands: their names, which the text has.
        slopes: the derivatives as texts, one for each operand; None: sympy's.
        attrs: numbers that shape it, as `xg.xp` takes them, and their values here.
    """

    value: str
    operands: tuple[str, ...] = ("x",)
    slopes: tuple[str, ...] | None = None
    attrs: dict[str, Any] = field(default_factory=dict)


def _step(value: str) -> Formula:
    """A function whose derivative is zero wherever there is one."""
    return Formula(value, slopes=("0",))


def _pair(value: str, *slopes: str) -> Formula:
    return Formula(value, ("a", "b"), slopes or None)


SELU_SCALE = "1.0507009873554804934193349852946"
SELU_ALPHA = "1.6732632423543772848170429916717"
UNARY: dict[str, Formula] = {
    **{
        name: Formula(value)
        for name, value in {
            "negative": "-x",
            "abs": "where(x < 0, -x, x)",
            "square": "x**2",
            "sqrt": "sqrt(x)",
            "rsqrt": "1 / sqrt(x)",
            "reciprocal": "1 / x",
            "cbrt": "where(x < 0, -(-x)**(1/3), x**(1/3))",
            "exp": "exp(x)",
            "expm1": "exp(x) - 1",
            "exp2": "2**x",
            "log": "log(x)",
            "log1p": "log(1 + x)",
            "log2": "log(x) / log(2)",
            "log10": "log(x) / log(10)",
            "sin": "sin(x)",
            "cos": "cos(x)",
            "tan": "tan(x)",
            "asin": "asin(x)",
            "acos": "acos(x)",
            "atan": "atan(x)",
            "deg2rad": "pi * x / 180",
            "rad2deg": "180 * x / pi",
            "sinh": "sinh(x)",
            "cosh": "cosh(x)",
            "tanh": "tanh(x)",
            "asinh": "asinh(x)",
            "acosh": "acosh(x)",
            "atanh": "atanh(x)",
            "sinc": "where(x == 0, 1, sin(pi * x) / (pi * x))",
            "erf": "erf(x)",
            "erfc": "erfc(x)",
            "erfinv": "erfinv(x)",
            "ndtr": "ndtr(x)",
            "ndtri": "ndtri(x)",
            "log_ndtr": "log(ndtr(x))",
            "lgamma": "lgamma(x)",
            "digamma": "digamma(x)",
            "i0e": "exp(-abs(x)) * besseli(0, x)",
            "i1e": "exp(-abs(x)) * besseli(1, x)",
            "sigmoid": "1 / (1 + exp(-x))",
            "log_sigmoid": "-log(1 + exp(-x))",
            "logit": "log(x / (1 - x))",
            "silu": "x / (1 + exp(-x))",
            "softplus": "log(1 + exp(x))",
            "mish": "x * tanh(log(1 + exp(x)))",
            "relu": "where(x > 0, x, 0)",
            "relu6": "where(x > 6, 6, where(x > 0, x, 0))",
            "selu": f"{SELU_SCALE} * where(x > 0, x, {SELU_ALPHA} * (exp(x) - 1))",
            "sparse_plus": "where(x >= 1, x, where(x <= -1, 0, (x + 1)**2 / 4))",
            "sparse_sigmoid": "where(x >= 1, 1, where(x <= -1, 0, (x + 1) / 2))",
            "soft_sign": "x / (1 + abs(x))",
            "tanh_shrink": "x - tanh(x)",
            "hard_sigmoid": "where(x >= 3, 1, where(x <= -3, 0, (x + 3) / 6))",
            "hard_silu": "where(x >= 3, x, where(x <= -3, 0, x * (x + 3) / 6))",
        }.items()
    },
    "sign": _step("where(x < 0, -1, where(x > 0, 1, 0))"),
    "floor": _step("floor(x)"),
    "ceil": _step("-floor(-x)"),
    "round": _step("nearest(x)"),
    "trunc": _step("where(x < 0, -floor(-x), floor(x))"),
    "heaviside": _step("where(x > 0, 1, 0)"),
    "stop_gradient": _step("x"),
    "nan_to_num": Formula("x"),  # what NaN and infinities become is in cases.py
    "astype": Formula("x", slopes=("1",), attrs={"dtype": "float16"}),
    "frac": Formula("x - where(x < 0, -floor(-x), floor(x))", slopes=("1",)),
    "polygamma": Formula("polygamma(n, x)", attrs={"n": 1}),
    "leaky_relu": Formula("where(x > 0, x, slope * x)", attrs={"slope": 0.01}),
    "elu": Formula("where(x > 0, x, alpha * (exp(x) - 1))", attrs={"alpha": 1.0}),
    "celu": Formula("where(x > 0, x, alpha * (exp(x / alpha) - 1))", attrs={"alpha": 1.5}),
    "gelu": Formula("x * ndtr(x)"),
    "gelu, approximate": Formula(
        "x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3)))", attrs={"approximate": True}
    ),
    "squareplus": Formula("(x + sqrt(x**2 + b)) / 2", attrs={"b": 4.0}),
    "soft_shrink": Formula(
        "where(x > lambd, x - lambd, where(x < -lambd, x + lambd, 0))", attrs={"lambd": 0.5}
    ),
    "hard_shrink": Formula("where(abs(x) > lambd, x, 0)", attrs={"lambd": 0.5}),
    "threshold": Formula(
        "where(x > threshold, x, default)", attrs={"threshold": 0.5, "default": 20.0}
    ),
    "hard_tanh": Formula(
        "where(x > max, max, where(x < min, min, x))", attrs={"min": -1.0, "max": 1.0}
    ),
}
BINARY: dict[str, Formula] = {
    "add": _pair("a + b"),
    "subtract": _pair("a - b"),
    "multiply": _pair("a * b"),
    "divide": _pair("a / b"),
    "pow": _pair("a**b", "where(b == 0, 0, b * a**(b - 1))", "where(a > 0, a**b * log(a), 0)"),
    "maximum": _pair("where(a > b, a, b)"),
    "minimum": _pair("where(a < b, a, b)"),
    "fmax": _pair("where(a > b, a, b)"),
    "fmin": _pair("where(a < b, a, b)"),
    "copysign": _pair("copysign(a, b)", "copysign(1, a) * copysign(1, b)", "0"),
    "floor_divide": _pair("floor(a / b)", "0", "0"),
    "remainder": _pair("a - b * floor(a / b)", "1", "-floor(a / b)"),
    "fmod": _pair(
        "a - b * where(a / b < 0, -floor(-a / b), floor(a / b))",
        "1",
        "where(a / b < 0, floor(-a / b), -floor(a / b))",
    ),
    "nextafter": _pair("nextafter(a, b)", "1", "0"),
    "full_like": Formula("value", ("x", "value"), ("0", "1")),
    "hypot": _pair("sqrt(a**2 + b**2)"),
    "atan2": _pair("atan2(a, b)"),
    "logaddexp": _pair("log(exp(a) + exp(b))"),
    "xlogy": _pair("where(a == 0, 0, a * log(b))", "log(b)", "where(a == 0, 0, a / b)"),
    "xlog1py": _pair(
        "where(a == 0, 0, a * log(1 + b))", "log(1 + b)", "where(a == 0, 0, a / (1 + b))"
    ),
}
TERNARY: dict[str, Formula] = {
    # The bounds belong to the inside; where they cross, all is the upper one.
    "clip": Formula(
        "where(max < min, max, where(x < min, min, where(max < x, max, x)))",
        ("x", "min", "max"),
        (
            "where(max < min, 0, where(x < min, 0, where(max < x, 0, 1)))",
            "where(min < max, where(x < min, 1, 0), 0)",  # bounds that are equal have none
            "where(max < min, 1, where(max < x, 1, 0))",
        ),
    ),
    "lerp": Formula("start + weight * (end - start)", ("start", "end", "weight")),
    "where": Formula(
        "where(condition == 0, b, a)",
        ("condition", "a", "b"),
        ("0", "where(condition == 0, 0, 1)", "where(condition == 0, 1, 0)"),
    ),
}
SIGN = "where(x < 0, -1, 1)"
WINDOW = ("where(abs(x) <= clip, 1, 0)",)
# Functions of one number whose gradient is meant to differ, with the numbers that they default to.
OURS: dict[str, Formula] = {
    "ste_round": Formula("nearest(x)", slopes=("1",)),
    "ste_floor": Formula("floor(x)", slopes=("1",)),
    "ste_ceil": Formula("-floor(-x)", slopes=("1",)),
    "ste_trunc": Formula("where(x < 0, -floor(-x), floor(x))", slopes=("1",)),
    "ste_sign": Formula(SIGN, slopes=WINDOW, attrs={"clip": 1.0}),
    "ste_heaviside": Formula("where(x > 0, 1, 0)", slopes=WINDOW, attrs={"clip": 1.0}),
    "ste_ternary": Formula(
        "where(x >= threshold, 1, where(x <= -threshold, -1, 0))",
        slopes=WINDOW,
        attrs={"threshold": 0.05, "clip": 1.0},
    ),
    "approx_sign": Formula(SIGN, slopes=("where(abs(x) <= 1, 2 * (1 - abs(x)), 0)",)),
    "swish_sign": Formula(
        SIGN,
        slopes=("beta * (2 - beta * x * tanh(beta * x / 2)) * 2 * s(beta * x) * s(-beta * x)",),
        attrs={"beta": 5.0},
    ),
    "clipped_relu": Formula(
        "where(x > c, c, where(x > 0, x, 0))",
        slopes=("where(x > 0, where(x < c, 1, 0), 0)",),
        attrs={"c": 1.0},
    ),
    "gradient_reversal": Formula("x", slopes=("-alpha",), attrs={"alpha": 1.0}),
}
FORMULAS: dict[str, Formula] = {
    **UNARY,
    **BINARY,
    **TERNARY,
    **{f"{OF_OURS}{name}": formula for name, formula in OURS.items()},
}
