"""`xg.parity`: outputs and gradients on every backend, compared with float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from ..core.backend.contract import Backend
from ..core.backend.discovery import load_backend
from ..core.functions.recipe import NotCaptured
from ..core.lowering.function_graph import FunctionGraph
from ..core.rules.activation import Activation
from ..core.rules.context import use
from ..core.rules.vjp import function_in_force
from ..core.support.trees import optree
from ..core.trace.lookups import at_present
from ..engine.backend.statuses import backends
from ..engine.capture.user_code.object_state import read_state
from ..engine.functions.function import as_function
from ..engine.functions.known_forms import capture_example
from ..engine.functions.object_function import owner_of_method
from ..engine.functions.proof.compare import are_off, eps_of, margins, smallest_of
from ..engine.functions.proof.meanings import Bounded
from ..errors import RuleTypeError, TraceError
from .subject import (
    Inputs,
    Report,
    Subject,
    in_dtype,
    is_float_array,
    make_inputs,
    ones,
    precision,
    read_inputs,
    run_arrays,
    run_graphs,
    subject_of,
)

Array: TypeAlias = np.ndarray[Any, Any]
ROUNDINGS = 4  # of the largest intermediate value: what "the same numbers" allows
SIGNS = "the signs of vectors, which each library chooses"
KEY = 7  # of the draws of random rules, the same everywhere


@dataclass(frozen=True, slots=True)
class ParityRow:
    """One output or gradient on one backend, compared with float64.

    Examples:
        >>> row = xg.parity("triangular", np.array([0.3]), backends=["numpy"]).rows[-1]
        >>> row.backend, row.what, row.dtype, row.ok
        ('numpy', 'gradient of x', 'float64', True)
        >>> row.max_abs <= row.allowed
        True

    Attributes:
        what: "output", or "gradient of x".
        max_ulp: the largest difference to NumPy's result, in units in the last place.
        max_abs: the largest difference to float64.
        allowed: the bound of the element where the difference comes nearest to it.
        problem: what is wrong; where nothing is, what the backend's library chooses for itself.
    """

    backend: str
    what: str
    dtype: str
    ok: bool
    max_ulp: float
    max_abs: float
    allowed: float
    problem: str = ""


@dataclass(frozen=True, slots=True, repr=False)
class ParityReport(Report):
    """What `xg.parity` found; prints as a table.

    Examples:
        >>> report = xg.parity(xg.activation("Tanh"), np.array([-1.0, 0.5]), backends=["numpy"])
        >>> report.ok, report.max_ulp
        (True, 0.0)
        >>> [row.what for row in report.rows]
        ['output', 'gradient of x']

    Attributes:
        ok: whether every backend gives the same numbers.
        max_ulp: the largest difference to NumPy's results, in units in the last place (near zero
            this says little).
        max_abs: the largest difference to float64.
        rows: one for each backend and each output or gradient.
    """

    name: str
    rows: tuple[ParityRow, ...]

    @property
    def ok(self) -> bool:
        return all(row.ok for row in self.rows)

    @property
    def max_ulp(self) -> float:
        return max((row.max_ulp for row in self.rows), default=0.0)

    @property
    def max_abs(self) -> float:
        return max((row.max_abs for row in self.rows), default=0.0)

    def __str__(self) -> str:
        verdict = "the same numbers everywhere" if self.ok else "NOT THE SAME NUMBERS"
        if self.ok and any(row.problem for row in self.rows):
            verdict += f" but for {SIGNS}"
        wide = max((len(row.what) for row in self.rows), default=0)
        lines = [
            f"{self.name}: {verdict}",
            (
                f"  {'backend':12} {'what':{wide}} {'dtype':8} {'max ulp':>8} {'max abs':>9} "
                f"{'allowed':>9}"
            ),
        ]
        for row in self.rows:
            line = (
                f"  {row.backend:12} {row.what:{wide}} {row.dtype:8} {row.max_ulp:8.3g} "
                f"{row.max_abs:9.2e} {row.allowed:9.2e}  {row.problem}"
            )
            lines.append(line.rstrip())
        return "\n".join(lines)


def parity(
    obj: str | Callable[..., Any], *inputs: Any, backends: str | Sequence[str] | None = None
) -> ParityReport:
    """Run forward and backward on every backend, and compare them with float64.

    Examples:
        >>> report = xg.parity("triangular", backends=["numpy"])
        >>> report.ok
        True
        >>> xg.parity("triangular").ok  # on every backend that is installed
        True

    "The same numbers" means: the error of each element is at most 4 eps of its dtype times the
    largest intermediate value that it comes from; bools and integers are equal. Inputs keep their
    dtype; cotangents are ones. Random rules draw from one key.

    Args:
        obj: an activation (also a module or layer), a rule or its name, or whatever else
            `xg.audit` takes.
        *inputs: tensors of one framework, or NumPy arrays. Without any: as for `xg.check`, in
            float32.
        backends: a name or several; None: all that are installed, NumPy's reference among them.

    Raises:
        RuleError: obj is the name of no rule.
        TraceError: it cannot be captured, so that there is no reference.
    """
    subject = subject_of(obj)
    is_made = not inputs
    data = read_inputs(subject, inputs or make_inputs(subject))
    arrays = data.cast("float32") if is_made else data.arrays
    names = find_names(backends)
    expected = _expect(subject, data, arrays)
    reference = _run(subject, data, arrays, load_backend("numpy"))
    rows: list[ParityRow] = []
    for name in names:
        results = reference if name == "numpy" else _run(subject, data, arrays, load_backend(name))
        compare = partial(_compare, name)
        compared = list(map(compare, *expected, results, reference))
        # Perhaps only the signs of vectors differ, which each library chooses: compare by its own.
        if not all(row.ok for row in compared):
            by_own_signs = _expect(subject, data, arrays, name)
            compared_by_own = list(map(compare, *by_own_signs, results, reference))
            if all(row.ok for row in compared_by_own):
                compared = [replace(row, problem=SIGNS) for row in compared_by_own]
        rows += compared
    return ParityReport(subject.name, tuple(rows))


def find_names(names: str | Sequence[str] | None) -> list[str]:
    if names is None:
        return [row.name for row in backends(load=True) if row.installed]
    name_list = [names] if isinstance(names, str) else names
    return [load_backend(name).name for name in name_list]


def _run(
    subject: Subject, inputs: Inputs, arrays: Sequence[Array], backend: Backend
) -> list[Array]:
    # jax, say, computes in 32 bits unless its mode allows 64.
    widest = "float64" if any(array.dtype.itemsize == 8 for array in arrays) else "float32"
    call, keyed = _keyed(subject)
    with precision(backend, widest), keyed:
        outputs, gradients = run_arrays(call, backend, inputs.nest(arrays)[0], ones)
    return outputs + [
        np.zeros_like(array) if gradient is None else gradient
        for gradient, array in zip(gradients, arrays, strict=True)
        if is_float_array(array)
    ]


def _keyed(subject: Subject) -> tuple[Any, AbstractContextManager[Any]]:
    if subject.function is not None:
        return subject.function.keyed(KEY), nullcontext()
    call = subject.call
    in_force = call.in_force() if isinstance(call, Activation) else None
    if in_force is None:
        return call, nullcontext()
    bound_rule = at_present(in_force)
    # The own rule moves into `use`, which takes a key.
    return Activation(call.forward), use(bound_rule.rule, bound_rule.params, key=KEY)


def _expect(
    subject: Subject, inputs: Inputs, arrays: Sequence[Array], library: str = ""
) -> tuple[list[str], list[Bounded]]:
    # `library`: whose signs of vectors to use; "" is NumPy's.
    graphs, numbers = _graphs(subject, inputs, arrays)
    wide = in_dtype(arrays, "float64")
    if len(graphs.inputs) != len(wide):  # what an object holds is hidden among them
        raise _holding(subject)
    values = {**numbers, **dict(zip(graphs.inputs, wide, strict=True))}
    outputs, gradients = run_graphs(graphs, values, arrays, ones, key=KEY, library=library)
    labels = list(graphs.outputs)
    rows = list(outputs)
    for n, (name, array) in enumerate(zip(graphs.inputs, wide, strict=True)):
        if is_float_array(array):
            labels.append(f"gradient of {inputs.paths(inputs.names)[n]}")
            rows.append(gradients.get(name, Bounded(np.zeros_like(array), 0.0)))
    return labels, rows


def _holding(subject: Subject) -> RuleTypeError:
    return RuleTypeError(
        f"{subject.name} holds tensors of its own; apply, parameters = xg.convert(the object, "
        "to='numpy') has them among its arguments: xg.parity(apply, parameters, ...)"
    )


def _graphs(
    subject: Subject, inputs: Inputs, arrays: Sequence[Array]
) -> tuple[FunctionGraph, dict[str, Any]]:
    if subject.function is not None:
        function, args, leaves = subject.function, inputs.nest(arrays)[0], inputs.leaves
    else:
        under, values, _ = function_in_force(subject.call)
        function = as_function(under)
        args = leaves = (arrays[0], *values)
    try:
        variant = capture_example(function, *args)
    except NotCaptured as error:
        if read_state(owner_of_method(subject.call) or ()).tensors:
            raise _holding(subject) from error.error
        if subject.function is not None:
            subject.function(*args)  # says more of what it cannot take
            raise error.error from None
        raise TraceError(
            f"{error.error}; what is not captured has no reference to be compared with",
            error.error.place,
        ) from error
    layout, tree = variant.layout, optree.tree_structure((tuple(leaves), {}))
    all_leaves, _ = function.completion.complete(leaves, tree)
    numbers = {layout.leaves[i].name: float(all_leaves[i]) for i in layout.indices("number")}
    return variant.graphs, numbers


def _compare(
    backend: str, label: str, bounds: Bounded, result: Array, reference: Array
) -> ParityRow:
    expected = np.asarray(bounds.value)
    row = partial(ParityRow, backend, label, result.dtype.name)
    if result.shape != expected.shape:
        problem = f"its shape is {result.shape}, not {expected.shape}"
        return row(ok=False, max_ulp=np.nan, max_abs=np.nan, allowed=0.0, problem=problem)
    if not is_float_array(result):
        is_same = bool(np.array_equal(result, expected))
        problem = "" if is_same else "it differs"
        return row(ok=is_same, max_ulp=0.0, max_abs=0.0, allowed=0.0, problem=problem)
    error, allowed = margins(result, expected, bounds.largest, ROUNDINGS, flushed=np.maximum)
    misses = are_off(error, allowed)
    with np.errstate(all="ignore"):
        wide = result.astype(np.float64)
        other = reference.astype(np.float64)
        # np.spacing does not know bfloat16.
        unit = (
            np.spacing(np.abs(result).astype(result.dtype)).astype(np.float64)
            if result.dtype.name != "bfloat16"
            else eps_of(result.dtype) * np.maximum(np.abs(wide), smallest_of(result.dtype))
        )
        ulps = np.where(
            (wide == other) | (np.isnan(wide) & np.isnan(other)), 0.0, np.abs(wide - other) / unit
        )
    # The tiny term breaks ties at a share of 0 in favor of the largest bound.
    share = np.where(np.isnan(error), np.inf, error / allowed) + allowed * 1e-30
    worst = np.argmax(share) if error.size else 0
    problem = ""
    if misses.any():
        index = tuple(int(i) for i in np.unravel_index(worst, error.shape))
        problem = f"at {index}: {wide[index]:.9g}, in float64 {expected[index]:.9g}"
    return row(
        ok=not misses.any(),
        max_ulp=float(np.max(ulps, initial=0.0)),
        max_abs=float(np.max(error, initial=0.0)),
        allowed=float(allowed.reshape(-1)[worst]) if error.size else 0.0,
        problem=problem,
    )
