"""Import of a function's jaxpr: the last resort for rules in jax that substitution cannot read.

`import_function` has jax trace the function, for float64 and for float32, and records each equation
of the jaxpr (`_compute`) by its handler, as control flow, or by the jaxpr inside it. This reaches
whatever jax can trace (`jax.grad`, `jax.vmap`, classes, libraries on jax), at a price: the rank is
frozen, and the shape too where jax cannot stay symbolic. The dtype stays open if both jaxprs are
the same. A single call of a library on jax, such as Keras, is imported this way too (`own_trace`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import export

from multigrad.core import ops
from multigrad.core.ir import questions
from multigrad.core.ir.graph import Node, Region
from multigrad.core.ir.op import FLOATS_OF_16_BITS, INT32, SCALAR_SHAPE, T
from multigrad.core.passes.facts import shape_fact
from multigrad.core.trace.lookups import note
from multigrad.core.trace.trace import NeedsConcrete, Value, known_shape
from multigrad.core.trace.xp import all as xp
from multigrad.engine.capture.dialect import OwnTrace
from multigrad.engine.capture.foreign_calls import TracedCall, giving_reasons
from multigrad.engine.capture.meanings import composites
from multigrad.engine.capture.values.oracle import ModeOf, modes
from multigrad.engine.capture.values.tracer import V
from multigrad.engine.passes.shapes import computing
from multigrad.engine.trace.code_trace import CodeTrace, ask_for
from multigrad.errors import MultigradError, TraceError

from ..core.attach.host import mapped_axes, with_axes
from ..core.versions import folding_constants, traced_of
from ..custom_functions import within_own_rules
from ..importers import CALLED, JaxCall, own_gradient, reading
from ..jaxprs import INLINED, bind_unchanged, open_jaxpr, walk
from .arrays import ARRAYS
from .control import CONTROL
from .equations import EquationStep, Handler, ImportScope, Operand, TrialDtype, Unknown
from .primitives import ELEMENTS, LINALG, ONLY_OWN, OWN, SHAPES, elementwise

PRIMITIVES = {**ELEMENTS, **SHAPES, **ARRAYS, **LINALG}
# jax's own elementwise functions that read bits or have a custom derivative.
AS_OPS = (
    composites.logaddexp2, xp.logaddexp, xp.relu, xp.relu6, xp.signbit, xp.sinc, xp.xlog1py,
    xp.xlogy,
)  # fmt: skip
NAMED = {function.__name__: elementwise(function) for function in AS_OPS}
JAXS_FOLDER = os.path.dirname(jax.__file__ or "")
DECORATORS = jax.custom_gradient.__code__.co_filename  # jax's file of `custom_gradient`


def import_function(
    function: Callable[..., Any], trace: CodeTrace, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """Record the jaxpr of a function of symbolic values."""
    try:
        return _import(function, trace, args, kwargs)
    except Unknown as error:
        raise trace.error(f"has a jaxpr that is not captured: {error}") from error


def own_trace(function: Callable[..., Any]) -> Callable[..., Any]:
    return OwnTrace(_record_call, function)


def _record_call(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    call = TracedCall(function, jax.Array, args, kwargs, "ndim")
    lifted = call.trace.memory.lifted
    start = len(lifted)
    try:
        with giving_reasons("jax"), call.read_by("jax"):
            result = _import(call, call.trace, tuple(call.given), {})
    except Unknown as error:
        raise TypeError(str(error)) from error
    # Arrays that the call made are new each time; only those given to it hold for another call.
    lifted[start:] = [x for x in lifted[start:] if any(x is each for each in call.given)]
    return result


def _import(
    function: Callable[..., Any], trace: CodeTrace, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    note({ModeOf("jax"): modes()["jax"]})  # the width of numbers that jax makes depends on it
    leaves, tree = jax.tree.flatten(
        (args, dict(kwargs)), is_leaf=lambda leaf: leaf is None or isinstance(leaf, Value)
    )
    values = [leaf for leaf in leaves if isinstance(leaf, V)]

    def called(*arrays: Any) -> Any:
        array_iterator = iter(arrays)
        call_leaves = [next(array_iterator) if isinstance(leaf, Value) else leaf for leaf in leaves]
        call_args, call_kwargs = jax.tree.unflatten(tree, call_leaves)
        results, structure = jax.tree.flatten(function(*call_args, **call_kwargs))
        float0 = jax.dtypes.float0  # the gradient of an integer
        return jax.tree.unflatten(
            structure, [None if getattr(r, "dtype", None) == float0 else r for r in results]
        )

    known_dtype = trace.facts.get("dtype")
    trace.facts.has_dtype(*FLOATS_OF_16_BITS)  # they have jaxprs of their own
    if known_dtype is not None:
        return _import_for(called, trace, values, TrialDtype(known_dtype))
    try:
        wide, single = (
            _import_for(called, trace, values, TrialDtype(dtype))
            for dtype in ("float64", "float32")
        )
    except Unknown as error:  # the function, or an argument, has one dtype only
        if error.lacks:
            raise
        raise NeedsConcrete("dtype") from error
    if not _are_alike(wide, single):
        raise NeedsConcrete("dtype")
    return wide  # its constants are not rounded to float32


def _import_for(
    called: Callable[..., Any], trace: CodeTrace, values: Sequence[V], trial: TrialDtype
) -> Any:
    shapes, names = _open_shapes(values)
    try:
        return _record(called, trace, values, shapes, names, trial=trial)
    except (MultigradError, NeedsConcrete):
        raise
    except Exception as error:  # jax raises many kinds, others for open lengths
        needed = computing(trace.shapes).needed
        facts = {fact for value in values for fact in needed(value.node)}
        missing = sorted(facts - trace.facts.keys())
        if not missing or isinstance(error, jax.errors.ConcretizationTypeError):
            raise Unknown(str(error), lacks=getattr(error, "lacks", "")) from error
        raise NeedsConcrete(*missing) from error


def _open_shapes(values: Sequence[V]) -> tuple[list[tuple[Any, ...]], dict[str, Any]]:
    # The shapes that jax traces with, and the open lengths in them by name. Values known to have
    # the same shape share its lengths.
    lengths: dict[str, Any] = {}
    by_relation: dict[Any, tuple[Any, ...]] = {}
    shapes = []
    scope = export.SymbolicScope()
    ask_for("ndim", values)
    for value in values:
        shape = known_shape(value)
        if value.node.type.kind == "scalar" or value.node.type.shape == SCALAR_SHAPE:
            shapes.append(())
        elif shape is not None:
            shapes.append(tuple(shape))
        else:
            key = shape_fact(value.node, "shape") or value.node
            if key not in by_relation:
                rank = value.ndim
                names = [f"n{len(lengths) + i}" for i in range(rank)]
                dims = export.symbolic_shape(",".join(names), scope=scope) if names else ()
                by_relation[key] = tuple(dims)
                lengths.update({name: xp.dim(value, i) for i, name in enumerate(names)})
            shapes.append(by_relation[key])
    return shapes, lengths


def _record(
    called: Callable[..., Any],
    trace: CodeTrace,
    values: Sequence[V],
    shapes: Sequence[tuple[Any, ...]],
    lengths: Mapping[str, Any],
    trial: TrialDtype,
) -> Any:
    with trial.context():
        structs = [
            jax.ShapeDtypeStruct(
                shape, _dtype(value, trial), weak_type=value.node.type.kind == "scalar"
            )
            for value, shape in zip(values, shapes, strict=True)
        ]
        with reading():
            closed_jaxpr, result = _make_jaxpr(called, structs)
    # Arrays that the function reads from outside; those that it makes differ at each call.
    trace.memory.lifted += [
        constant for constant in closed_jaxpr.consts if isinstance(constant, jax.Array)
    ]
    scope = ImportScope(trace, trial, lengths)
    operands = [Operand(v, shape) for v, shape in zip(values, shapes, strict=True)]
    for operand in operands:
        scope.remember(operand)
    outputs = _run(scope, closed_jaxpr.jaxpr, closed_jaxpr.consts, operands)
    targets = jax.tree.leaves(result)
    results = [
        scope.given_back(output, struct) for output, struct in zip(outputs, targets, strict=True)
    ]
    return jax.tree.unflatten(jax.tree.structure(result), results)


def _make_jaxpr(called: Callable[..., Any], structs: Sequence[Any]) -> tuple[Any, Any]:
    """Trace a function, the same whatever is mapped or computed at once around it."""
    make = jax.make_jaxpr(called, return_shape=True)
    names = mapped_axes()
    with folding_constants(False):  # which takes no open lengths
        if not names:
            return make(*structs)
        # under axes of two sizes: a jaxpr that differs has read the size
        first, second = (with_axes(lambda: make(*structs), names, size) for size in (2, 3))
    if str(first[0]) != str(second[0]):
        raise Unknown(f"it reads the size of an axis that is mapped over, of {list(names)}")
    return first


def _dtype(value: V, trial: TrialDtype) -> Any:
    name = value.node.type.dtype
    if value.node.type.kind == "scalar":
        name = {"float": T, "int": INT32}.get(name, name)
    return jnp.dtype(trial.dtype if name == T else name)


def _run(
    scope: ImportScope, jaxpr: Any, constants: Sequence[Any], arguments: Sequence[Operand]
) -> list[Operand]:
    def literal(atom: Any) -> Operand:
        return scope.lift(np.asarray(atom.val, atom.aval.dtype))

    def compute(equation: Any, operands: list[Operand]) -> list[Operand]:
        results = _compute(scope, equation, operands)
        for operand in results:
            scope.remember(operand)
        return results

    return walk(jaxpr, [scope.lift(c) for c in constants], arguments, compute, literal)


def _compute(scope: ImportScope, equation: Any, operands: list[Operand]) -> list[Operand]:
    name = equation.primitive.name
    inner = equation.params.get(INLINED[name]) if name in INLINED else traced_of(equation)
    if inner is not None:
        return _compute_inner(scope, equation, operands, inner)
    if equation.primitive is CALLED:
        return _call(scope, equation, operands)
    known_results = _fold(scope, equation, operands)
    if known_results is not None:
        return known_results
    if name in CONTROL:
        return CONTROL[name](_run, scope, equation, operands)
    handler = PRIMITIVES.get(name)
    if handler is None:
        lacks = f"jax's primitive {name}, which is not captured"
        raise Unknown(lacks, lacks=lacks)
    return _handled(handler, scope, equation, operands)


def _compute_inner(
    scope: ImportScope, equation: Any, operands: list[Operand], inner: Any
) -> list[Operand]:
    """Record a call of a jaxpr: by the op that means the same, or its equations, inlined."""
    name, (inner_jaxpr, constants) = equation.primitive.name, open_jaxpr(inner)
    is_own = is_jaxs_own(inner_jaxpr)
    # Only jax's custom functions are known by name: a user's may have the same one.
    custom_name = inner_jaxpr.debug_info.func_name if name == "custom_jvp_call" else ""
    handler = NAMED.get(custom_name or equation.params.get("name", ""))
    if handler is not None and is_own:
        return _handled(handler, scope, equation, operands)
    # Functions of linear algebra whose own derivative is that of an op.
    op_function = OWN.get(custom_name) if is_own else None
    fits = ONLY_OWN.get(custom_name, factors_its_argument)
    if op_function is not None and factors_its_argument(inner_jaxpr) and fits(inner_jaxpr):
        values = op_function(*_whole(scope, equation, operands))
        values = values if isinstance(values, tuple) else (values,)
        shapes = [tuple(variable.aval.shape) for variable in equation.outvars]
        return [Operand(value, shape) for value, shape in zip(values, shapes, strict=True)]
    # Its primal is recorded, so that a derivative of the capture must raise.
    is_lost = name.startswith(("custom_", "call_hi_")) and not is_own
    if is_lost or (op_function is not None and custom_name in ONLY_OWN):
        scope.trace.backward.lost_gradient = inner_jaxpr.debug_info.func_name
    return _run(scope, inner_jaxpr, constants, operands)


def _handled(
    handler: Handler, scope: ImportScope, equation: Any, operands: list[Operand]
) -> list[Operand]:
    avals = [variable.aval for variable in equation.invars]
    step = EquationStep(
        scope=scope,
        operands=operands,
        shapes=[tuple(aval.shape) for aval in avals],
        dtypes=[aval.dtype for aval in avals],
        shape=tuple(equation.outvars[0].aval.shape),
        params=equation.params,
    )
    result = handler(step)
    results = [result] if isinstance(result, Operand) else result
    return [scope.noted(operand) for operand in results]


def _fold(scope: ImportScope, equation: Any, operands: list[Operand]) -> list[Operand] | None:
    # Integers and bools of known operands are computed now: loops count by them, and indices are
    # made of them. None for all else.
    avals = [variable.aval for variable in (*equation.invars, *equation.outvars)]
    if not operands or any(operand.known is None for operand in operands):
        return None
    if any(getattr(variable.aval.dtype, "kind", "") not in "iub" for variable in equation.outvars):
        return None
    if not all(isinstance(n, int) for aval in avals for n in aval.shape):
        return None
    with scope.trial.context(), jax.ensure_compile_time_eval():
        arrays = [
            jnp.broadcast_to(jnp.asarray(operand.known, variable.aval.dtype), variable.aval.shape)
            for operand, variable in zip(operands, equation.invars, strict=True)
        ]
        results = bind_unchanged(equation, arrays)
    return [scope.lift(np.asarray(result)) for result in results]


def factors_its_argument(jaxpr: Any) -> bool:
    """Return whether a jaxpr of jax's own factors its one argument unchanged."""
    if len(jaxpr.invars) != 1:
        return False
    for equation in jaxpr.eqns:
        # a function mapped over a later axis moves that axis first
        if equation.invars[:1] != jaxpr.invars:
            continue
        if equation.primitive.name in ("lu", "svd"):
            return True
        inner = equation.params.get(INLINED.get(equation.primitive.name, ""))
        if inner is not None and factors_its_argument(open_jaxpr(inner)[0]):
            return True
    return False


def _whole(scope: ImportScope, equation: Any, operands: list[Operand]) -> list[Value]:
    shapes = [tuple(variable.aval.shape) for variable in equation.invars]
    return [scope.whole(each, shape) for each, shape in zip(operands, shapes, strict=True)]


def _call(scope: ImportScope, equation: Any, operands: list[Operand]) -> list[Operand]:
    jax_call: JaxCall = equation.params["called"]
    avals = [variable.aval for variable in equation.invars]
    values = _whole(scope, equation, operands)
    # without a captured gradient the primal is recorded, and a derivative of it raises
    is_own = within_own_rules(jax_call.function) is not None
    stand_in = None if is_own else own_gradient(jax_call.function)
    question_count = questions.count()
    if stand_in is not None:
        args, kwargs = jax_call.arguments(values)
        try:
            outputs = jax.tree.leaves(stand_in(*args, **kwargs))
            shapes = [tuple(aval.shape) for aval in jax_call.avals]
            return [Operand(v, shape) for v, shape in zip(outputs, shapes, strict=True)]
        except TraceError:
            questions.forget(question_count)
            scope.trace.backward.lost_gradient = stand_in.name
    with reading():
        closed_jaxpr = jax.make_jaxpr(jax_call.compute)(*avals)
    return _run(scope, closed_jaxpr.jaxpr, closed_jaxpr.consts, operands)


def is_jaxs_own(jaxpr: Any) -> bool:
    """Return whether a jaxpr's function is jax's own, whose gradient is its derivative."""
    file = jaxpr.debug_info.func_filename or ""
    # a user's function under `jax.custom_gradient` is reported in jax's file
    return file.startswith(JAXS_FOLDER) and file != DECORATORS


def _are_alike(wide: Any, single: Any) -> bool:
    """Return whether two results are the same graph, the second's numbers rounded to float32."""
    leaves = zip(jax.tree.leaves(wide), jax.tree.leaves(single), strict=True)
    pairs = [(a.node, b.node) for a, b in leaves]
    compared_pairs: set[tuple[Node, Node]] = set()
    # without recursion, as graphs may be deep
    while pairs:
        a, b = pair = pairs.pop()
        if a is b or pair in compared_pairs:
            continue
        compared_pairs.add(pair)
        if a.op is not b.op or a.type != b.type or len(a.operands) != len(b.operands):
            return False
        if a.op in (ops.CONST, ops.ARRAY):
            if not _numbers_alike(a.attr("value"), b.attr("value")):
                return False
            continue
        inner = _paired_regions(a, b)
        if inner is None:
            return False
        pairs += [*zip(a.operands, b.operands, strict=True), *inner]
    return True


def _numbers_alike(wide: Any, single: Any) -> bool:
    if hasattr(wide, "as_numpy"):
        arrays = wide.as_numpy(np.float32), single.as_numpy(np.float32)
    elif isinstance(wide, float):
        arrays = np.float32(wide), np.float32(single)
    else:
        return wide == single
    return bool(np.array_equal(*arrays, equal_nan=True))


def _paired_regions(a: Node, b: Node) -> list[tuple[Node, Node]] | None:
    pairs: list[tuple[Node, Node]] = []
    for (_, a_value), (_, b_value) in zip(a.attrs, b.attrs, strict=True):
        if not isinstance(a_value, Region):
            # None: an attribute differs
            if a_value != b_value:
                return None
            continue
        a_graph, b_graph = a_value.graph, b_value.graph
        if a_graph.inputs != b_graph.inputs or len(a_graph.outputs) != len(b_graph.outputs):
            return None
        pairs += zip(a_graph.outputs, b_graph.outputs, strict=True)
    return pairs
