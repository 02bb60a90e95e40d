"""`xg.memory`: the bytes that are kept for backward, by residual and by layer of a model.

A model's framework tells what its layers keep, as `Residual`s. Of all else the bytes follow from
graphs: the object becomes a Function (`_function_of`), which is captured on a zero that is
broadcast to the shapes (`_variant_of`); each residual of its cut is a node of a graph, whose shape
follows from those of the inputs (`_residuals_of`).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any

import numpy as np

from ..core.backend.contract import Backend
from ..core.backend.discovery import in_use, load_backend
from ..core.functions.recipe import NotCaptured, Variant
from ..core.ir.graph import Node
from ..core.ir.op import BOOL, FLOATS, WHOLE, T, dtype_name
from ..core.lowering.function_graph import FunctionGraph
from ..core.ops.numerics import as_numpy_dtype
from ..core.passes.facts import SHARDS, is_tensor_input, shape_fact
from ..core.passes.residuals import BYTES, ResidualCut
from ..core.rules.activation import Activation
from ..core.rules.vjp import function_in_force
from ..engine.functions.function import Function, as_function
from ..engine.functions.known_forms import capture_example
from ..engine.lowering.cuts import (
    as_far_as_written,
    cut_with_costly,
    find_cuts_for_writes,
    without_calls,
)
from ..engine.passes.residuals import PACK
from ..engine.passes.shapes import ComputedShapes
from ..errors import RuleTypeError, RuleValueError, TraceError
from ..models.layer_memory import Residual, Shape
from ..models.override import is_model_of
from .subject import Subject, subject_of

COLUMNS = ("layer", "name", "what", "shape", "dtype", "bytes")


@dataclass(frozen=True, slots=True)
class Memory:
    """The tensors kept for backward and their bytes; `str()` is a table.

    Attributes:
        name: of the object.
        backend: the framework that keeps it.
        residuals: each tensor, once.
        total: their bytes.
        layers: of a model, the bytes by layer.
    """

    name: str
    backend: str
    residuals: tuple[Residual, ...]
    total: int = field(init=False)
    layers: Mapping[str, int] = field(init=False)

    def __post_init__(self) -> None:
        layers: dict[str, int] = {}
        for each in self.residuals:
            if each.layer:
                layers[each.layer] = layers.get(each.layer, 0) + each.bytes
        # The dataclass is frozen: derived fields are set once, here.
        object.__setattr__(self, "layers", layers)
        object.__setattr__(self, "total", sum([each.bytes for each in self.residuals]))

    def __str__(self) -> str:
        title = f"{self.name} on {self.backend} keeps {self.total:,} bytes for backward"
        columns = COLUMNS if self.layers else COLUMNS[1:]
        rows = [columns, *([_text(each, name) for name in columns] for each in self.residuals)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(map(str.ljust, row[:-1], widths)) for row in rows]
        sizes = [row[-1].rjust(widths[-1]) for row in rows]
        table = [f"  {line}  {size}" for line, size in zip(lines, sizes, strict=True)]
        return "\n".join([f"{title}:", *table]) if self.residuals else title


def _text(residual: Residual, name: str) -> str:
    value = getattr(residual, name)
    return f"{value:,}" if isinstance(value, int) else str(value)


def memory(obj: Any, shape: Sequence[Any], dtype: Any = "float32") -> Memory:
    """Return the bytes that forward keeps for backward.

    Examples:
        >>> kept = xg.memory("rectangular", (1000, 1000))
        >>> kept.total, kept.residuals[0].what
        (1000000, 'mask')
        >>> print(xg.memory(xg.activation("Tanh"), (8, 4)))
        activation('Tanh') on ... keeps 128 bytes for backward:
          name    what    shape   dtype    bytes
          output  output  (8, 4)  float32    128

    Args:
        obj: a rule or its name (under Linear), an activation, a Function, a converted class, or a
            model: a `torch.nn.Module`, or a Keras model or layer, with rules attached or without.
            A model of torch runs forward once, on zeros, and on JAX and TensorFlow is traced in
            training; what it keeps is counted as its framework tells, each memory once and weights
            not, and its variables stay as they are. Of all else nothing of that size is made: bytes
            follow from the graphs.
        shape: the shape of the input, a tuple of ints; of several tensors, a list of shapes, in
            their order.
        dtype: the dtype of float inputs, by name or as a framework's own, as `torch.float16`; of
            each tensor, where a list is given. Rules and Functions without a framework keep what
            the framework of the dtype keeps, else that of the first one that is imported.

    Raises:
        RuleTypeError: it is nothing that has a gradient; the shape is none; a Keras layer keeps the
            steps of a loop on TensorFlow.
        RuleValueError: a Function takes another number of tensors; a Keras model is not built.
        TraceError: it has no graph, as it runs as it is.
    """
    shapes = _read_shapes(shape)
    dtypes = [dtype] * len(shapes) if not isinstance(dtype, list) else dtype
    if len(dtypes) != len(shapes):
        raise RuleValueError(f"xg.memory got {len(shapes)} shapes and {len(dtypes)} dtypes")
    names = [_read_dtype(each) for each in dtypes]
    keras = sys.modules.get("keras")
    # A module or layer of ours is not read as a model: it stands for its activation.
    if getattr(obj, "_activation", None) is None:
        if keras is not None and isinstance(obj, keras.Layer):
            # Imported by name, as `look` may not depend on the package of Keras.
            layer_kinds = import_module("multigrad.keras.layer_kinds")
            name, rows = layer_kinds.kept_by_layers(obj, shapes, names)
            return Memory(type(obj).__name__, name, tuple(rows))
        for backend in in_use():
            if is_model_of(backend, obj):
                if backend.models.kept is None:
                    raise RuleTypeError(
                        f"backend {backend.name!r} does not tell what layers of a model keep: ask "
                        "about its activations and Functions"
                    )
                rows = backend.models.kept(obj, shapes, names)
                return Memory(type(obj).__name__, backend.name, tuple(rows))
    subject = subject_of(obj)
    backend = _backend_for(subject, dtypes)
    variant = _variant_of(obj, subject, shapes, names)
    return Memory(subject.name, backend.name, _residuals_of(variant, backend, shapes, names))


# --- arguments ------------------------------------------------------------------------------------
def _read_shapes(shape: Any) -> list[Shape]:
    shapes = list(shape) if isinstance(shape, list) else [shape]
    # A list of ints is one shape, a list of tuples several.
    if isinstance(shape, list) and all(isinstance(each, int) for each in shape):
        shapes = [tuple(shape)]
    for each in shapes:
        is_shape = isinstance(each, tuple) and all(type(n) is int and n >= 0 for n in each)
        if not is_shape:
            raise RuleTypeError(
                f"xg.memory got shape {each!r:.60}; expected a tuple of ints, as (32, 128), or a "
                "list of such, one for each tensor"
            )
    return shapes


def _read_dtype(dtype: Any) -> str:
    name = "float32" if dtype in (float, None) else dtype_name(dtype)
    if name not in (*FLOATS, *WHOLE, BOOL):
        raise RuleTypeError(
            f"xg.memory got dtype {dtype!r:.60}; expected the name of one, as 'float32', or a "
            "framework's own, as torch.float16"
        )
    return name


def _backend_for(subject: Subject, dtypes: Sequence[Any]) -> Backend:
    """Return the backend of the dtypes, else that of the Function, else the first in use."""
    function = subject.function
    dialect = "" if function is None else function.recipe.dialect()
    by_name = {backend.name: backend for backend in in_use()}
    # A framework's dtype object names it; a string could be of any.
    for dtype in dtypes:
        root = (getattr(type(dtype), "__module__", "") or "").partition(".")[0]
        of_class = (getattr(dtype, "__module__", "") or "").partition(".")[0]
        for name in (root, of_class):
            if name in by_name and name != "numpy" and not isinstance(dtype, str):
                return by_name[name]
    if dialect:
        return by_name.get(dialect) or load_backend(dialect)
    other_backends = [backend for name, backend in by_name.items() if name != "numpy"]
    return other_backends[0] if other_backends else load_backend("numpy")


# --- graphs ---------------------------------------------------------------------------------------
def _variant_of(
    obj: Any, subject: Subject, shapes: Sequence[Shape], dtypes: Sequence[str]
) -> Variant:
    """Return the object's captured form for tensors of these shapes and dtypes.

    Raises:
        RuleValueError: it takes other arguments.
        TraceError: it has no graph.
    """
    function = subject.function
    args: list[Any] = [
        # One zero, broadcast: the shape costs no memory.
        np.broadcast_to(np.zeros((), as_numpy_dtype(name)), shape)
        for shape, name in zip(shapes, dtypes, strict=True)
    ]
    if function is None:
        if len(shapes) != 1:
            raise RuleValueError(f"{subject.name} takes one tensor, and got {len(shapes)} shapes")
        function, values = _function_of(obj)
        args += values
    assert function is not None
    try:
        if function.parameters is not None:
            function.parameters.bind(*args)
    except TypeError as error:
        raise RuleValueError(
            f"function {function.name!r} takes other arguments than {len(args)} tensors: {error}. "
            "xg.memory takes a list with one shape for each tensor; for arguments that are none, "
            "ask about function.bind({name: value})"
        ) from None
    try:
        variant = capture_example(function, *args)
        # "auto" is the cut of the capture itself.
        if function.residuals == "auto":
            return variant
        return replace(variant, graphs=replace(variant.graphs, residuals=function.residuals))
    except NotCaptured as error:
        raise TraceError(
            f"{subject.name} runs as it is, so no graph tells what is kept: {error.error}"
        ) from error.error


def _function_of(obj: Any) -> tuple[Function, tuple[Any, ...]]:
    """Return a rule or activation as a Function, and the values of its run-time params."""
    activation: Any = getattr(obj, "_activation", obj)
    if not isinstance(activation, Activation):
        activation = Activation("Linear", activation)
    in_force = activation.in_force()
    # Native code may read its whole input, so that no cut is known.
    if in_force is not None and in_force.specialization.rule.native is True:
        raise TraceError(
            f"rule {in_force.specialization.rule.name!r} runs as it is (native=True), so it may "
            "read its whole input, which is kept"
        )
    function, values, _ = function_in_force(activation)
    return as_function(function), values


def _residuals_of(
    variant: Variant, backend: Backend, shapes: Sequence[Shape], dtypes: Sequence[str]
) -> tuple[Residual, ...]:
    graphs = as_far_as_written(without_calls(variant.graphs), backend)
    tensors = [leaf.name for leaf in variant.layout.leaves if leaf.kind == "tensor"]
    input_shapes = dict(zip(tensors, shapes, strict=False))
    input_dtypes = dict(zip(tensors, dtypes, strict=False))
    # The dtype of values for which the graph says T, "that of the input".
    float_dtype = next((dtype for dtype in dtypes if dtype in FLOATS), None)
    shape_of = _shapes_under(graphs, input_shapes)
    keeps_floats = backend.autodiff.keeps_float_derivatives
    cuts = [graphs.cut(keeps_floats, packs=backend.kernels.bits is not None)]
    # A joined loop needs more.
    costly = cut_with_costly(graphs, keeps_floats) if backend.autodiff.joins_loops else None
    cuts += [] if costly is None else [costly]
    apart = find_cuts_for_writes(graphs, backend, joins=True)
    if apart is not None:
        cuts = [apart.anywhere, *([] if apart.wide is None else [apart.wide.cut])]
    nodes: dict[str, Node] = {}
    for cut in cuts:
        nodes.update(zip(cut.computed, cut.keep.outputs, strict=True))
    nodes.update(zip(graphs.outputs, graphs.forward.outputs, strict=True))
    cut_of = {name: cut for cut in reversed(cuts) for name in cut.residuals}
    residuals = []
    for name, cut in cut_of.items():
        type_name = cut.type(name).dtype
        dtype = input_dtypes.get(name) or (float_dtype if type_name == T else None) or type_name
        node = nodes.get(name)
        if node is not None and node.op is PACK:
            # Bits: eight bools in a byte, rounded up.
            shape = (-(-math.prod(shape_of(node.operands[0])) // 8),)
        else:
            shape = input_shapes[name] if name in input_shapes or node is None else shape_of(node)
        # Only shape and dtype are noted for these, which costs nothing.
        is_noted = name in cut.likes and backend.autodiff.notes_shapes
        size = 0 if is_noted else math.prod(shape) * BYTES.get(dtype, 4)
        role = _what(name, graphs, cut)
        residuals.append(Residual(name, role, shape=shape, dtype=dtype, bytes=size))
    return tuple(residuals)


def _shapes_under(
    graphs: FunctionGraph, input_shapes: Mapping[str, Shape]
) -> Callable[[Node], Shape]:
    """Return a function that gives the shape of a node, for inputs of these shapes."""
    facts: dict[str, Any] = {SHARDS: 1}
    for graph in (graphs.forward, graphs.backward):
        for node in graph.inputs:
            name = node.attr("name")
            if name in input_shapes and is_tensor_input(node):
                facts[shape_fact(node, "shape") or ""] = input_shapes[name]
    shapes = ComputedShapes(facts)
    for name, node in zip(graphs.outputs, graphs.forward.outputs, strict=True):
        facts[f"shape:{name}"] = shapes.of(node)  # kept tensors may be computed from outputs

    def shape_of(node: Node) -> Shape:
        if node.type.kind != "tensor":
            return ()
        return shapes.of(node)

    return shape_of


def _what(name: str, graphs: FunctionGraph, cut: ResidualCut) -> str:
    if name in graphs.inputs:
        return "input"
    if name in graphs.outputs:
        return "output"
    return "mask" if cut.type(name).dtype in (BOOL, "uint8") else "intermediate"
