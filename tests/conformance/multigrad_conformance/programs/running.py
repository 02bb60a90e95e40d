"""Running a program: emitted for a backend as a rule is, executed, and compared with the
interpreter.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings

from multigrad.core.backend.contract import Backend
from multigrad.core.backend.discovery import load_backend
from multigrad.core.ir.graph import Graph
from multigrad.core.lowering.emit import Emission, emit_body
from multigrad.core.lowering.lower import compile_source
from multigrad.core.ops.numerics import ignoring_warnings
from multigrad.core.passes.simplify import simplify
from multigrad.engine.trace.random_keys import read_key

from ..differences import kept, regroups
from ..oracles import edge_values, spread
from .bounded import INT32, INT64, Bounded
from .generator import Program, programs
from .interpreter import interpret

Array = Any


@dataclass
class Tally:
    """What has been run."""

    programs: int = 0
    elements: int = 0
    compared: int = 0
    ops: Counter[str] = field(default_factory=Counter)


def compare(actual: Array, expected: Bounded, tally: Tally) -> str:
    """Say what is wrong; nothing, where all is right."""
    narrow = (actual.dtype, expected.dtype) == (INT32, INT64)  # JAX, without int64
    if actual.dtype != expected.dtype and not narrow:
        return f"dtype {actual.dtype}, not {expected.dtype}"
    if actual.shape != expected.shape:
        return f"shape {actual.shape}, not {expected.shape}"
    got, want = np.asarray(actual, np.float64), np.asarray(expected.value, np.float64)
    limit = np.broadcast_to(expected.error, want.shape)
    if actual.dtype == bool:
        limit = np.where(limit > 0, np.inf, 0.0)
    with np.errstate(all="ignore"):
        same = (got == want) | (np.isnan(got) & np.isnan(want))
        wrong = ~(same | (np.abs(got - want) <= limit) | np.isinf(limit))
    tally.elements += got.size
    tally.compared += int(np.sum(~np.isinf(limit)))
    if not np.any(wrong):
        return ""
    places = [tuple(map(int, index)) for index in np.argwhere(wrong)[:4]]
    rows = [f"{at}: {got[at]}, expected {want[at]} +- {limit[at]:.3g}" for at in places]
    return f"{np.sum(wrong)} of {wrong.size} differ\n  " + "\n  ".join(rows)


QUIET = settings(
    deadline=None,
    database=None,
    print_blob=False,
    suppress_health_check=[
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
        HealthCheck.large_base_example,
        HealthCheck.filter_too_much,
    ],
    phases=[Phase.generate, Phase.shrink],
    verbosity=Verbosity.quiet,  # a Mismatch shows the program, not Hypothesis all fields of its ops
)


class Mismatch(AssertionError):
    """A backend and the interpreter disagree."""


def emit(graph: Graph, backend: Backend, fast: bool) -> Callable[..., tuple[Any, ...]]:
    """Return a graph as a function of one backend that returns all outputs."""
    emission = Emission(backend, graph.name)
    emission.taken.add("program")
    body = emit_body(simplify(graph), emission, fast)
    head = f"def program({', '.join(body.parameters)}):\n"
    source = f"{head}{body.indented(4)}    return ({body.result},)\n"
    return compile_source(source, graph.name, emission.namespace)["program"]


def values_of(program: Program, shape: tuple[int, ...], seed: int) -> Array:
    """Random numbers, some of them round ones, and edge values where the program asks for them."""
    dtype = program.numpy_dtype
    random = np.random.default_rng(seed)
    x = np.asarray(spread(shape, dtype, seed))
    nice = np.array([0.0, -0.0, 1.0, -1.0, 0.5, 2.0, -3.0, 6.0], dtype)
    x = np.where(random.random(shape) < 0.2, random.choice(nice, shape), x)
    if program.edges:
        ends = np.array([np.nan, np.inf, -np.inf], dtype)
        odd = np.where(
            random.random(shape) < 0.25,
            random.choice(ends, shape),
            random.choice(edge_values(dtype), shape),
        )
        x = np.where(random.random(shape) < 0.2, odd, x)
    return np.asarray(x, dtype)


def inputs_of(program: Program) -> dict[str, Any]:
    return {
        "grad_out": values_of(program, program.shape, 3 * program.seed),
        "tin": values_of(program, program.shape, 3 * program.seed + 1),
        "row": values_of(program, program.row_shape, 3 * program.seed + 2),
        "scalar": program.scalar,
        "key": program.key,
    }


def run(program: Program, backend: Any, compiled: bool = False) -> list[Array]:
    """Run a program on a backend under test, as a whole by its compiler where that is asked for."""
    row = load_backend(backend.name)
    function = emit(program.graph, row, program.fast)
    given = inputs_of(program)
    wide = "float64" in (program.dtype, *(n.type.dtype for n in program.graph.nodes))
    precision = backend.precision(np.dtype(np.float64 if wide else np.float32))
    with precision, np.errstate(all="ignore"), ignoring_warnings():
        given = {
            name: backend.array(value) if isinstance(value, np.ndarray) else value
            for name, value in given.items()
        }
        if compiled and row.compiler.jit is not None:
            given["key"] = read_key(row, backend.array(np.array(given["key"], np.uint32)))
            function = row.compiler.jit(function, {})
        return [np.asarray(backend.numpy(output)) for output in function(**given)]


def check(
    program: Program, backends: list[Any], tally: Tally, compiled: Collection[str] = ()
) -> None:
    """Compare every backend with the interpreter; some, by their names, run the program compiled.

    Raises:
        Mismatch: names the backend, the output, the elements and the program.
    """
    inputs = inputs_of(program)
    expected: dict[tuple[str, bool], list[Bounded]] = {}
    tally.programs += 1
    tally.ops.update(node.op.name for node in program.graph.nodes)
    for backend in backends:
        whole = backend.name in compiled
        own = backend.name if declares_values(backend.name, program.graph) else ""
        way = (own, whole and regroups(backend.name))
        if way not in expected:
            expected[way] = interpret(program.graph, inputs, program.numpy_dtype, *way)
        actual = run(program, backend, whole)
        for i, (got, want) in enumerate(zip(actual, expected[way], strict=True)):
            problem = compare(got, want, tally)
            if problem:
                raise Mismatch(
                    f"{backend.name}, output {i}: {problem}\n{program!r}\nIf your change concerns "
                    "none of these ops, it only moved the random draw: report this older fault"
                )


def declares_values(backend: str, graph: Graph) -> bool:
    """Whether a backend's differences name an op of the graph."""
    named = {row.what.lower() for row in kept(backend, "value")}
    return any(node.op.name in named for node in graph.nodes)


def check_random(
    backends: list[Any], number: int, count: int, compiled: Collection[str] = (), **options: Any
) -> Tally:
    """Check that many programs of one seed.

    Raises:
        Mismatch: of the smallest program that shows it.
    """
    tally = Tally()

    @seed(number)
    @settings(QUIET, max_examples=count)
    @given(program=programs(**options))
    def check_one(program: Program) -> None:
        check(program, backends, tally, compiled)

    run: Any = check_one  # hypothesis gives the program
    run()
    return tally
