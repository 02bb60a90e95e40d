"""The capture of a rule's Python function as a graph, and the checks of its result."""

from __future__ import annotations

import dis
import itertools
import math
import traceback
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from types import CodeType, FunctionType
from typing import Any

from ...backend.discovery import in_use
from ...errors import GradientError, MultigradError, TraceError
from ...graph import ops
from ...graph.ir import questions
from ...graph.ir.graph import Graph, Location, every_node
from ...graph.ir.types import BOOL, FLOAT_SCALAR, INPUT, INPUT_SHAPE, SCALAR_SHAPE, UNKNOWN, T
from ...graph.passes.simplify import simplify
from ...trace.assertions import HAS_TABLE, MATCHES
from ...trace.derived.calls import drop_calls
from ...trace.source import CODE, lend
from ...trace.trace import NeedsConcrete, Trace, Value, constant, setting
from ..dialect import (
    OwnTrace,
    find_dialect,
    load_dialects,
    register_dialect,
    registered_dialects,
    require_dialect,
)
from ..dialects import numpy as _numpy_dialect
from ..dialects import xp
from ..foreign_calls import describe_routes, intercepting, symbols_in
from ..user_code.inspection import is_library_file, plain_function, readings_of, whose_types
from ..values.tracer import V
from .substitute import substitute
from .witness import Witness

_DIALECTS = _numpy_dialect  # imported to register its table

Run = Callable[[Trace, Value, Value | None, Mapping[str, Any]], Any]
# Symbols that an error of a library may name: it needs the real thing, so the capture is repeated
# with this fact.
OPAQUE = {"SymbolicDType": "dtype", "SymbolicShape": "shape", "SymbolicDevice": "device"}


def capture(
    name: str,
    run: Run,
    *,
    has_tin: bool,
    runtime: tuple[str, ...],
    static: Mapping[str, Any],
    facts: Mapping[str, Any],
) -> Graph:
    """Run a rule on symbolic values and return its simplified graph.

    Args:
        name: the rule's name, for messages.
        run: runs the rule (one function, or a chain of them) in a trace.
        has_tin: whether the rule gets its forward input; else `tin` is None.
        runtime: names of the params that are run-time scalars, in order.
        static: the other params.
        facts: what is fixed for this capture: "ndim", "dtype", "shape", "param:<name>".

    Raises:
        NeedsConcrete: Python needed something concrete that is not among the facts.
        TraceError: the rule cannot be captured.
        GradientError: its result is no gradient of its input.
    """

    in_use()  # frameworks imported by now register their dialects
    load_dialects()

    def record(facts: Mapping[str, Any]) -> tuple[Trace, Graph]:
        trace = Trace(name, facts, V, namespace=xp)
        with intercepting():
            trace.source.witness = Witness(trace)
            graph = _run(trace, run, has_tin, runtime, static)
            trace.source.witness.check_left()
        return trace, graph

    try:
        trace, graph = record(facts)
        # A number that the source does not contain may be a draw: a second run must give the same
        # graph.
        if trace.source.witness.is_suspect or has_number_from_elsewhere((graph,), trace, static):
            with trace.source.witness.outside.dropping_added():
                again, other = record(trace.facts)
            # Another thread may have drawn meanwhile, once; both runs drawing is no coincidence.
            differs = drop_calls(other).outputs != drop_calls(graph).outputs
            drew = [each.source.witness.outside.moved for each in (trace, again)]
            if differs or all(drew):
                raise TraceError(
                    f"rule {name!r} gives another graph each time: it draws a number, or reads one "
                    "that changes. Draw with xp.rand_like(grad_out), or make the number a param"
                )
    except NeedsConcrete as need:
        if need.facts != ("device",):
            raise
        # Rules stay on their input's device, so it is no fact about the input.
        known = {**facts, "device": True}
        return capture(name, run, has_tin=has_tin, runtime=runtime, static=static, facts=known)
    return replace(simplify(graph), origin=describe_routes(trace))


def _run(
    trace: Trace, run: Run, has_tin: bool, runtime: tuple[str, ...], static: Mapping[str, Any]
) -> Graph:
    facts = trace.facts
    grad_out = trace.input("grad_out", INPUT)
    tin = trace.input("tin", INPUT) if has_tin else None
    scalars = {param: trace.input(param, FLOAT_SCALAR) for param in runtime}
    inputs = [x.node for x in (grad_out, tin, *scalars.values()) if x is not None]
    for param in runtime:
        if f"param:{param}" in facts:
            scalars[param] = trace.value(constant(facts[f"param:{param}"]))
    try:
        with trace.source.witness, questions.asking():
            result = run(trace, grad_out, tin, {**static, **scalars})
    except (NeedsConcrete, MultigradError):
        raise
    except Exception as error:
        opaque = find_opaque(trace, error)
        if opaque and opaque not in facts:
            raise NeedsConcrete(opaque) from error
        place = _place(trace, error)
        at = f" ({Location(*place)})" if place else ""
        raise TraceError(
            f"rule {trace.name!r}{at} raised {type(error).__name__} while captured: {error}", place
        ) from error
    node = _check_result(trace, result).node
    if trace.key is not None:
        inputs.append(trace.key)
    return Graph(trace.name, tuple(inputs), (node,), trace.source.locations)


def has_number_from_elsewhere(
    graphs: Iterable[Graph], trace: Trace, static: Mapping[str, Any]
) -> bool:
    """Return whether a graph holds a float that the captured source does not contain.

    It may come from a global or from arithmetic; but a draw is one too, and must not be frozen.
    """
    has_array = any(node.op is ops.ARRAY for graph in graphs for node in every_node(graph))
    return has_array or bool(numbers_from_elsewhere(graphs, trace, static))


def numbers_from_elsewhere(
    graphs: Iterable[Graph], trace: Trace, static: Mapping[str, Any]
) -> set[float]:
    """Return the floats of graphs that the source does not contain, without their signs."""
    nodes = [node for graph in graphs for node in every_node(graph)]
    constants = [node.attr("value") for node in nodes if node.op is ops.CONST]
    codes = [code.co_consts for code in trace.source.codes]
    written = _numbers((*trace.facts.values(), *static.values(), *trace.source.numbers, *codes))
    found = _numbers(constants) - written - {0.0, 1.0}
    if math.inf in found:  # `clamp(min=0)` records an infinite limit for the open side
        infinite = {n for n in nodes if n.op is ops.CONST and abs(n.attr("value")) == math.inf}
        users = [node.op for node in nodes if not infinite.isdisjoint(node.operands)]
        found -= {math.inf} if {*users} == {ops.CLIP} else set()
    return found


def _numbers(values: Iterable[Any]) -> set[float]:
    found: set[float] = set()
    for value in values:
        if isinstance(value, tuple):
            found |= _numbers(value)
        elif isinstance(value, float):
            found.add(abs(value))
    return found


def find_opaque(trace: Trace, error: Exception) -> str:
    """Return the fact that replaces the symbol which a library could not take, "" for none."""
    word = next((word for word in OPAQUE if word in str(error)), "")
    if not word and trace.facts.gives_dtype and isinstance(error, TypeError):
        return "dtype"  # not every message shows its argument
    return OPAQUE[word] if word else ""


def _place(trace: Trace, error: BaseException) -> tuple[str, int] | None:
    # The innermost line of the user's code in a traceback.
    frames = traceback.walk_tb(error.__traceback__)
    own = [(f.f_code.co_filename, line) for f, line in frames if f.f_code in trace.source.codes]
    return own[-1] if own else None


def _check_result(trace: Trace, result: Any) -> Value:
    name = trace.name
    if not isinstance(result, Value):
        given = "None" if result is None else f"{type(result).__name__} {result!r}"
        raise GradientError(
            f"rule {name!r} returned {given}; expected the gradient, a tensor like tin. For zero "
            "write xp.zeros_like(grad_out)"
        )
    type_ = result.node.type
    if type_.kind != "tensor":
        raise GradientError(
            f"rule {name!r} returned a scalar; expected a tensor of tin's shape. Write grad_out * "
            "scalar or xp.full_like(grad_out, scalar)"
        )
    if type_.shape not in (INPUT_SHAPE, UNKNOWN):
        raise GradientError(
            f"rule {name!r} returned {_describe(type_.shape)}; expected tin's shape. Use "
            "keepdims=True and combine with grad_out"
        )
    if type_.dtype == BOOL:
        raise GradientError(
            f"rule {name!r} returned bools; multiply by grad_out or cast to its dtype"
        )
    if type_.dtype != T:
        if "dtype" not in trace.facts:
            raise NeedsConcrete("dtype")
        if type_.dtype != trace.facts["dtype"]:
            raise GradientError(
                f"rule {name!r} returned {type_.dtype} for a {trace.facts['dtype']} input; cast it "
                "back with .to(grad_out.dtype)"
            )
    return result


def _describe(shape: Any) -> str:
    if shape == SCALAR_SHAPE:
        return "one number"
    _, axis, keepdims = shape
    kept = "with 1 for" if keepdims else "without"
    return f"tin's shape {kept} {'all axes' if axis is None else f'axis {axis}'}"


def catches_errors(code: CodeType) -> bool:
    """Return whether a function catches errors that are raised in it."""
    # Without it: test_what_jax_s_own_tracing_raises_is_not_caught_by_the_user is "a fault of ours".
    if "suppress" in code.co_names:
        return True
    names = [instruction.opname for instruction in dis.get_instructions(code)]
    # A bare `except:` drops the exception without a comparison.
    is_bare = ("PUSH_EXC_INFO", "POP_TOP") in itertools.pairwise(names)
    if not HAS_TABLE:  # before Python 3.11 three values are dropped; after `with` it raises again
        rows = zip(["", *names], names, names[1:], names[2:], strict=False)
        is_bare = any(first != "RERAISE" and {*rest} == {"POP_TOP"} for first, *rest in rows)
    return is_bare or not {*MATCHES}.isdisjoint(names)


def library_of_failure(error: BaseException, known: str) -> str:
    """Return the library in which code failed, if it has an importer of its own; else `known`.

    The code may have met a symbol there by way of other libraries.
    """
    found = known
    for frame, _ in traceback.walk_tb(error.__traceback__):
        root = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        dialect = find_dialect(root)
        found = root if dialect is not None and dialect.calls.import_function is not None else found
    return found


def run_written_in(
    library: str, function: Callable[..., Any], trace: Trace, /, *args: Any, **kwargs: Any
) -> Any:
    """Call a function in a trace, replacing what Python hides from symbolic values.

    If substitution cannot see through the function, its dialect may import it in another way.

    Args:
        library: the library that the function is written in; "": the code tells.
    """
    return run_or_import(library, function, trace, args, kwargs)


def run_or_import(
    library: str,
    function: Callable[..., Any],
    trace: Trace,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    whole: tuple[Callable[..., Any], tuple[Any, ...]] | None = None,
) -> Any:
    """Do the same for arguments in a tuple and a mapping.

    Args:
        whole: what to import if substitution fails, with its arguments: also those that the
            function reads from around it.
    """
    plain = plain_function(function)
    if library:
        require_dialect(library)
    libraries = (library,) if library else readings_of(plain) if plain else ()
    owner = CODE if library else whose_types(plain, libraries, trace.facts)
    with trace.reading_as(libraries, owner):
        try:
            return _run_or_import(trace, function, args, kwargs, whole=whole)
        finally:
            trace.source.note_read(trace.reading)


def _run_or_import(
    trace: Trace,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    whole: tuple[Callable[..., Any], tuple[Any, ...]] | None,
) -> Any:
    reading = trace.reading
    if reading.dialect:
        trace.source.routes.setdefault(reading.dialect, "")
    draws, routes, asked = trace.draws, dict(trace.source.routes), questions.count()
    dialect = find_dialect(reading.dialect)
    # Constants meet through operators too, while a compiler may be tracing the same code.
    compute = (
        dialect.calls.at_once if dialect is not None and dialect.calls.at_once else nullcontext
    )
    try:
        with compute():
            return substitute(function, trace)(*args, **kwargs)
    except NeedsConcrete:
        raise
    except Exception as error:
        lend(trace)  # code that leans may succeed when read as the tensors' library's
        is_meant = isinstance(error, MultigradError) and not isinstance(error, TraceError)
        if dialect is None or dialect.calls.import_function is None:
            reading.dialect = library_of_failure(error, reading.dialect)
            dialect = find_dialect(reading.dialect)
        if (
            is_meant
            or dialect is None
            or dialect.calls.import_function is None
            or trace.draws != draws
        ):
            raise
        # User code that catches errors may have hidden some, so an import would see other code
        # paths; a library's code was made to be traced.
        users = (code for code in trace.source.codes if not is_library_file(code.co_filename))
        if any(map(catches_errors, users)):
            raise
        # The failed attempt's questions and routes do not count for the import.
        questions.forget(asked)
        try:
            imported, given = whole or (function, args)
            result = dialect.calls.import_function(imported, trace, given, kwargs)
        except TraceError as other:
            questions.forget(asked)
            if isinstance(error, TraceError):
                lacks = getattr(other.__cause__, "lacks", "")
                if lacks and " calls " in str(error):
                    error.args = (f"{error}; it was traced to {lacks}", *error.args[1:])
                questions.note(error)
            raise error from None  # of the two errors, the one that names the user's line
        trace.source.routes = {**routes, reading.dialect: dialect.calls.import_route}
        return result


# --- functions of NumPy without a row -------------------------------------------------------------
def find_numpys_code(function: Any) -> Callable[..., Any] | None:
    """Return a recorder of a NumPy function by its own code; None: it is not written in Python."""
    code = getattr(function, "_implementation", None)
    return OwnTrace(run_numpys_code, code) if isinstance(code, FunctionType) else None


def run_numpys_code(code: FunctionType, /, *args: Any, **kwargs: Any) -> Any:
    """Record a call by running a copy of a NumPy function's own code with stand-ins.

    Raises:
        TypeError: something that it calls is not captured.
    """
    trace = next(symbols_in((args, kwargs))).trace
    with setting(trace.source, codes=set(trace.source.codes), witness=None):
        copy = substitute(code, trace, "numpy")
    asked = questions.count()
    try:
        found = copy(*args, **kwargs)
    except TraceError as error:
        questions.forget(asked)
        raise TypeError("nor is NumPy's own code of it") from error
    trace.source.routes["numpy"] = "protocol and by NumPy's own code"
    return found


_numpy = registered_dialects()["numpy"]
register_dialect("numpy", replace(_numpy, calls=replace(_numpy.calls, finds=find_numpys_code)))
