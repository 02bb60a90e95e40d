"""`xg.export` by torch: programs that call operators with their own gradients, and ONNX models.

torch's own exporters do the work; this module prepares their input. An operator is registered once
in a process, under a name that contains the hash of its graphs.
"""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch

from multigrad.backend import Backend, Emitted
from multigrad.core.backend.discovery import load_backend
from multigrad.core.lowering.function_graph import FunctionGraph
from multigrad.core.lowering.lower import lower_graphs
from multigrad.core.support.threads import set_within
from multigrad.core.support.trees import optree
from multigrad.engine.functions.saving import OPERATORS_FILE, Operator, write_operators
from multigrad.engine.lowering.plain_functions import without_autodiff
from multigrad.engine.support.files import replacing
from multigrad.errors import BackendNotFound, GradientError, RuleTypeError, UnsupportedOp

from . import releases
from .attach.standalone import render_operator
from .core import versions

Tensor: TypeAlias = torch.Tensor
Shapes: TypeAlias = Any  # of each input, as torch.export takes them; a str names an axis
NEEDED = ("onnx", "onnxscript")
COARSE = 1e-2  # tolerance for numbers that another runtime rounds differently
OPERATORS: dict[str, Operator] = {}  # registered in this process, by name; never removed


@dataclass(slots=True)
class Notes:
    """What an export meets: errors in order, and the Functions whose operators are for lengths."""

    errors: list[Exception] = field(default_factory=list)
    sized: set[str] = field(default_factory=set)


# What an export that asks for operators has met; None while there is none.
NOTES: ContextVar[Notes | None] = ContextVar("notes", default=None)


def asks_for_operators() -> bool:
    """Return whether an export runs whose calls must be operators."""
    return versions.is_exporting() and NOTES.get() is not None


def register_operator(name: str, schema: str, forward: Any, keep: Any, backward: Any) -> Any:
    """Return torch's operator of a name, registered if it is not yet.

    Equal names mean equal graphs. Registering one again would leave programs with dangling
    references (torch 2.13).
    """

    def run(*args: Any) -> Any:
        # torch (2.13) gives an operator without forward mode the tangent zero.
        if torch.autograd.forward_ad._current_level >= 0:
            raise GradientError(f"operator {name!r} has no forward mode: use reverse mode")
        return forward(*args)

    if not hasattr(torch.ops.multigrad, name):
        op = torch.library.custom_op(f"multigrad::{name}", run, mutates_args=(), schema=schema)
        op.register_fake(forward)
        op.register_autograd(backward, setup_context=keep)
    return getattr(torch.ops.multigrad, name).default


def operator_render(name: str) -> Callable[[Emitted], str]:
    return partial(render_operator, name=name)


def register(operator: Operator) -> Callable[..., Any]:
    """Return torch's operator for these graphs, registered if it is not yet."""
    OPERATORS.setdefault(operator.name, operator)
    packet = getattr(torch.ops.multigrad, operator.name, None)
    if packet is not None:
        return packet.default
    backend = load_backend("torch")
    autodiff = replace(
        backend.autodiff,
        render=operator_render(operator.name),
        finish=lambda namespace, emitted: namespace[emitted.names.identifier],
        call=lambda native, emitted: native,
        namespace={**backend.autodiff.namespace, "register_operator": register_operator},
        forward_mode=False,
    )
    graphs = replace(operator.graphs, name=operator.name)
    return lower_graphs(graphs, backend.with_groups(autodiff=autodiff), style="plain").native


class FunctionModule(torch.nn.Module):
    """A function as a module, which exporters require."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *tensors: Any) -> Any:
        return self.function(*tensors)


# --- programs -------------------------------------------------------------------------------------


def write_program(
    model: Any, path: Path, inputs: tuple[Any, ...], shapes: Shapes, strict: bool
) -> tuple[Any, list[Operator]]:
    """Write a model's exported program, and return it with the operators that it calls.

    Their documents are in it. The error of one that cannot be an operator is raised after tracing.
    """
    if not releases.has("xg.export"):
        raise releases.refuse("xg.export", "write it as a file by `multigrad eject`")
    module = model if isinstance(model, torch.nn.Module) else FunctionModule(model)
    shapes = as_dims(shapes, {})
    if module is not model and shapes is not None:
        # `FunctionModule.forward` has one parameter, `*tensors`, for which torch wants one tuple.
        shapes = (tuple(shapes),)
    with set_within(NOTES, Notes()) as notes:
        try:
            program = torch.export.export(module, inputs, dynamic_shapes=shapes, strict=strict)
        except Exception as error:
            if notes.errors:
                raise notes.errors[0] from error
            if notes.sized and is_about_lengths(error):
                raise UnsupportedOp(
                    f"{' and '.join(sorted(notes.sized))} asks for lengths in Python, so its "
                    "operator is for those of these inputs alone: leave out dynamic_shapes=, or "
                    "let it ask for none, as by x.view_as(y) in place of x.view(y.shape[0], -1), "
                    "or export a class without its gradient, by torch.export.export"
                ) from error
            library = _other_library(model, inputs)
            if library is None:
                raise
            raise RuleTypeError(
                f"{path.name!r} holds a program of torch, and {type(model).__name__} "
                f"{model!r:.60} gives arrays of {library}. Write a file of that library, as "
                "Keras's model.export or jax.export.export does, or load a model of Keras where "
                "KERAS_BACKEND is torch"
            ) from error
    if notes.errors:
        raise notes.errors[0]
    operators = list(called_by(program))
    documents = {OPERATORS_FILE: write_operators(operators)}
    with replacing(path) as temporary:
        torch.export.save(program, temporary, extra_files=documents)
    return program, operators


def is_about_lengths(error: Exception) -> bool:
    """Return whether torch cannot leave the lengths open that dynamic_shapes= names."""
    from torch._dynamo.exc import UserErrorType

    return getattr(error, "error_type", None) is UserErrorType.CONSTRAINT_VIOLATION


def _other_library(model: Any, inputs: tuple[Any, ...]) -> str | None:
    """Return whose arrays a model gives for tensors, as of Keras on JAX; None: torch's, or none."""
    with suppress(Exception):
        results = [each for each in optree.tree_leaves(model(*inputs)) if hasattr(each, "dtype")]
        if results and not any(isinstance(each, torch.Tensor) for each in results):
            return type(results[0]).__module__.partition(".")[0]
    return None


def called_by(program: Any) -> Iterator[Operator]:
    """Yield the operators of ours that a program calls, once each, also those in loop bodies."""
    yielded_names = set()
    for module in program.graph_module.modules():
        for node in module.graph.nodes if isinstance(module, torch.fx.GraphModule) else ():
            if not isinstance(node.target, torch._ops.OpOverload):
                continue
            namespace, _, name = node.target.name().partition("::")
            if namespace == "multigrad" and name in OPERATORS and name not in yielded_names:
                yielded_names.add(name)
                yield OPERATORS[name]


def as_dims(shapes: Shapes, dims: dict[str, Any]) -> Shapes:
    if isinstance(shapes, str):
        return dims.setdefault(shapes, torch.export.Dim(shapes))
    if isinstance(shapes, Mapping):
        return {key: as_dims(each, dims) for key, each in shapes.items()}
    if isinstance(shapes, tuple | list):
        return type(shapes)(as_dims(each, dims) for each in shapes)
    return shapes


# --- ONNX -----------------------------------------------------------------------------------------


def write_onnx(
    graphs: FunctionGraph,
    path: Path,
    tensors: Sequence[Tensor],
    numbers: Sequence[float],
    shapes: Shapes,
) -> tuple[Path, Path]:
    if not releases.has("xg.export"):
        raise releases.refuse("xg.export", "write it as a file by `multigrad eject`")
    uninstalled = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if uninstalled:
        raise BackendNotFound(
            f"torch writes ONNX by {' and '.join(NEEDED)}, and there is no {uninstalled[0]} here: "
            f"pip install {' '.join(NEEDED)}"
        )
    functions = lower_graphs(graphs, _plain(load_backend("torch")), style="plain").native
    emitted = functions.emitted

    def forward(*inputs: Tensor) -> tuple[Tensor, ...]:
        outputs, residuals = functions.keep(*inputs, *numbers)
        # A model may not return its inputs.
        return tuple([y.clone() for y in (*outputs, *residuals)])

    carriers = [c for c, has in zip(emitted.names.cotangents, emitted.carries, strict=True) if has]

    def backward(*values_read: Tensor) -> tuple[Tensor, ...]:
        cotangents = dict(zip(carriers, values_read, strict=False))
        gradients = functions.backward(
            *map(cotangents.get, emitted.names.cotangents), *values_read[len(carriers) :], *numbers
        )
        return tuple([g.clone() for g in gradients])

    inputs, results = emitted.names.inputs, (*emitted.names.outputs, *emitted.residuals.computed)
    program = _trace(graphs.name, forward, tensors, shapes)
    axes = dict(zip((*inputs, *results), _axes_of(program, len(tensors), shapes), strict=True))
    values = dict(zip((*inputs, *results), (*tensors, *forward(*tensors)), strict=True))
    for cotangent, output in zip(emitted.names.cotangents, emitted.names.outputs, strict=True):
        values[cotangent], axes[cotangent] = values[output], axes[output]
    axes_read = {name: axes[name] for name in (*carriers, *emitted.residuals.names)}
    tensors_read = {name: values[name] for name in axes_read}
    pullback = _trace(graphs.name, backward, [*tensors_read.values()], tuple(axes_read.values()))
    backward_path = path.with_suffix(f".backward{path.suffix}")
    with replacing(path) as first_file, replacing(backward_path) as second_file:  # both or none
        _write(graphs.name, program, first_file, {name: axes[name] for name in inputs}, results)
        inputs_by_name = {name: values[name] for name in inputs}
        _compare(graphs.name, first_file, inputs_by_name, forward(*tensors))
        wrt = [f"grad_{name}" for name in emitted.names.wrt]
        _write(graphs.name, pullback, second_file, axes_read, wrt)
        _compare(graphs.name, second_file, tensors_read, backward(*tensors_read.values()))
    return path, backward_path


def _plain(backend: Backend) -> Backend:
    # The exporter reads plain ops, no custom gradients and no loops.
    plain = without_autodiff(backend.with_groups(interop=replace(backend.interop, outside=None)))
    return plain.with_groups(autodiff=replace(plain.autodiff, joins_loops=False))


def _trace(
    name: str, function: Callable[..., Any], tensors: Sequence[Tensor], shapes: Shapes
) -> Any:
    # Imported here: with sympy it takes 2 s.
    from torch._dynamo.exc import UserError
    from torch.fx.experimental.symbolic_shapes import ConstraintViolationError

    dims = (tuple(as_dims(shapes, {})),)
    tensors = tuple([x.detach() for x in tensors])
    try:
        return torch.export.export(
            FunctionModule(function), tensors, dynamic_shapes=dims, strict=False
        )
    except (UserError, ConstraintViolationError) as error:
        raise UnsupportedOp(
            f"torch {torch.__version__} cannot export function {name!r} with the axes of "
            f"dynamic_shapes= left open: {error}"
        ) from error


def _axes_of(program: Any, count: int, shapes: Shapes) -> list[dict[int, Any]]:
    nodes = list(program.graph.nodes)
    inputs = [node for node in nodes if node.op == "placeholder"][-count:]
    values = [node.meta["val"] for node in (*inputs, *nodes[-1].args[0])]
    # An open axis has the name of the input's axis of the same symbol, if there is one.
    names: dict[str, Any] = {}
    for value, axes in zip(values, shapes, strict=False):
        for axis, name in (axes or {}).items():
            names.setdefault(str(value.shape[axis]), name)
    return [
        {
            axis: names.get(str(length), torch.export.Dim.DYNAMIC)
            for axis, length in enumerate(value.shape)
            if isinstance(length, torch.SymInt)
        }
        for value in values
    ]


def _write(
    name: str,
    program: Any,
    path: str,
    inputs: Mapping[str, Mapping[int, Any]],
    outputs: Sequence[str],
) -> None:
    axis_names = [
        {axis: each for axis, each in axes.items() if isinstance(each, str)}
        for axes in inputs.values()
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            torch.onnx.export(
                program,
                f=path,
                dynamo=True,
                verbose=False,
                external_data=False,
                input_names=list(inputs),
                output_names=list(outputs),
                dynamic_shapes=axis_names,
            )
        except torch.onnx.OnnxExporterError as error:
            raise UnsupportedOp(
                f"torch {torch.__version__} cannot write function {name!r} as ONNX: {error}"
            ) from error


def _compare(
    name: str, path: str, inputs: Mapping[str, Tensor], expected: Sequence[Tensor]
) -> None:
    # A model that computes something else, not merely rounds differently, is an exporter's bug.
    import onnx.reference

    model = onnx.load(path)
    arrays = {key: x.detach().cpu().numpy() for key, x in inputs.items()}
    try:
        with np.errstate(all="ignore"):
            results = onnx.reference.ReferenceEvaluator(model).run(None, arrays)
    except Exception:  # noqa: BLE001 (it lacks some ops of ONNX, and fails in its own ways)
        return
    for y, array in zip(results, expected, strict=True):
        array = array.detach().cpu().numpy()
        is_close = y.shape == array.shape and np.allclose(
            y, array, rtol=COARSE, atol=COARSE * np.abs(array).max(initial=0.0), equal_nan=True
        )
        if not is_close:
            raise UnsupportedOp(
                f"torch {torch.__version__} writes function {name!r} as ONNX that computes "
                f"something else ({y.dtype} of shape {y.shape} for {array.dtype} of shape "
                f"{array.shape}): report it there, or use the .pt2 format"
            )
