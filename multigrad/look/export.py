"""`xg.export` and `xg.load_operators`: models and Functions, with their gradients, in exchange
formats.

A framework's own exporter writes the format. The gradients are in the file as documents, which are
data, for the process that loads it.
"""

from __future__ import annotations

import errno
import os
import zipfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ..core.backend.contract import Backend
from ..core.backend.discovery import load_backend
from ..core.backend.values import owner_of
from ..core.functions.arguments import flatten
from ..core.functions.recipe import NotCaptured, Variant
from ..core.rules.activation import Activation
from ..core.rules.vjp import function_in_force
from ..core.support.trees import optree
from ..engine.functions.calls.arguments import unwrap
from ..engine.functions.decision import EXPORTED, decide_call
from ..engine.functions.documents.format import MOST_BYTES, parse
from ..engine.functions.eject.eject import eject_operators
from ..engine.functions.function import Function, as_function
from ..engine.functions.object_function import on_backend
from ..engine.functions.saving import OPERATORS_FILE, read_operators
from ..engine.rules.saving import from_dict
from ..engine.support.files import write_whole
from ..engine.trace.moving_numbers import read_number
from ..errors import FormatError, RuleTypeError, UnsupportedOp

StrPath = str | os.PathLike[str]
# The framework whose exporter writes a format.
WRITERS = {".pt2": "torch", ".onnx": "torch"}


def export(
    obj: Callable[..., Any],
    path: StrPath,
    *inputs: Any,
    dynamic_shapes: Any = None,
    standalone: StrPath | None = None,
    strict: bool = False,
) -> Any:
    """Write a model or a Function to a file for exchange, with its gradient in it.

    A `.pt2` file is written by `torch.export` from a torch model or a function of tensors. In it
    every Function, and every activation with a rule, is one operator, `multigrad::<name>_<hash of
    its graphs>`, with the custom gradient: in eager code, under `torch.compile`, after
    `run_decompositions()`, and for second derivatives if the Function has them. A process that
    loads the file has to know the operators, or torch refuses it: call `xg.load_operators(path)`
    there, or import the `standalone` file where multigrad is not installed.

    An `.onnx` file is a Function, or an activation with its rule, as two models. The one at `path`
    maps the inputs to the outputs, and to what forward keeps. The other one
    (`clipped.backward.onnx`) maps the cotangents (`grad_out`) and what forward keeps to a gradient
    `grad_<input>` of each input. Equal names mean equal values. Both are run once by onnx's
    reference evaluator, and compared.

    Examples:
        >>> import torch
        >>> model = torch.nn.Sequential(torch.nn.Linear(3, 2), xg.Activation("Tanh", "triangular"))
        >>> program = xg.export(model, "model.pt2", torch.ones(4, 3))
        >>> [name.rpartition("_")[0] for name in xg.load_operators("model.pt2")]
        ['triangular_under_Tanh']
        >>> loaded = torch.export.load("model.pt2").module()
        >>> loaded(torch.ones(4, 3)).requires_grad
        True

    Args:
        obj: a model, or a function of tensors; for ONNX a Function or an activation.
        path: the file, whose suffix says the format.
        inputs: example arguments, arrays of any framework; their shapes and dtypes are fixed in the
            file, except for the axes in `dynamic_shapes`. Python numbers are written as constants.
        dynamic_shapes: for each input the axes whose length is not fixed, by a name, as in
            `({0: "batch"}, None)`; for a program also what else `torch.export.export` takes.
        standalone: a file of Python to write that registers a program's operators with torch alone.
        strict: of `torch.export.export`: whether Dynamo reads the model's code.

    Returns:
        `.pt2`: the `torch.export.ExportedProgram`; `.onnx`: the paths of forward and backward.

    Raises:
        FormatError: nothing writes files of this suffix.
        RuleTypeError: the object has no gradient of its own that the format holds.
        UnsupportedOp: something in it draws random numbers, runs as it is, or is no op of ONNX.
        TraceError: it cannot be captured.
        BackendNotFound: torch, or onnx and onnxscript, are not installed.
        OSError: the file cannot be written.
    """
    path = Path(path)
    _check_paths(path, standalone)
    backend = load_backend(WRITERS[path.suffix])
    converted_inputs = optree.tree_map(partial(on_backend, backend), inputs, none_is_leaf=True)
    if isinstance(dynamic_shapes, tuple | list):
        dynamic_shapes = _pad_dynamic_shapes(inputs, dynamic_shapes)
    if path.suffix in backend.exports.functions:
        if standalone is not None:
            raise RuleTypeError(
                f"{path.name!r} needs no standalone=: ONNX has no operators of ours"
            )
        return _export_function(backend, obj, path, converted_inputs, dynamic_shapes)
    if not callable(obj):
        raise RuleTypeError(
            f"expected a model or a function of tensors, got {type(obj).__name__} {obj!r:.40}; "
            "a rule is exported within an activation: xg.activation('Heaviside', rule)"
        )
    write = backend.exports.programs[path.suffix]
    program, operators = write(obj, path, converted_inputs, dynamic_shapes, strict)
    if standalone is not None:
        graphs = {operator.name: operator.graphs for operator in operators}
        write_whole(standalone, eject_operators(graphs, backend))
    return program


def _check_paths(path: Path, standalone: StrPath | None) -> None:
    """Check that a format is known by the suffix, and that the folders exist."""
    if path.suffix not in WRITERS:
        names = " and ".join(WRITERS)
        raise FormatError(
            f"no exporter here writes {path.name!r}: gradients are exported to files in {names}; "
            "a rule or a Function for multigrad itself is saved by xg.save"
        )
    for file in (path, *([] if standalone is None else [Path(standalone)])):
        if not file.parent.is_dir():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(file.parent))


def _pad_dynamic_shapes(inputs: Sequence[Any], shapes: Sequence[Any]) -> tuple[Any, ...]:
    """Return `shapes` with None for each input that it does not reach."""
    if len(shapes) > len(inputs):
        raise RuleTypeError(
            f"dynamic_shapes= has {len(shapes)} entries for {len(inputs)} inputs; expected one for "
            "each, as in ({0: 'batch'}, None)"
        )
    # torch.export takes a length of 0 or 1 for a constant, whatever is declared.
    for n, (tensor, axes) in enumerate(zip(inputs, shapes, strict=False)):
        lengths = getattr(tensor, "shape", ())
        for axis in axes if isinstance(axes, Mapping) else ():
            if type(axis) is int and axis < len(lengths) and lengths[axis] < 2:
                raise RuleTypeError(
                    f"axis {axis} of input {n} is to be left open (dynamic_shapes=) and has length "
                    f"{lengths[axis]}, which torch takes for a constant: give one longer than 1"
                )
    return (*shapes, *(None,) * (len(inputs) - len(shapes)))


def load_operators(path: StrPath) -> dict[str, Function[..., Any]]:
    """Register the operators of a program written by `xg.export`, and return them.

    They are stored in the file as graphs, which are data: no code in the file runs, and nothing
    else in it is read. An operator's name contains the hash of its graphs, so that a program never
    runs with a gradient other than its own.

    Examples:
        >>> import torch
        >>> double = xg.function(xp.tanh, lambda grad_out, x: 2.0 * grad_out)
        >>> program = xg.export(double, "double.pt2", torch.ones(2))
        >>> (function,) = xg.load_operators("double.pt2").values()
        >>> xg.vjp(function, np.zeros(2))[1](np.ones(2))  # a Function as any other
        (array([2., 2.]),)

    Returns:
        the Functions, by the names of the operators.

    Raises:
        FormatError: the file was not written by `xg.export`, or is damaged.
        OSError: the file cannot be read.
    """
    operators = read_operators(parse(_read_documents(path)))
    backend = load_backend(WRITERS[".pt2"])
    register = backend.exports.register
    assert register is not None
    for operator in operators:
        register(operator)
    return {each.name: from_dict(each.document) for each in operators}  # type: ignore[misc]


def _read_documents(path: StrPath) -> bytes:
    try:
        with zipfile.ZipFile(path) as archive:
            names = [name for name in archive.namelist() if name.endswith(f"/{OPERATORS_FILE}")]
            if len(names) == 1:
                with archive.open(names[0]) as file:
                    # One byte more than allowed, so that `parse` sees that it is too long.
                    return file.read(MOST_BYTES + 1)
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError) as error:
        raise FormatError(f"{os.fspath(path)!r} is not an exported program: {error}") from error
    raise FormatError(
        f"{os.fspath(path)!r} holds no operators of multigrad: write it by xg.export(model, path, "
        "*inputs), which torch.export.save does not do for you"
    )


# --- export of a Function alone -------------------------------------------------------------------


def _export_function(
    backend: Backend, obj: Any, path: Path, inputs: tuple[Any, ...], shapes: Any
) -> tuple[Path, Path]:
    function, args = _as_function_and_arguments(obj, path, inputs)
    leaves, tree = flatten(args, {})
    # Defaults of arguments become leaves too, so that the layout covers them.
    layout, leaves = function.entries.lay_out([unwrap(leaf) for leaf in leaves], tree)
    subject = function.recipe.subject
    try:
        variant: Variant = decide_call(function.entries, EXPORTED, layout, leaves, backend).variant
    except NotCaptured as error:
        raise UnsupportedOp(
            f"{subject} runs as written, so it cannot be exported to {path.name!r}: {error.error}"
        ) from error
    if variant.graphs.is_random:
        raise UnsupportedOp(
            f"{subject} draws random numbers, of which no runtime of {path.suffix} has the same: "
            "export one that draws none"
        )
    tensors = [leaves[i] for i in layout.indices("tensor")]
    numbers = [read_number(leaves[i]) for i in layout.indices("number")]
    axes = _axes_of(inputs, shapes)
    # A graph that was captured for a length is wrong for others.
    if any(axes) and any(fact.startswith("shape") for fact in variant.facts):
        raise UnsupportedOp(
            f"{subject} asks for the lengths of its arguments in Python, so its graph holds for "
            f"those of these inputs: leave out dynamic_shapes=, or let it ask for none"
        )
    write = backend.exports.functions[path.suffix]
    return write(variant.graphs, path, tensors, numbers, axes)


def _axes_of(inputs: tuple[Any, ...], shapes: Any) -> tuple[dict[int, str] | None, ...]:
    named_axes: list[dict[int, str] | None] = []
    if not isinstance(shapes, tuple | None):
        raise RuleTypeError(
            f"dynamic_shapes= is {shapes!r:.60}; expected one entry for each input, as in "
            "({0: 'batch'}, None)"
        )
    for axes, each in zip(shapes or (None,) * len(inputs), inputs, strict=True):
        names = dict(axes) if isinstance(axes, Mapping) else axes
        is_named = isinstance(names, dict) and all(
            type(axis) is int and isinstance(name, str) for axis, name in names.items()
        )
        tensors = [leaf for leaf in flatten((each,), {})[0] if owner_of(unwrap(leaf)) is not None]
        if names is not None and not (is_named and len(tensors) == 1):
            raise RuleTypeError(
                f"dynamic_shapes= has {axes!r:.60} for {each!r:.40}; expected None, or for a "
                "tensor its axes by name: {0: 'batch'}"
            )
        # `shapes` has one entry per input, the result one per tensor; an input with several tensors
        # can only have None here.
        named_axes += [names] * len(tensors)
    return tuple(named_axes)


def _as_function_and_arguments(
    obj: Any, path: Path, inputs: tuple[Any, ...]
) -> tuple[Function[..., Any], tuple[Any, ...]]:
    inner = getattr(obj, "_activation", obj)  # of a module or layer
    if isinstance(inner, Function):
        return inner, inputs
    if isinstance(inner, Activation):
        if len(inputs) != 1:
            raise RuleTypeError(f"{inner!r} takes one tensor, got {len(inputs)} inputs")
        # Schedules are settled: a file holds the numbers of this moment.
        function, values, _ = function_in_force(inner)
        return as_function(function), (*inputs, *values)
    raise RuleTypeError(
        f"expected a Function or an activation for {path.name!r}, got {type(obj).__name__} "
        f"{obj!r:.40}: ONNX holds a forward and a backward of each. Make one by xg.function, "
        "xg.custom_gradient, xg.convert or xg.activation, and export those of a model one by one"
    )
