"""The witness: mpmath for numbers, sympy for derivatives; nothing of ours computes here.

A formula is evaluated with more digits than the dtype's whole range has, so that no intermediate
sum loses anything, and rounded once. At infinity it is what the formula tends to.
"""

from __future__ import annotations

import ast
import functools
import importlib
import math
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from multigrad_conformance.vectors import NoVectors

from .elementwise import Formula
from .rounding import Format, High, is_near_tie

Function = Callable[..., High]
FAR = (10**15, 10**25)  # times e: in the place of infinity
SAME = 1e-9


def library(name: str) -> ModuleType:
    """Return mpmath or sympy, imported where it is first used."""
    return importlib.import_module(name)


# --- text to functions ----------------------------------------------------------------------------


class _Exact(ast.NodeTransformer):
    """Makes sympy's numbers of a text's, and its equations of comparisons."""

    def __init__(self, text: str) -> None:
        self.text = text

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        digits = ast.get_source_segment(self.text, node)
        return _call("Rational", ast.Constant(digits)) if digits else node

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.ops[0], ast.Eq):
            return _call("Eq", node.left, node.comparators[0])
        return node


def _call(name: str, *arguments: ast.expr) -> ast.Call:
    return ast.Call(ast.Name(name, ast.Load()), list(arguments), [])


# What `_Exact` writes, which no text has.
_MADE = {"Rational", "Eq"}


@functools.cache
def _words() -> dict[str, Any]:
    """Return what the names in formulas mean to sympy."""
    sympy = library("sympy")

    def where(condition: Any, a: Any, b: Any) -> Any:
        return sympy.Piecewise((a, condition), (b, True))

    def ndtri(x: Any) -> Any:
        return sympy.sqrt(2) * sympy.erfinv(2 * x - 1)

    class ndtr(sympy.Function):  # erfc(-x) would be written as 2 - erfc(x), which cancels
        def fdiff(self, argindex: int = 1) -> Any:
            (x,) = self.args
            return sympy.exp(-(x**2) / 2) / sympy.sqrt(2 * sympy.pi)

    own = {name: sympy.Function(name, real=True) for name in ("nearest", "copysign", "nextafter")}
    same = (
        "exp log sqrt sin cos tan asin acos atan atan2 sinh cosh tanh asinh acosh atanh erf erfc "
        "erfinv besseli polygamma digamma floor pi Rational Eq"
    )
    words = {name: getattr(sympy, name) for name in same.split()}

    def larger(a: Any, b: Any) -> Any:
        return where(b < a, a, b)  # NaN in b stays

    def s(x: Any) -> Any:
        return 1 / (1 + sympy.exp(-x))

    made = {"inf": sympy.oo, "where": where, "Max": larger, "s": s, "ndtr": ndtr, "ndtri": ndtri}
    return {**own, **words, **made, "abs": sympy.Abs, "lgamma": sympy.loggamma}


def parse(text: str, names: Sequence[str]) -> Any:
    """Return the expression of a formula's text; its names are real.

    Raises:
        NoVectors: the text has a name that is neither one of these nor a word of formulas.
    """
    sympy, tree = library("sympy"), ast.parse(text, mode="eval")
    symbols = {name: sympy.Symbol(name, real=True) for name in names}
    words = {**_words(), **symbols}
    unknown = {each.id for each in ast.walk(tree) if isinstance(each, ast.Name)} - {*words}
    if unknown:
        raise NoVectors(
            f"formula {text!r} has {', '.join(sorted(unknown))}, which is no word of formulas; "
            f"there are {', '.join(sorted(words.keys() - _MADE))}, numbers, comparisons and "
            "Python's operators"
        )
    tree = ast.fix_missing_locations(_Exact(text).visit(tree))
    return sympy.sympify(eval(compile(tree, text, "eval"), words))


@functools.cache
def _meanings() -> dict[str, Function]:
    """Return what mpmath lacks, or gives a complex number for."""
    mp = library("mpmath").mp

    def loggamma(x: High) -> High:
        return mp.re(mp.loggamma(x))

    def ndtr(x: High) -> High:
        return mp.erfc(-x / mp.sqrt(2)) / 2

    def copysign(x: High, y: High) -> High:
        return -abs(x) if y < 0 else abs(x)

    def psi(n: int, x: High) -> High:
        """Below zero by reflection, which mpmath's takes a step per unit for."""
        if x >= 0 or x == mp.floor(x):
            return mp.psi(n, x) if x > 0 else _pole()
        far = mp.pi * (x - mp.nint(x))
        if n == 1:
            return (mp.pi / mp.sin(far)) ** 2 - mp.psi(1, 1 - x)
        return mp.psi(0, 1 - x) - mp.pi / mp.tan(far) if n == 0 else mp.nan

    return {
        "psi": psi,
        "polygamma": psi,
        "loggamma": loggamma,
        "nearest": mp.nint,
        "ndtr": ndtr,
        "copysign": copysign,
    }


def _pole() -> High:
    raise ValueError("pole")


def compile_expression(expression: Any, names: Sequence[str]) -> Function:
    return library("sympy").lambdify(names, expression, [_meanings(), "mpmath"])


def functions_of(formula: Formula) -> tuple[Function, tuple[Function, ...]]:
    """Return what computes a formula's value, and its derivatives by the operands."""
    sympy, names = library("sympy"), (*formula.operands, *formula.attrs)
    value = parse(formula.value, names)
    if formula.slopes is None:
        found = [sympy.diff(value, sympy.Symbol(name, real=True)) for name in formula.operands]
    else:
        found = [parse(text, names) for text in formula.slopes]
    return compile_expression(value, names), tuple(compile_expression(f, names) for f in found)


# --- numbers --------------------------------------------------------------------------------------


def evaluate(function: Function, arguments: Sequence[float], format: Format) -> High:
    """Return the exact number that a function has at numbers of a dtype, or NaN; None at a pole
    whose sides differ.

    At infinity, and at a pole, it is what the function tends to from the side that the sign says.
    """
    mp = library("mpmath").mp
    with mp.workdps(format.decimals):
        if any(math.isnan(x) for x in arguments):
            return _real(function, [mp.mpf(x) for x in arguments])
        if any(math.isinf(x) for x in arguments):
            ends = [_real(function, [_far(mp, x, far) for x in arguments]) for far in FAR]
            return _limit(mp, *ends)
        exact = _real(function, [mp.mpf(x) for x in arguments])
        if exact is None:
            beside = [mp.mpf(math.copysign(1, x)) * mp.mpf(10) ** -5000 if x == 0 else mp.mpf(x)
                      for x in arguments]  # fmt: skip
            tended = _real(function, beside)
            if tended is None or not mp.isfinite(tended):
                return None
            return mp.inf * mp.sign(tended) if abs(tended) > 1000 else tended
        if not is_near_tie(exact, format):
            return exact
    with mp.workdps(3 * format.decimals):  # the next digits decide
        return _real(function, [mp.mpf(x) for x in arguments])


def _real(function: Function, arguments: Sequence[High]) -> High:
    """Return a real number; NaN for a complex one, None at a pole."""
    mp = library("mpmath").mp
    try:
        found = function(*arguments)
    except (ZeroDivisionError, OverflowError):
        return None
    except ValueError as error:
        return None if "pole" in str(error) else mp.nan
    return mp.nan if isinstance(found, mp.mpc) else mp.mpf(found)


def _far(mp: Any, x: float, far: int) -> High:
    return mp.e * far * (1 if x > 0 else -1) if math.isinf(x) else mp.mpf(x)


def _limit(mp: Any, first: High, second: High) -> High:
    if first is None or second is None or mp.isnan(first) or mp.isnan(second):
        return mp.nan
    if first == second:  # infinite, too
        return second
    if abs(second) > 20 and abs(second) > 1.2 * abs(first):
        return mp.inf * mp.sign(second)
    if abs(second) < 1e-9 and abs(second) <= abs(first):
        return mp.mpf(0)
    return second if abs(first - second) < SAME * abs(second) else mp.nan
