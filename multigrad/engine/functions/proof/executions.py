"""The two executions in a proof: a Function's original and its lowered graphs, on one framework.

Each is a `Side`: arguments go in, outputs and a `Pull` come out. The original's pull is its own
backward, or the framework's autodiff. What a side gives on a sample is a map of arrays by name:

    result                    an output
    gradient of x             by the sample's cotangents
    zero gradient of x        by a second backward, of zeros, which shows what the first left behind
    second derivative of x    if the lowered code could have lost it

A framework that can trace without computing (`autodiff.rehearse`) traces each side once, and runs
the trace on all samples; elsewhere, or if the trace needs values, the side runs on each sample.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from ....core import ops
from ....core.backend.contract import Backend
from ....core.backend.emitted import Attached
from ....core.backend.values import owner_of
from ....core.functions.arguments import Layout
from ....core.functions.recipe import KEY, Recipe, Variant
from ....core.ir.op import FLOATS, T, dtype_name
from ....core.lowering.function_graph import FunctionGraph
from ....core.lowering.lower import lower_graphs
from ....core.ops.numerics import as_numpy_dtype
from ....core.support.records import cached_property
from ....core.support.threads import build_once
from ....core.support.trees import Tensor, optree
from ....errors import BackendNotFound
from ..calls.arguments import replace_at
from ..calls.as_written import within_call
from ..calls.effects import copied
from ..calls.gradient_matching import match_gradients
from . import samples
from .line_tracing import uncounted
from .memory import note_places
from .samples import Sample, is_float

Array = Any
# Cotangents of the graphs' outputs (None: none is given) -> gradients by the inputs' names.
Pull = Callable[[Sequence[Any]], Mapping[str, Any]]
Outputs = tuple[list[Any], Pull | None]  # None: there is no gradient
Side = Callable[[Sequence[Any]], Outputs]  # of the leaves of the arguments


@dataclass(frozen=True)
class FunctionUnderProof:
    """A captured form of a Function, and the arguments that it was captured for.

    Attributes:
        may_act: whether the original may have side effects, so that it runs once.
        traces: by side, shapes, dtypes, numbers, missing cotangents; None: that one needs values.
    """

    recipe: Recipe
    variant: Variant
    leaves: Sequence[Any]
    may_act: bool = False
    traces: dict[Any, Callable[..., Any] | None] = field(default_factory=dict)

    @property
    def graphs(self) -> FunctionGraph:
        return self.variant.graphs

    # Cached, as both sides ask for these with each sample.
    @cached_property
    def seeds(self) -> tuple[str | None, ...]:
        """The names of the cotangents, None for outputs that carry no gradient."""
        return self.graphs.seeds

    @property
    def layout(self) -> Layout:
        return self.variant.layout

    @cached_property
    def tensors(self) -> tuple[int, ...]:
        return self.layout.indices("tensor")

    @cached_property
    def differentiated(self) -> tuple[int, ...]:
        leaves = self.layout.leaves
        return tuple(i for i in self.tensors if self.needs_gradient(leaves[i].name))

    @property
    def apply(self) -> Callable[..., Any] | None:
        """The framework's own custom gradient, which its autodiff runs."""
        # Torch's modes, by which draws are replayed, do not reach into its own backward.
        imported = self.recipe.imported
        return None if imported is None or self.graphs.is_random else imported.apply

    @cached_property
    def asked(self) -> tuple[str, ...]:
        """The inputs with a gradient in the graph, if the call needs it as far as is known."""
        return tuple(name for name in self.graphs.wrt if self.needs_gradient(name))

    @cached_property
    def omitted(self) -> tuple[str, ...]:
        """The float inputs to which the graph passes no gradient: code passes none, or zeros."""
        leaves = [self.layout.leaves[i] for i in self.differentiated]
        floats = (leaf.name for leaf in leaves if leaf.dtype == T or leaf.dtype in FLOATS)
        return tuple(name for name in floats if name not in self.graphs.wrt)

    def needs_gradient(self, name: str) -> bool:
        return bool(self.variant.facts.get(f"gradient:{name}", True))


def run_original(captured: FunctionUnderProof, backend: Backend, sample: Sample) -> dict[str, Any]:
    """Return the results of the user's code by name: outputs, then gradients."""
    results = _run_side(captured, backend, sample, _original)
    for name, array in sample.arrays.items():
        for key in (f"gradient of {name}", f"zero gradient of {name}"):
            gradient = results.get(key)
            if gradient is not None and gradient.dtype != array.dtype and is_float(gradient):
                with np.errstate(all="ignore"):  # some engines cast it to this, and a graph does
                    results[key] = gradient.astype(array.dtype)
    return results


def run_lowered(captured: FunctionUnderProof, backend: Backend, sample: Sample) -> dict[str, Any]:
    return _run_side(captured, backend, sample, _lowered)


def _run_side(
    captured: FunctionUnderProof, backend: Backend, sample: Sample, run: Callable[..., Outputs]
) -> dict[str, Any]:
    side = partial(run, captured, backend)
    can_trace = backend.autodiff.rehearse is not None
    results = _run_traced(captured, backend, sample, side) if can_trace else None
    return _run_eagerly(captured, backend, sample, side) if results is None else results


def _run_traced(
    captured: FunctionUnderProof, backend: Backend, sample: Sample, side: partial[Outputs]
) -> dict[str, Any] | None:
    # None if the trace needs values. Lines are followed where they run.
    if captured.graphs.is_random or sample.label == samples.BY_LINES:
        return None
    seeds = [n for n in captured.seeds if n is not None and n not in sample.absent]
    names = (*[leaf.name for leaf in captured.layout.tensors], *seeds)
    arrays = [sample.arrays[name] for name in names]

    def filled(tensors: Sequence[Tensor]) -> tuple[list[Any], list[Any]]:
        values = dict(zip(names, tensors, strict=True))
        cotangents = [None if name is None else values.get(name) for name in captured.seeds]
        return _leaves(captured, sample, values), cotangents

    def run_first(*tensors: Tensor) -> dict[str, Any]:
        leaves, cotangents = filled(tensors)
        outputs, pull = side(leaves)
        results = dict(zip(captured.graphs.outputs, outputs, strict=True))
        pairs = zip(captured.seeds, outputs, strict=True)
        fits = all(n is None or tuple(y.shape) == sample.arrays[n].shape for n, y in pairs)
        if pull is None or not (captured.asked or captured.omitted) or not fits:
            return results
        gradients = pull(cotangents)
        omitted = [name for name in captured.omitted if gradients[name] is not None]
        return results | {
            f"gradient of {name}": gradients[name] for name in (*captured.asked, *omitted)
        }

    # Runs after the first, whose `results` say which gradients there are.
    def run_second(*tensors: Tensor) -> dict[str, Any]:
        first_gradients = {name: results[f"gradient of {name}"] for name in captured.asked}
        return _second_derivatives(captured, backend, filled(tensors), first_gradients, side)

    trace = partial(_trace, captured, backend, sample, arrays=arrays)
    compute = trace((side.func, "first"), run=run_first)
    if compute is None:
        return None
    results = {name: as_array(backend, value) for name, value in compute(*arrays).items()}
    has_all = captured.asked and all(f"gradient of {n}" in results for n in captured.asked)
    if sample.label != samples.DRAWN or not has_all:
        return results  # more derivatives are compared of drawn numbers only
    zeros = [a * 0 if name in seeds else a for name, a in zip(names, arrays, strict=True)]
    zeroed = compute(*zeros)
    for name in captured.asked:
        results[f"zero gradient of {name}"] = as_array(backend, zeroed[f"gradient of {name}"])
    if captured.may_act:
        return results
    compute_second = trace((side.func, "second"), run=run_second)
    second = {} if compute_second is None else compute_second(*arrays)
    return results | {name: as_array(backend, value) for name, value in second.items()}


def _trace(
    captured: FunctionUnderProof,
    backend: Backend,
    sample: Sample,
    what: tuple[Any, str],
    run: Callable[..., Any],
    arrays: Sequence[Array],
) -> Callable[..., Any] | None:
    types = tuple((array.shape, array.dtype) for array in arrays)
    key = (what, types, tuple(sample.numbers.items()), sample.absent)
    if key not in captured.traces:
        assert backend.autodiff.rehearse is not None
        try:
            with uncounted():
                computes = backend.autodiff.rehearse(run, arrays)
            captured.traces[key] = uncounted()(computes)  # no code of the user's runs again
        except Exception:  # of a trace; what the code itself raises, it raises again
            if captured.may_act:
                raise
            captured.traces[key] = None
    return captured.traces[key]


def _run_eagerly(
    captured: FunctionUnderProof, backend: Backend, sample: Sample, side: partial[Outputs]
) -> dict[str, Any]:
    graphs = captured.graphs
    arrays = {leaf.name: sample.arrays[leaf.name] for leaf in captured.layout.tensors}
    leaves = _leaves(captured, sample, {n: to_tensor(backend, a) for n, a in arrays.items()})
    outputs, pull = side(leaves)
    tensors = dict(zip(captured.graphs.outputs, outputs, strict=True))
    results = {name: as_array(backend, y) for name, y in tensors.items()}
    given = {leaf.name: x for leaf, x in zip(captured.layout.leaves, leaves, strict=True)}
    run = sample.label, side.func is _original
    note_places(captured.variant, run, backend, given, tensors)
    if captured.variant.updates:  # and a backward may write into the outputs
        results = {name: y if y is None else y.copy() for name, y in results.items()}
    names = (*captured.asked, *captured.omitted)
    if pull is None or not names:
        return results
    cotangents = []
    for name, output in zip(captured.seeds, results.values(), strict=True):
        seed = None if name is None else sample.arrays[name]
        if seed is not None and getattr(output, "shape", None) != seed.shape:
            return results  # which is the difference
        is_absent = seed is None or name in sample.absent
        cotangents.append(None if is_absent else to_tensor(backend, seed))
    gradients = pull(cotangents)
    if not captured.recipe.is_derived:  # whose gradients are those of the framework's autodiff
        given |= {f"cotangent {i}": each for i, each in enumerate(cotangents)}
        tensors |= {f"gradient of {name}": gradients[name] for name in captured.asked}
        note_places(captured.variant, run, backend, given, tensors)
    if sample.label == samples.OWN and _are_written(captured, backend, sample, cotangents):
        # One of them lies in memory once, where each write is to all of its elements.
        copies = {n: sample.arrays[n].copy() for n in captured.seeds if n is not None}
        sample = replace(sample, arrays={**sample.arrays, **copies})
        return _run_eagerly(captured, backend, sample, side)
    results |= {f"gradient of {n}": as_array(backend, gradients[n]) for n in names}
    if (
        sample.label == samples.DRAWN
        and captured.asked
        and not captured.may_act
        and not graphs.is_random
    ):
        zeroed = pull([None if c is None else c * 0 for c in cotangents])
        results |= {f"zero gradient of {n}": as_array(backend, zeroed[n]) for n in captured.asked}
        second = _second_derivatives(captured, backend, (leaves, cotangents), gradients, side)
        results |= {name: as_array(backend, value) for name, value in second.items()}
    return results


def _leaves(
    captured: FunctionUnderProof, sample: Sample, tensors: Mapping[str, Tensor]
) -> list[Any]:
    values = {**sample.numbers, **tensors}
    return [
        leaf.value if leaf.kind == "static" else values.get(leaf.name)
        for leaf in captured.layout.leaves
    ]


def _are_written(
    captured: FunctionUnderProof, backend: Backend, sample: Sample, cotangents: Sequence[Any]
) -> bool:
    # Only an expanded cotangent matters: its strides are 0, so one write changes all elements.
    pairs = zip(captured.seeds, cotangents, strict=True)
    return any(
        not any(sample.arrays[name].strides)
        and not np.array_equal(np.asarray(as_array(backend, cotangent)), sample.arrays[name])
        for name, cotangent in pairs
        if name is not None and cotangent is not None
    )


def _second_derivatives(
    captured: FunctionUnderProof,
    backend: Backend,
    inputs: tuple[Sequence[Any], Sequence[Any]],
    gradients: Mapping[str, Any],
    side: Side,
) -> dict[str, Any]:
    # Of the gradients, weighted so that none cancel; {} for none. `inputs`: leaves and cotangents.
    vjp = backend.autodiff.vjp
    if captured.apply is None or vjp is None or not _may_lose_second(captured, backend):
        return {}
    leaves, cotangents = inputs
    index_of = {leaf.name: i for i, leaf in enumerate(captured.layout.leaves)}
    positions = [index_of[name] for name in captured.asked]
    seeds = [i for i, c in enumerate(cotangents) if c is not None]

    def first(tensors: Sequence[Tensor]) -> list[Any]:
        count = len(positions)
        _, pull = side(replace_at(leaves, positions, tensors[:count]))
        assert pull is not None
        pulled = pull(replace_at(cotangents, seeds, tensors[count:]))
        return [pulled[name] for name in captured.asked]

    try:
        _, pull = vjp(first, [*[leaves[i] for i in positions], *[cotangents[i] for i in seeds]])
        arrays = [np.asarray(as_array(backend, gradients[name])) for name in captured.asked]
        weights = [np.linspace(0.5, 1.5, a.size).reshape(a.shape).astype(a.dtype) for a in arrays]
        derivatives = pull([to_tensor(backend, each) for each in weights])
    except Exception:  # it has none, and says so
        return {}
    return {
        f"second derivative of {name}": each
        for name, each in zip(captured.asked, derivatives, strict=False)
    }


def _may_lose_second(captured: FunctionUnderProof, backend: Backend) -> bool:
    # A second derivative may get lost if backward reads more than the inputs, or stops gradients.
    graphs = captured.graphs
    if graphs.is_once or graphs.first_order:
        return False
    emitted = _attached(captured, backend).emitted
    residuals = () if emitted is None else emitted.residuals.names
    cuts = any(node.op is ops.STOP_GRADIENT for node in graphs.backward.nodes)
    return cuts or not set(residuals) <= {*graphs.inputs, *graphs.params}


def _attached(captured: FunctionUnderProof, backend: Backend) -> Attached:
    # The call shares them, and finds them built.
    build = partial(lower_graphs, captured.graphs, backend)
    with uncounted():  # an original, whose steps are counted, may ask first
        return build_once(captured.variant.lowered, backend.name, build)


def _lowered(captured: FunctionUnderProof, backend: Backend, leaves: Sequence[Any]) -> Outputs:
    graphs, lower = captured.graphs, captured.recipe.graphs.lower
    if lower is not None:
        build = partial(lower, graphs, backend)
        pull_bare = build_once(captured.variant.lowered, f"bare {backend.name}", build)
        return _of_rule(captured, backend, leaves, pull_bare)
    lowered = _attached(captured, backend)
    tensors, numbers = captured.tensors, [leaves[i] for i in captured.layout.indices("number")]
    numbers += captured.variant.numbers_now().values()
    numbers_and_key = (*numbers, *((KEY,) if graphs.is_random else ()))
    is_single = len(captured.graphs.outputs) == 1
    if backend.autodiff.vjp is None:
        outputs, pull_all = lowered.native.vjp(*[leaves[i] for i in tensors], *numbers_and_key)

        def pull(cotangents: Sequence[Any]) -> Mapping[str, Any]:
            pulled = pull_all(cotangents[0] if is_single else tuple(cotangents))
            pulled = (pulled,) if len(tensors) == 1 else pulled
            return dict(zip(graphs.inputs, pulled, strict=True))

        return [outputs] if is_single else list(outputs), pull

    def run(filled: Sequence[Any]) -> list[Any]:
        outputs = lowered.call(*[filled[i] for i in tensors], *numbers_and_key)
        return [outputs] if is_single else list(outputs)

    return _by_autodiff(captured, backend, leaves, run)


def _of_rule(
    captured: FunctionUnderProof,
    backend: Backend,
    leaves: Sequence[Any],
    run: Callable[[Tensor, Sequence[Any]], Tensor],
) -> Outputs:
    # A rule is the backward of a function that returns its tensor. It may write into what it gets.
    (i,) = captured.tensors

    def pull(cotangents: Sequence[Any]) -> Mapping[str, Any]:
        (cotangent,) = map(copied, cotangents)
        gradient = run(cotangent, [*map(copied, leaves)])
        return {captured.layout.leaves[i].name: _as_of(leaves[i], gradient, backend)}

    return [leaves[i]], pull


def _by_autodiff(
    captured: FunctionUnderProof,
    backend: Backend,
    leaves: Sequence[Any],
    run: Callable[[Sequence[Any]], list[Any]],
) -> Outputs:
    layout, indices = captured.layout, captured.differentiated
    if backend.autodiff.vjp is None or not indices:
        return run(leaves), None

    def run_on(tensors: Sequence[Tensor]) -> list[Any]:
        return run(replace_at(leaves, indices, tensors))

    outputs, pull_tensors = backend.autodiff.vjp(run_on, [leaves[i] for i in indices])
    names = [layout.leaves[i].name for i in indices]

    def pull(cotangents: Sequence[Any]) -> Mapping[str, Any]:
        return dict(zip(names, pull_tensors(cotangents), strict=True))

    return outputs, pull


def _original(captured: FunctionUnderProof, backend: Backend, leaves: Sequence[Any]) -> Outputs:
    recipe, layout, apply = captured.recipe, captured.layout, captured.apply
    if recipe.noun == "rule":

        def pull_rule(cotangent: Tensor, leaves: Sequence[Any]) -> Tensor:
            (i,) = captured.tensors
            pull = recipe.run(tuple(leaves), {}).pull
            assert pull is not None
            return pull(cotangent)[i]

        return _of_rule(captured, backend, leaves, pull_rule)
    fixed = captured.variant.fixed  # outputs that are no tensors, which the graphs lack
    run_own = within_call(recipe.run, leaves)

    def run(filled: Sequence[Any]) -> list[Any]:
        if captured.variant.updates:  # of copies
            filled = [*map(copied, filled)]
        args, kwargs = layout.rebuild(filled)
        result = apply(*args, **kwargs) if apply is not None else run_own(args, kwargs).outputs
        flat = optree.tree_leaves(result, none_is_leaf=True)
        return [each for i, each in enumerate(flat) if i not in fixed]

    if apply is not None or captured.recipe.is_derived:
        return _by_autodiff(captured, backend, leaves, run)
    args, kwargs = layout.rebuild(leaves)
    recorded = run_own(args, kwargs)
    flat, tree = optree.tree_flatten(recorded.outputs, none_is_leaf=True)
    assert recorded.pull is not None
    pull_own = within_call(recorded.pull, leaves)

    def pull(cotangents: Sequence[Any]) -> Mapping[str, Any]:
        remaining = iter(cotangents)
        upstream = [
            None if i in fixed else _zeros(next(remaining), y, backend) for i, y in enumerate(flat)
        ]
        returned = pull_own(optree.tree_unflatten(tree, upstream))
        gradients = match_gradients(recipe.name, returned, layout)
        triples = zip(layout.leaves, leaves, gradients, strict=True)
        return {leaf.name: _as_of(tensor, g, backend) for leaf, tensor, g in triples}

    return [each for i, each in enumerate(flat) if i not in fixed], pull


def _as_of(tensor: Any, gradient: Any, backend: Backend) -> Any:
    # Frameworks cast it to the dtype of its argument.
    if getattr(gradient, "dtype", None) == getattr(tensor, "dtype", None):  # as most are
        return gradient
    dtypes = [dtype_name(x.dtype) for x in (tensor, gradient) if owner_of(x) is backend]
    if len(set(dtypes)) < 2 or not {*dtypes} <= {*FLOATS}:
        return gradient
    return backend.kernels.rows[ops.CAST](gradient, dtype=tensor.dtype)


def _zeros(cotangent: Any, output: Any, backend: Backend) -> Any:
    # A tensor that carries no gradient has zeros, as in a capture.
    if cotangent is not None or owner_of(output) is None:
        return cotangent
    dtype = as_numpy_dtype(dtype_name(output.dtype))
    return backend.tensors.from_numpy(np.zeros(tuple(output.shape), dtype))


# --- arrays and tensors ---
def to_tensor(backend: Backend, array: Array) -> Tensor:
    """Return an array as a tensor of its own, which lies in memory as the array does."""
    # An expanded array: one number in memory for all elements.
    if array.size > 1 and not any(array.strides):
        element = backend.tensors.from_numpy(array[(slice(0, 1),) * array.ndim].copy())
        return backend.kernels.rows[ops.BROADCAST_TO_SHAPE](element, shape=array.shape)
    if array.flags.c_contiguous or array.flags.f_contiguous:
        return backend.tensors.from_numpy(array.copy(order="K"))
    # Every second element of a larger array, so that it is not contiguous.
    spaced = np.zeros((*array.shape, 2), array.dtype)
    spaced[..., 0] = array
    return backend.tensors.from_numpy(spaced)[..., 0]


def as_array(backend: Backend, value: Any) -> Array | None:
    """Return a tensor, or a number, as an array; None for None."""
    try:
        return None if value is None else np.asarray(backend.tensors.to_numpy(value))
    except (AttributeError, BackendNotFound, TypeError):
        return np.asarray(value, np.float32 if isinstance(value, float) else None)
