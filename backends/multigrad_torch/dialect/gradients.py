"""torch's dialect: gradients that code takes by `torch.autograd`, `.backward()` or `torch.func`."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from functools import partial, wraps
from typing import Any, TypeAlias

import torch
from torch.utils import _pytree as pytree
from torch.utils import checkpoint

from multigrad.core import ops
from multigrad.core.ir.op import is_float
from multigrad.core.support.trees import optree
from multigrad.core.trace.trace import Value
from multigrad.core.trace.xp import all as xp
from multigrad.engine.capture.meanings.parts import shape_of
from multigrad.engine.capture.taken_gradients import (
    carries_gradient,
    renamed,
    take_gradients,
    tell_apart,
)
from multigrad.engine.functions.calls.arguments import replace_at
from multigrad.engine.trace.code_trace import CodeTrace

Tensor: TypeAlias = Any
Function: TypeAlias = Callable[..., Any]


def requires_grad_(x: Tensor, requires_grad: bool = True) -> Tensor:
    """Let autograd watch a tensor that the code has made; no value changes."""
    if x.trace.kind == "rule":
        raise x.trace.error("calls .requires_grad_(): a rule's tensors carry no gradient")
    if x.node.op is ops.INPUT:
        advice = x.trace.words.advise("call .detach() on it first")
        raise x.trace.error(f"calls .requires_grad_() of its argument{advice}")
    if not requires_grad:
        raise TypeError("requires_grad_(False)")
    x.notes = {"grad": None, **(x.notes or {}), "requires_grad": True}
    # `.backward()` adds to their `.grad`. Weak: a leaf that is gone needs no gradient.
    x.trace.backward.leaves.append(weakref.ref(x))
    return x


def many(values: Any) -> list[Any]:
    return list(values) if isinstance(values, tuple | list) else [values]


def check_sources(sources: Sequence[Any]) -> CodeTrace:
    """Return the trace that tensors belong to; refuse tensors from elsewhere, and rules."""
    for source in sources:
        if not isinstance(source, Value):
            raise TypeError("of a tensor that it got from elsewhere, such as a parameter")
    trace = sources[0].trace
    if trace.kind == "rule":
        raise trace.error("takes a gradient: a rule is the backward pass")
    tell_apart(trace)
    return trace


def heads_of(outputs: Sequence[Any], cotangents: Any) -> list[Any]:
    """Return the cotangents of outputs; only a tensor of one element has one by default."""
    heads = [None] * len(outputs) if cotangents is None else many(cotangents)
    for output, cotangent in zip(outputs, heads, strict=True):
        if cotangent is None and any(n != 1 for n in shape_of(output)):
            raise TypeError("of a tensor with more than one element, without its cotangent")
    return heads


def grad(
    outputs: Any,
    inputs: Any,
    grad_outputs: Any = None,
    retain_graph: Any = None,
    create_graph: bool = False,
    only_inputs: bool = True,
    allow_unused: Any = None,
    is_grads_batched: bool = False,
    materialize_grads: bool = False,
) -> Any:
    """Return the gradients, as constants unless a graph of them is asked for."""
    if is_grads_batched:
        raise TypeError("with is_grads_batched")
    results, sources = many(outputs), many(inputs)
    trace = check_sources(sources)
    grads = take_gradients(results, heads_of(results, grad_outputs), sources)
    if not (allow_unused or materialize_grads) and any(each is None for each in grads):
        raise TypeError("of a tensor that the outputs do not depend on, without allow_unused")
    if materialize_grads:
        grads = or_zeros(grads, sources)
    return tuple(None if each is None else finished(trace, each, create_graph) for each in grads)


def or_zeros(gradients: Sequence[Any], sources: Sequence[Any]) -> list[Any]:
    pairs = zip(gradients, sources, strict=True)
    return [xp.zeros_like(source) if each is None else each for each, source in pairs]


def finished(trace: CodeTrace, gradient: Value, create_graph: bool) -> Value:
    """Return a gradient as torch does: without a graph, unless one is asked for."""
    if create_graph:
        return gradient
    trace.backward.is_once |= trace.backward.is_running
    return trace.value(xp.stop_gradient(gradient).node)  # the code may write into it


def backward(
    x: Tensor,
    gradient: Any = None,
    retain_graph: Any = None,
    create_graph: bool = False,
    inputs: Any = None,
) -> None:
    """Add to the `.grad` of leaves that the code has made."""
    backward_all(x, gradient, retain_graph, create_graph, inputs=inputs)


def backward_all(
    tensors: Any,
    grad_tensors: Any = None,
    retain_graph: Any = None,
    create_graph: bool = False,
    grad_variables: Any = None,
    inputs: Any = None,
) -> None:
    if grad_variables is not None:
        raise TypeError("with grad_variables; it is grad_tensors")
    outputs = many(tensors)
    trace: CodeTrace = outputs[0].trace
    if trace.kind == "rule":
        advice = trace.words.advise("Return the gradient")
        raise trace.error(f"calls .backward(): a rule is the backward pass{advice}")
    live_leaves = [leaf for reference in trace.backward.leaves if (leaf := reference()) is not None]
    leaves = live_leaves if inputs is None else many(inputs)
    foreign_leaves = [leaf for leaf in leaves if "grad" not in (getattr(leaf, "notes", None) or {})]
    nodes = [leaf.node for leaf in leaves if isinstance(leaf, Value)]
    if foreign_leaves or (inputs is None and any(carries_gradient(y.node, nodes) for y in outputs)):
        raise TypeError("which adds to the .grad of a tensor that it did not make")
    check_sources([outputs[0], *leaves])
    if not leaves:
        raise TypeError("of what depends on no tensor that requires a gradient")
    gradients = take_gradients(outputs, heads_of(outputs, grad_tensors), leaves)
    for leaf, each in zip(leaves, gradients, strict=True):
        if each is not None:
            notes, addend = dict(leaf.notes or {}), finished(trace, each, create_graph)
            total = notes["grad"]
            if total is not None and not create_graph:
                total.update(total + addend)  # in place, as autograd does
                continue
            leaf.notes = {**notes, "grad": addend if total is None else total + addend}


# --- torch.func -----------------------------------------------------------------------------------


def on_symbols(make: Function) -> Function:
    """Return a handler that leaves calls without symbols to torch."""
    original = getattr(torch.func, make.__name__)

    @wraps(make)
    def transform(func: Function, *args: Any, **kwargs: Any) -> Any:
        compute = original(func, *args, **kwargs)
        record = make(func, *args, **kwargs)

        @wraps(func)
        def transformed(*positional: Any, **named: Any) -> Any:
            leaves = optree.tree_leaves((positional, named))
            has_symbols = any(isinstance(leaf, Value) for leaf in leaves)
            return record(*positional, **named) if has_symbols else compute(*positional, **named)

        return transformed

    return transform


def own_names(tree: Any) -> tuple[list[Any], Any, Any]:
    """Return new names of the tensors in a tree, its structure, and the tree of these names."""
    leaves, structure = optree.tree_flatten(tree)
    if not all(isinstance(leaf, Value) for leaf in leaves):
        raise TypeError("of a tensor that it got from elsewhere, such as a parameter")
    trace = leaves[0].trace
    if trace.kind != "rule":
        tell_apart(trace)
    # New names, so that gradients with respect to them end here.
    sources = [renamed(leaf) for leaf in leaves]
    return sources, structure, optree.tree_unflatten(structure, sources)


def gradients_like(outputs: Any, cotangents: Any, named: list[Any], structure: Any) -> Any:
    gradients = take_gradients(optree.tree_leaves(outputs), optree.tree_leaves(cotangents), named)
    return optree.tree_unflatten(structure, or_zeros(gradients, named))


def recording(transform: Function) -> Function:
    """Return a transform that records under no_grad too; its results carry no gradient there."""

    @wraps(transform)
    def transformed(*args: Any, **kwargs: Any) -> Any:
        records = torch.is_grad_enabled()
        with torch.enable_grad():
            results = transform(*args, **kwargs)
        return results if records else optree.tree_map(detached, results)

    return transformed


def detached(value: Any) -> Any:
    if not isinstance(value, Value) or value.node.type.kind != "tensor":
        return value
    return xp.stop_gradient(value) if is_float(value.node.type) else value


def grad_and_value(func: Function, argnums: Any = 0, has_aux: bool = False) -> Function:
    @recording
    def transformed(*args: Any, **kwargs: Any) -> Any:
        positions = argnums if isinstance(argnums, tuple) else (argnums,)
        sources, structure, inputs = own_names(tuple(args[i] for i in positions))
        result = func(*replace_at(args, positions, inputs), **kwargs)
        value = result[0] if has_aux else result
        if shape_of(value):
            raise TypeError("of a function that returns no number")
        gradients = gradients_like(value, xp.ones_like(value), sources, structure)
        return gradients if isinstance(argnums, tuple) else gradients[0], result

    return transformed


def grad_of(func: Function, argnums: Any = 0, has_aux: bool = False) -> Function:
    with_value = grad_and_value(func, argnums, has_aux)

    def transformed(*args: Any, **kwargs: Any) -> Any:
        gradient, result = with_value(*args, **kwargs)
        return (gradient, result[1]) if has_aux else gradient

    return transformed


grad_of.__name__ = "grad"


def vjp(func: Function, *primals: Any, has_aux: bool = False) -> Any:
    if not any(isinstance(leaf, Value) for leaf in optree.tree_leaves(primals)):
        return torch.func.vjp(func, *primals, has_aux=has_aux)
    sources, structure, inputs = own_names(primals)
    records = torch.is_grad_enabled()
    with torch.enable_grad():
        result = func(*inputs)
    outputs = result[0] if has_aux else result

    def pull(cotangents: Any) -> Any:
        gradients = gradients_like(outputs, cotangents, sources, structure)
        return gradients if torch.is_grad_enabled() else optree.tree_map(detached, gradients)

    outputs_out, *aux = result if has_aux else (result,)
    if not records:
        outputs_out, *aux = optree.tree_map(detached, (outputs_out, *aux))
    return outputs_out, pull, *aux


def jvp(func: Function, primals: Any, tangents: Any, *, has_aux: bool = False) -> Any:
    if not any(isinstance(leaf, Value) for leaf in optree.tree_leaves((primals, tangents))):
        return torch.func.jvp(func, primals, tangents, has_aux=has_aux)
    return along(func, primals, tangents, has_aux)


@recording
def along(func: Function, primals: Any, tangents: Any, has_aux: bool) -> Any:
    """Differentiate a gradient, which is linear in its cotangent, with respect to that."""
    sources, _, inputs = own_names(primals)
    result = func(*inputs)
    outputs, *aux = result if has_aux else (result,)
    leaves, output_structure = optree.tree_flatten(outputs)
    heads = [renamed(xp.zeros_like(leaf)) for leaf in leaves]
    gradients = take_gradients(leaves, heads, sources)
    pairs = [
        (each, tangent)
        for each, tangent in zip(gradients, optree.tree_leaves(tangents), strict=True)
        if each is not None
    ]
    slopes, directions = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    tangents_out = take_gradients(slopes, directions, heads) if pairs else [None] * len(heads)
    return outputs, optree.tree_unflatten(output_structure, or_zeros(tangents_out, leaves)), *aux


# --- torch.func.vmap: each row is recorded by itself ----------------------------------------------


def vmap(
    func: Function,
    in_dims: Any = 0,
    out_dims: Any = 0,
    randomness: str = "error",
    *,
    chunk_size: int | None = None,
) -> Function:
    def transformed(*args: Any, **kwargs: Any) -> Any:
        leaves, structure = pytree.tree_flatten(args)
        values = optree.tree_leaves((args, kwargs))
        trace = next(leaf.trace for leaf in values if isinstance(leaf, Value))
        dims = pytree._broadcast_to_and_flatten(in_dims, structure)
        if dims is None:
            raise trace.error(f"calls torch.func.vmap with in_dims={in_dims} of other arguments")
        counts = {
            shape_of(leaf)[dim] for leaf, dim in zip(leaves, dims, strict=True) if dim is not None
        }
        if len(counts) != 1:
            raise trace.error(f"calls torch.func.vmap over {sorted(counts) or 'no'} rows")
        (count,) = counts
        if not 0 < count <= MOST_ROWS:
            raise trace.error(
                f"calls torch.func.vmap over {count} rows; a graph records each by itself, at most "
                f"{MOST_ROWS}{trace.words.advise('write the axis out')}"
            )
        draws_before = trace.draws
        rows = []
        for i in range(count):
            row = [
                leaf if dim is None else leaf.select(dim, i)
                for leaf, dim in zip(leaves, dims, strict=True)
            ]
            rows.append(func(*pytree.tree_unflatten(row, structure), **kwargs))
        if trace.draws != draws_before:
            raise trace.error("draws random numbers in torch.func.vmap, which is not captured")
        flat_rows = [pytree.tree_flatten(row)[0] for row in rows]
        row_structure = pytree.tree_flatten(rows[0])[1]
        out_axes = pytree._broadcast_to_and_flatten(out_dims, row_structure)
        if out_axes is None:
            raise trace.error(f"calls torch.func.vmap with out_dims={out_dims} of other outputs")
        outputs = [
            torch.stack(each, place)
            for each, place in zip(zip(*flat_rows, strict=True), out_axes, strict=True)
        ]
        return pytree.tree_unflatten(outputs, row_structure)

    return transformed


def as_written(model: Any = None, **options: Any) -> Any:
    """Return a function unchanged instead of compiled."""
    return partial(as_written, **options) if model is None else model


def recompute(function: Function, *args: Any, use_reentrant: Any = None, **kwargs: Any) -> Any:
    """Call the function of a checkpoint: a graph chooses by itself what it keeps."""
    if not any(isinstance(leaf, Value) for leaf in optree.tree_leaves((args, kwargs))):
        return checkpoint.checkpoint(function, *args, use_reentrant=use_reentrant, **kwargs)
    arguments = {name: value for name, value in kwargs.items() if name not in OF_CHECKPOINTS}
    return function(*args, **arguments)


OF_CHECKPOINTS = ("preserve_rng_state", "context_fn", "determinism_check", "debug", "early_stop")
MOST_ROWS = 256
METHODS: dict[str, Function] = {"backward": backward, "requires_grad_": requires_grad_}
HIDDEN: dict[Any, Function] = {
    torch.func.grad: on_symbols(grad_of),
    torch.func.vjp: vjp,
    torch.func.jvp: jvp,
    torch.func.grad_and_value: on_symbols(grad_and_value),
    torch.func.vmap: on_symbols(vmap),
    torch.compile: as_written,
    checkpoint.checkpoint: recompute,
}
ALIASES: dict[Any, Function] = {
    torch.autograd.grad: grad,
    torch.autograd.backward: backward_all,
    torch.Tensor.backward: backward,
}
