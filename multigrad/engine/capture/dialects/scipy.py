"""SciPy's linear algebra and special functions, on symbolic values.

They are known once the user's code has imported `scipy.linalg` or `scipy.special`; nothing here
imports them. `scipy.special` has ufuncs, whose calls with symbolic values reach NumPy's dialect;
`scipy.linalg` offers no protocol, so code gets stand-ins for its functions.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from types import ModuleType
from typing import Any

from ....core.support.lazy_modules import imported_module
from ....core.trace.trace import Value
from ....core.trace.xp import all as xp
from ..foreign_calls import record_call
from ..meanings import composites, matrices, parts
from ..name_tables import Handler, Library, ops_by_name

MODULE = "scipy.linalg"


def cholesky(a: Value, lower: bool = False) -> Value:
    return matrices.cholesky(a, not lower)


def cho_factor(a: Value, lower: bool = False) -> tuple[Value, bool]:
    return matrices.cholesky(a, not lower), lower


def cho_solve(c_and_lower: tuple[Value, bool], b: Value) -> Value:
    factor, lower = c_and_lower
    return matrices.cholesky_solve(b, factor, not lower)


def solve_triangular(
    a: Value, b: Value, trans: Any = 0, lower: bool = False, unit_diagonal: bool = False
) -> Value:
    return xp.solve_triangular(
        a, b, lower=lower, transposed=matrices.is_transposed(trans), unit_diagonal=unit_diagonal
    )


def inv(a: Value, assume_a: Any = None, lower: bool = False) -> Value:
    if assume_a not in (None, "gen", "general"):
        raise TypeError(f"inv takes no assume_a but 'gen', got {assume_a!r}")
    return xp.inv(a)


def lu_solve(lu_and_piv: tuple[Value, Value], b: Value, trans: int = 0) -> Value:
    packed, pivots = lu_and_piv
    return matrices.lu_solve_of(packed, pivots, b, matrices.is_transposed(trans))


def lu(a: Value, permute_l: bool = False, p_indices: bool = False) -> Any:
    if p_indices and not permute_l:
        raise TypeError("lu takes p_indices only with permute_l")
    p, lower, upper = matrices.lu(a)
    return (xp.matmul(p, lower), upper) if permute_l else (p, lower, upper)


def svd(a: Value, full_matrices: bool = True, compute_uv: bool = True) -> Any:
    return matrices.svd(a, full_matrices) if compute_uv else matrices.svdvals(a)


def eigh(a: Value, lower: bool, eigvals_only: bool = False) -> Any:
    values, vectors = matrices.eigh(a, not lower)
    return values if eigvals_only else (values, vectors)


eigvalsh = functools.partial(eigh, eigvals_only=True)


def qr(a: Value, mode: str) -> Any:
    # In the mode "full" q is square and r keeps its rows of zeros: if there are more rows than
    # columns, that has no derivative.
    if mode not in ("full", "economic", "r"):
        raise TypeError("qr takes no mode but 'full', 'economic' and 'r'")
    q, r = matrices.qr(a, mode != "economic")
    return (r,) if mode == "r" else (q, r)


# The functions of scipy.linalg by the module that has their handlers.
LINALG_NAMES: dict[Any, str] = {
    matrices: "lu_factor; svdvals; scipy_solve: solve; norm; pinv",
    parts: "block_diag",
    __name__: """
        cho_factor; cho_solve; cholesky; eigh; eigvalsh; inv; lu; lu_solve; qr;
        solve_triangular; svd
    """,
    xp: "det; expm",
}


def gammaln(x: Value) -> Value:
    # SciPy gives -inf at -inf, C's lgamma gives inf.
    return xp.where(xp.equal(x, -math.inf), -math.inf, xp.lgamma(x))


SPECIAL: dict[str, Handler] = {
    **ops_by_name("""
        cbrt; expm1; exp2; log1p; xlogy; xlog1py; erf; erfc; erfinv; ndtr; ndtri; log_ndtr;
        digamma: psi; i0e; i1e; sigmoid: expit; log_sigmoid: log_expit; logit
    """),
    "entr": composites.entr,
    "gammaln": gammaln,
    "rel_entr": composites.rel_entr,
}


def of_scipy(function: Any) -> Handler:
    """Return the handler of a function of scipy.special or scipy.linalg.

    Raises:
        KeyError: it is no such function, or its module is not imported.
    """
    special = imported_module("scipy.special")
    name = getattr(function, "__name__", "")
    if special is None or getattr(special, name, None) is not function:
        return functions()[function]
    return SPECIAL[name]


def functions() -> dict[Any, Handler]:
    """Return the handlers of scipy.linalg's functions, empty until it is imported."""
    module = imported_module(MODULE)
    return {} if module is None else named_in(module)


@functools.cache
def named_in(module: ModuleType) -> dict[Any, Handler]:
    return Library(module).called(LINALG_NAMES)


def stand_ins(has_symbols: Callable[..., bool]) -> dict[Any, Handler]:
    """Return replacements of scipy.linalg's functions for captured code, which record a call whose
    arguments, as a tuple, `has_symbols`.
    """
    return {each: functools.partial(call, has_symbols, each) for each in functions()}


def call(has_symbols: Callable[..., bool], function: Any, *args: Any, **kwargs: Any) -> Any:
    if not has_symbols((*args, *kwargs.values())):
        return function(*args, **kwargs)
    name = f"{MODULE}.{function.__name__}"
    return record_call("numpy", function, args, kwargs, shown=name)
