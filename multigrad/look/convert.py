"""Conversion reports: somebody else's custom gradient on every backend, compared with the original.

The original's numbers are the oracle: outputs and gradients by its own framework's autodiff, in the
inputs' dtype. If a result differs by more than rounding explains, the original's own error in
float64 decides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from ..core import ops
from ..core.backend.contract import Backend
from ..core.backend.discovery import load_backend
from ..core.functions.arguments import flatten
from ..core.functions.recipe import NotCaptured, Variant
from ..core.ir.graph import every_node
from ..core.support.records import cached_property
from ..core.support.trees import optree
from ..engine import random
from ..engine.functions.function import Function
from ..engine.functions.known_forms import capture_example
from ..engine.functions.proof.compare import are_off, eps_of, largest_of, margins
from ..engine.functions.proof.line_tracing import StepLimit
from ..engine.functions.proof.meanings import MOST_TURNS, Bounded, has_signs
from ..engine.lowering.plain_functions import run_reference
from ..engine.ops.loops import turning_at_most
from ..engine.random import key_from_int
from ..errors import MultigradError, RuleTypeError
from .parity import ROUNDINGS, find_names
from .subject import (
    Report,
    Results,
    Subject,
    as_array,
    cotangent,
    find_original,
    in_dtype,
    is_float_array,
    read_arguments,
    run,
    run_compiled,
    run_each,
    run_graphs,
    run_mapped,
)

Array: TypeAlias = np.ndarray[Any, Any]
KEY = 7  # of the draws of a random function, the same everywhere
EQUAL, AS_IT_IS, REFUSED, DIFFERS, FAILED, SAME, OPEN = (
    "converted, equal", "as it is", "refused", "differs", "failed", "equal", "not compared",
)  # fmt: skip
BAD = (DIFFERS, FAILED)
VMAP, COMPILE = "vmap", "compile"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a conversion on one backend, or under a transform at home.

    Attributes:
        backend: its name; or "vmap", "compile".
        state: "converted, equal", "as it is", "refused", "differs" or "failed"; under a transform
            "equal", "refused", "differs" or "not compared".
        reason: why it is refused, what differs, or the exception.
        place: the file and line that are not captured, where they are known.
    """

    backend: str
    state: str
    reason: str = ""
    place: tuple[str, int] | None = None

    def __str__(self) -> str:
        return f"{self.state}: {self.reason}" if self.reason else self.state


@dataclass(frozen=True, slots=True, repr=False)
class Conversion(Report):
    """What `convert` found; prints as a table.

    Attributes:
        ok: whether no backend gives other numbers, or an error that is a bug of ours.
        home: the framework that the original runs on.
        problem: why the original itself does not run; then there are no verdicts.
        transforms: what it does under vmap and under the compiler at home, where that was asked.
    """

    name: str
    home: str
    verdicts: tuple[Verdict, ...]
    problem: str = ""
    transforms: tuple[Verdict, ...] = ()

    @property
    def rows(self) -> tuple[Verdict, ...]:
        return (*self.verdicts, *self.transforms)

    @property
    def ok(self) -> bool:
        return not any(verdict.state in BAD for verdict in self.rows)

    def __str__(self) -> str:
        if self.problem:
            return f"{self.name}: needs --input; the original itself fails: {self.problem}"
        lines = [f"{self.name}, written for {self.home}"]
        lines += [f"  {verdict.backend:12} {verdict}" for verdict in self.rows]
        return "\n".join(lines)


def convert(
    obj: Any,
    *inputs: Any,
    backends: Sequence[str] | None = None,
    compiled: Sequence[str] = (),
    copies: bool = False,
    transforms: bool = False,
) -> Conversion:
    """Run somebody else's custom gradient on every backend, and compare it with the original.

    Args:
        obj: a `torch.autograd.Function` class, a custom function of jax or TensorFlow, or a
            function of tensors that applies one.
        *inputs: what it is called with; arrays and any framework's tensors stand for tensors.
        backends: names; None: all that are installed.
        compiled: names of those on which it is run under the framework's compiler, too.
        copies: see `xg.Capture`.
        transforms: whether it is also mapped over examples, and compiled as a whole, on its own
            framework.
    """
    names = find_names(backends)
    original = find_original(obj, copies)
    inputs = optree.tree_map(as_array, inputs, none_is_leaf=True)
    try:
        home, expected = _run_at_home(original, inputs)
    except Exception as error:
        return Conversion(original.name, "", (), problem=brief(error))
    oracle = _Oracle(original, home, inputs, expected)
    verdicts = [_judge(oracle, load_backend(name), name in compiled) for name in names]
    tried = tuple(_try_transforms(oracle)) if transforms else ()
    return Conversion(original.name, home.name, tuple(verdicts), transforms=tried)


def brief(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).strip().splitlines()]
    # JAX ends a line with a colon, and says on the next one which argument is missing.
    text = " ".join(lines[:2] if lines and lines[0].endswith(":") else lines[:1])
    return f"{type(error).__name__}: {text[:300]}" if text else type(error).__name__


# --- running ------------------------------------------------------------------------------------


def run_where_it_ends(obj: Any, inputs: Sequence[Any]) -> None:
    """Run an original that may not end on its inputs, as they are guessed.

    Raises:
        Endless: a loop of its graphs does not end; a compiled one could not be stopped.
        TooLong: its code does not end.
        Exception: the error of the likeliest of its homes.
    """
    if not any(map(is_float_array, read_arguments(inputs).arrays)):
        raise RuleTypeError("no float tensor is among its inputs")
    original = find_original(obj)
    with turning_at_most(MOST_TURNS):
        try:
            # Graphs first, on NumPy with a limit: a compiled loop cannot be interrupted.
            captured: Variant | None = capture_example(original.function, *inputs)
        except Exception:  # it is said where it is judged
            captured = None
        if captured is not None:
            _turn_loops(captured, inputs)
    functions = original.function.recipe.functions
    with StepLimit(functions, turns=True):
        _run_at_home(original, inputs)


def _turn_loops(captured: Variant, inputs: Sequence[Any]) -> None:
    leaves, _ = flatten(tuple(inputs), {})
    pairs = zip(captured.layout.leaves, leaves, strict=True)
    values: dict[str, Any] = {leaf.name: value for leaf, value in pairs}
    # The same key as everywhere here, so that loops turn as often as in the comparison.
    values["key"] = random.fold_in(key_from_int(KEY), 0)
    forward, backward = captured.graphs.forward, captured.graphs.backward
    if any(node.op is ops.WHILE_LOOP for node in (*forward.nodes, *backward.nodes)):
        results = run_reference(forward, values)
        for n, (name, y) in enumerate(zip(captured.graphs.cotangents, results, strict=False)):
            values[name] = cotangent(n, np.shape(y)).astype(y.dtype)
        run_reference(backward, values)


def _run_at_home(original: Subject, inputs: Sequence[Any]) -> tuple[Backend, Results]:
    failures = []
    # Code of no framework runs on NumPy.
    for home in original.homes or (load_backend("numpy"),):
        try:
            return home, run(original.call, home, inputs)
        except Exception as error:
            failures.append(error)
    raise failures[0]  # of the likeliest framework


# --- comparing ----------------------------------------------------------------------------------


class _Oracle:
    """An original's results, and how far other results may be from them."""

    def __init__(
        self, original: Subject, home: Backend, inputs: Sequence[Any], expected: Results
    ) -> None:
        self.original, self.home, self.inputs = original, home, inputs
        self.expected = expected
        self.function = original.function
        self.captured: Variant | None = None
        # Set where capture fails; `captured` is then None.
        self.reason, self.place = "", None  # why it is not captured
        try:
            self.captured = capture_example(self.function, *inputs)
        except NotCaptured as error:
            self.reason, self.place = brief_refusal(error.error), error.error.place
        except Exception as error:
            self.reason = f"raised {brief(error)}"
        # Frameworks draw differently, so that NumPy's draws with KEY are the oracle.
        if self.captured is not None and self.captured.graphs.is_random:
            self.expected = run(self.fresh(), load_backend("numpy"), inputs)

    def fresh(self) -> Function:
        """Return the Function with its draws reset to KEY."""
        is_random = self.captured is not None and self.captured.graphs.is_random
        return self.function.keyed(KEY) if is_random else self.function

    @cached_property
    def compiles(self) -> bool:
        """Whether the original itself runs under its framework's compiler."""
        try:
            run_compiled(self.original.call, self.home, self.inputs)
        except Exception:
            return False
        return True

    @cached_property
    def largest(self) -> Results:
        """The largest value on the way to each result, by the graphs in float64."""
        values = (*self.inputs, *self.expected.values())
        arrays = [np.asarray(x) for x in values if isinstance(x, np.ndarray | float | int)]
        magnitudes = [largest_of(a) for a in arrays if a.dtype.kind in "fiubV"]
        # Without graphs the largest of all inputs and results has to do.
        largest = dict.fromkeys(self.expected, max(magnitudes, default=1.0))
        try:
            return {**largest, **{name: each.largest for name, each in self._meant().items()}}
        except Exception:  # a graph that float64 does not run
            return largest

    def _meant(self, library: str = "") -> dict[str, Bounded]:
        assert self.captured is not None
        graphs, layout = self.captured.graphs, self.captured.layout
        leaves, _ = flatten(tuple(self.inputs), {})
        pairs = zip(layout.leaves, in_dtype(leaves, "float64"), strict=True)
        inputs = {leaf.name: value for leaf, value in pairs}
        arrays = [a for a in leaves if isinstance(a, np.ndarray)]
        # `library`: whose signs of vectors to use, as each library chooses its own.
        outputs, gradients = run_graphs(graphs, inputs, arrays, cotangent, key=KEY, library=library)
        names = ["output"] if len(outputs) == 1 else [f"output {n}" for n in range(len(outputs))]
        results = dict(zip(names, outputs, strict=True))
        for n, leaf in enumerate(layout.tensors):
            if leaf.name in gradients:
                results[f"gradient {n}"] = gradients[leaf.name]
        return results

    @cached_property
    def coarse(self) -> float:
        """The eps of float32 if the code itself computes in it, 0 otherwise."""
        if self.captured is None:
            return 0.0
        graphs = self.captured.graphs
        nodes = [node for graph in (graphs.forward, graphs.backward) for node in every_node(graph)]
        dtypes = {node.type.dtype for node in nodes if node.op is not ops.CAST}
        return max((float(np.finfo(name).eps) for name in dtypes & {"float32"}), default=0.0)

    @cached_property
    def wide(self) -> Results:
        """The original's results for the same inputs in float64; empty if it does not take them."""
        try:
            return run(self.original.call, self.home, in_dtype(self.inputs, "float64"))
        except Exception:
            return {}

    def find_difference(self, found: Results) -> str:
        """Return how results differ from the original's, "" if they are the same numbers."""
        if found.keys() != self.expected.keys():
            return f"it gives {', '.join(found)}; the original {', '.join(self.expected)}"
        for name, expected in self.expected.items():
            problem = self._differ(name, found[name], expected)
            if problem:
                return f"{name}: {problem}"
        return ""

    def has_its_signs(self, found: Results, library: str) -> bool:
        """Return whether results are right by the signs that a library gives to vectors."""
        if self.captured is None or self.reason or found.keys() != self.expected.keys():
            return False
        if not has_signs((self.captured.graphs.forward, self.captured.graphs.backward)):
            return False
        results = {name: np.asarray(each.value) for name, each in self._meant(library).items()}
        expected = {**self.expected, **results}
        return not any(self._differ(name, found[name], expected[name]) for name in expected)

    def _differ(self, name: str, result: Any, expected: Any) -> str:
        if result is None or expected is None:
            return "" if result is expected else f"it is {result!r:.40}, not {expected!r:.40}"
        if result.shape != expected.shape:
            return f"its shape is {result.shape}, not {expected.shape}"
        if not is_float_array(expected):
            is_same = np.array_equal(result, expected)
            return "" if is_same else _at(result != expected, result, expected)
        largest, coarse = self.largest[name], self.coarse
        misses = _is_off(result, expected, 2 * ROUNDINGS, largest, coarse)
        wide = self.wide.get(name) if misses.any() else None
        if wide is not None and wide.shape == expected.shape:
            # The original's own error against float64: others may err by half as much more.
            own_error = np.nanmax(np.abs(expected - wide), initial=0.0)
            are_explained = np.abs(result.astype(np.float64) - wide) <= 1.5 * own_error
            # An original that is far off itself is no excuse.
            limit = _is_off(expected, wide, 64 * ROUNDINGS, largest, coarse).any()
            misses &= ~are_explained | limit
        return _at(misses, result, expected) if misses.any() else ""


class _Examples(_Oracle):
    """An original's results for several examples, one after another, stacked."""

    def __init__(self, oracle: _Oracle) -> None:
        self.original, self.home = oracle.original, oracle.home
        self.function, self.captured = oracle.function, oracle.captured
        self.largest = {name: np.max(each, initial=0.0) for name, each in oracle.largest.items()}
        try:
            # The second example is the first with its rows rolled: other numbers, mostly valid.
            rolled = optree.tree_map(_roll, tuple(oracle.inputs), none_is_leaf=True)
            self.inputs = [oracle.inputs, rolled]
            self.expected = run_each(self.original.call, self.home, self.inputs)
        except Exception:  # places, say, that come in order
            self.inputs = [oracle.inputs] * 2
            self.expected = run_each(self.original.call, self.home, self.inputs)

    @cached_property
    def wide(self) -> Results:
        try:
            wide = [in_dtype(each, "float64") for each in self.inputs]
            return run_each(self.original.call, self.home, wide)
        except Exception:
            return {}


def _roll(leaf: Any) -> Any:
    return np.roll(leaf, 1, axis=0) if isinstance(leaf, np.ndarray) and leaf.ndim else leaf


def _is_off(result: Array, expected: Array, roundings: int, largest: Any, coarse: float) -> Array:
    if not is_float_array(result):
        # Integers and bools count as rounded to float32, unless the code is coarser.
        result, coarse = result.astype(np.float64), max(coarse, eps_of(np.float32))
    try:
        # Of another shape than the results: the largest number holds for all.
        largest = np.broadcast_to(largest, result.shape)
    except ValueError:
        largest = np.max(largest, initial=0.0)
    # `overflows=False`: where the original overflows, inf is no excuse.
    return are_off(*margins(result, expected, largest, roundings, eps=coarse, overflows=False))


def _at(misses: Any, result: Array, expected: Array) -> str:
    index = tuple(int(i) for i in np.argwhere(misses)[0])
    count = int(np.count_nonzero(misses))
    return (
        f"{result[index]!s:.12} instead of {expected[index]!s:.12} at {index}, "
        f"{count} of {result.size} elements"
    )


# --- verdicts -----------------------------------------------------------------------------------


def _judge(oracle: _Oracle, backend: Backend, is_compiled: bool) -> Verdict:
    is_home = backend.name == oracle.home.name
    runs: list[tuple[str, Callable[..., Results]]] = [("", run)]
    # Code that runs as it is at home is compiled there only if the original compiles.
    if is_compiled and (oracle.captured is not None or not is_home or oracle.compiles):
        runs.append(("compiled: ", run_compiled))
    for prefix, run_once in runs:
        try:
            found = run_once(oracle.fresh(), backend, oracle.inputs)
        # At home even a refusal of ours is a failure: the original runs there.
        except MultigradError as error:
            state = FAILED if is_home else REFUSED
            reason, place = brief_refusal(error), getattr(error, "place", None)
            return Verdict(backend.name, state, prefix + reason, place)
        except Exception as error:
            return Verdict(backend.name, FAILED, prefix + brief(error))
        # Without a capture draws have no key, so that nothing can be compared.
        if oracle.captured is None and _draws(oracle):
            return Verdict(backend.name, AS_IT_IS, "it draws random numbers: not compared")
        problem = oracle.find_difference(found)
        if problem and not oracle.has_its_signs(found, backend.name):
            return Verdict(backend.name, DIFFERS, prefix + problem)
    if oracle.captured is None:
        return Verdict(backend.name, AS_IT_IS, oracle.reason, oracle.place)
    note = "draws compared with NumPy's" if oracle.captured.graphs.is_random else ""
    return Verdict(backend.name, EQUAL, note)


def _try_transforms(oracle: _Oracle) -> Iterator[Verdict]:
    # vmap is compared with a loop, the compiler with eager code.
    home, modes = oracle.home, oracle.home.modes

    def find_mapped() -> str:
        examples = _Examples(oracle)
        return examples.find_difference(run_mapped(oracle.function, home, examples.inputs))

    def find_compiled() -> str:
        assert modes.whole is not None
        compiled = modes.whole(oracle.function)
        return oracle.find_difference(run(compiled, home, oracle.inputs))

    is_random = oracle.captured.graphs.is_random if oracle.captured else _draws(oracle)
    for name, mode, find in (
        (VMAP, modes.mapped, find_mapped),
        (COMPILE, modes.whole, find_compiled),
    ):
        if mode is None:
            continue
        # Every example and every compilation draws anew.
        if is_random:
            yield Verdict(name, OPEN, "it draws random numbers")
            continue
        try:
            problem = find()
        except MultigradError as error:
            yield Verdict(name, REFUSED, brief_refusal(error), getattr(error, "place", None))
        except Exception as error:
            yield Verdict(name, REFUSED, brief(error))
        else:
            yield Verdict(name, DIFFERS if problem else SAME, problem)


def _draws(oracle: _Oracle) -> bool:
    # Code that draws gives other numbers when it runs again.
    return bool(oracle.find_difference(run(oracle.original.call, oracle.home, oracle.inputs)))


def brief_refusal(error: MultigradError) -> str:
    return " ".join(str(error).split())
