"""How a call runs: by its graph, as its author wrote it, or not at all.

Everything that runs a Function or writes one down is a `Door`: it names itself, says what a graph
may leave out for it, and asks `decide`. So all of them decide alike.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from ...backend.contract import Backend
from ...backend.values import within_call
from ...capture.foreign_calls import intercepting
from ...errors import (
    DisprovedError,
    GradientError,
    MultigradError,
    NativeRuleWarning,
    TraceError,
    UnsupportedOp,
)
from ...graph import ops
from ...graph.ir.types import FLOATS, dtype_name
from ...graph.support.trees import optree
from ...lowering.input_checks import shapes_agree
from ...trace.assertions import (
    ASSERTIONS,
    AUTOCAST,
    BRANCHES,
    FORWARD_MODE,
    NOTES,
    ORDERS,
    SPARSE,
    TWICE,
    UNDIFFERENTIATED,
    UPDATES,
)
from .arguments import Layout, owner_of, replace_at
from .effects import COPIES, copied_all, describe
from .gradients import lost_variables, match_gradients
from .recipe import Recipe, Recorded, Variant, defined_at

Tensor = Any
OWN = __name__.partition(".")[0]

# The answers of `way_while_cast`.
SAME, ORIGINAL, GRAPH = "same", "original", "graph"
EFFECTS = frozenset((UPDATES, NOTES))
# Omissions that nothing could decide by values where compilers and transforms take the graph.
UNSEEN = frozenset((ASSERTIONS, BRANCHES, ORDERS, SPARSE, UNDIFFERENTIATED))


class Door(NamedTuple):
    """A way to run a Function, or to write it down.

    Attributes:
        name: its name in messages.
        takes: the kinds of omissions despite which the graph runs there. AUTOCAST is one of them
            wherever the framework does not choose dtypes by itself.
        refuses: those that it refuses on the code's own framework; for others the code runs as
            written there.
    """

    name: str
    takes: frozenset[str]
    refuses: frozenset[str] = frozenset()

    def showing(self, kinds: frozenset[str]) -> Door:
        return self._replace(takes=self.takes - kinds)


INSTEAD = f"return the new value, or have it write on copies by capture={COPIES}"
# Entries are built once, so `way_while_cast` decides about AUTOCAST at each call.
EAGER = Door("eager code", takes=frozenset((AUTOCAST,)))
COMPILED = Door("compiled code", takes=UNSEEN | {FORWARD_MODE})
TRANSFORMED = Door("a transform of functions", takes=UNSEEN | {FORWARD_MODE})
PULLED = Door("xg.vjp", takes=UNSEEN | {FORWARD_MODE, TWICE})
PUSHED = Door("xg.jvp", takes=PULLED.takes | {AUTOCAST}, refuses=EFFECTS)
TRANSPOSED = Door("xg.linear_transpose", takes=PUSHED.takes, refuses=EFFECTS)
EXPORTED = Door("an exported file", takes=PUSHED.takes, refuses=EFFECTS)
SAVED = Door("a document", takes=PUSHED.takes, refuses=EFFECTS)
LOWERED = Door("lowered code", takes=PUSHED.takes, refuses=EFFECTS)
# On another framework than the code's own, where arrays are not written to: a warning says so.
ELSEWHERE = Door("another framework", takes=PUSHED.takes | EFFECTS)
# The graph is only shown, or measured.
SHOWN = ELSEWHERE._replace(name="a listing")


class Decision(NamedTuple):
    """How a call runs.

    Attributes:
        variant: the graphs.
        reason: why the code runs as written; "": the graphs run.
        kinds: the omissions of its graphs that a door does not accept.
    """

    variant: Variant
    reason: str = ""
    kinds: frozenset[str] = frozenset()


def decide(
    door: Door,
    recipe: Recipe,
    variant: Variant,
    backend: Backend | None,
    native: bool | None = None,
) -> Decision:
    """Decide how a call runs at a door.

    Args:
        variant: what the call was captured to.
        backend: the framework of the call; None: that of the code.
        native: whether the Function runs as written, if its author says so.

    Raises:
        UnsupportedOp: this door refuses what the code does besides returning.
    """
    if not (variant.omissions or variant.updates or variant.notes):
        return Decision(variant)
    is_home = backend is None or backend.name == recipe.dialect()
    casts = None if backend is None else backend.autodiff.casts
    # AUTOCAST matters only while the framework chooses dtypes.
    takes = door.takes if casts is not None and casts.is_on() else door.takes | {AUTOCAST}
    left_out = {k: v for k, v in omissions_of(recipe, variant).items() if k not in takes}
    # On another framework there is nothing but the graph.
    if not is_home or not left_out:
        return Decision(variant)
    refused = [left_out[kind] for kind in left_out if kind in door.refuses]
    if refused:
        raise UnsupportedOp(f"{recipe.subject}: {refused[0]}, which {door.name} does not")
    if native is not None:
        return Decision(variant)
    return Decision(variant, next(iter(left_out.values())), frozenset(left_out))


def way_while_cast(recipe: Recipe, variant: Variant, backend: Backend, native: bool | None) -> str:
    """Return how a captured form runs under autocast.

    SAME as otherwise, by the ORIGINAL code, or by the GRAPH in its own dtypes.
    """
    casts, graphs = backend.autodiff.casts, variant.graphs
    if casts is None or graphs.is_rule:
        return SAME
    if backend.name == recipe.dialect():  # where the capture has noted what autocast changes
        is_cast = AUTOCAST in variant.omissions
        return SAME if not is_cast else GRAPH if native is False else ORIGINAL
    nodes = (*graphs.forward.nodes, *graphs.backward.nodes)
    return GRAPH if any(casts.of(node.op) for node in nodes) else SAME


def omissions_of(recipe: Recipe, variant: Variant) -> Mapping[str, str]:
    """Return the effects of a call's code that its graph leaves out: descriptions by kind."""
    omissions = {kind: f"its graph lacks {words}" for kind, words in variant.omissions.items()}
    if variant.updates and not recipe.copies:
        where = next((f"{each.where}; " for each in variant.updates if each.where), "")
        omissions[UPDATES] = f"it {describe(variant.updates)} ({where}{INSTEAD})"
    if variant.notes:
        names = ", ".join(sorted({note.name for note in variant.notes}))
        omissions[NOTES] = f"it sets attributes of tensors ({names}; return them as results)"
    return omissions


# --- as written, with the framework's own custom gradient around it ------------------------------


def run_as_it_is(
    recipe: Recipe,
    layout: Layout,
    backend: Backend,
    leaves: Sequence[Any],
    error: TraceError | None,
) -> Any:
    """Call the user's function on tensors; the backend attaches its gradient.

    `error` says why it was not captured; None: nobody asked. It is raised again where the code is
    written for another framework; GradientError says that gradients do not fit the arguments.
    """
    refuse_elsewhere(error, backend)
    if recipe.is_derived:  # the framework's own derivative
        outputs = run_recipe(recipe, backend, *layout.rebuild(leaves), error).outputs
        owners = map(owner_of, optree.tree_leaves(outputs, none_is_leaf=True))
        if error is not None and any(owner not in (None, backend) for owner in owners):
            raise error
        return outputs
    indices = tensors_among(layout, leaves)
    foreign = error is not None and recipe.dialect() not in ("", backend.name)
    # Written by `run`, read by `pull`, which may run later.
    seen: dict[str, Any] = {}

    def run(*tensors: Tensor) -> tuple[tuple[Tensor, ...], Any, tuple[int, ...]]:
        filled = replace_at(leaves, indices, tensors)
        recorded = run_recipe(recipe, backend, *layout.rebuild(filled), error)
        flat, seen["tree"] = optree.tree_flatten(recorded.outputs, none_is_leaf=True)
        seen["flat"] = flat
        positions = [i for i, each in enumerate(flat) if owner_of(each) is not None]
        seen["positions"] = positions
        # The code fell back to its own framework's tensors.
        if foreign and any(owner_of(flat[i]) is not backend for i in positions):
            raise error.to_keep()  # type: ignore[union-attr]
        marked = tuple(
            n
            for n, i in enumerate(positions)
            if any(flat[i] is each for each in recorded.undifferentiable)
        )

        def pull(*cotangents: Tensor, ctx: Any = None) -> tuple[Tensor | None, ...]:
            upstream: list[Any] = [None] * len(flat)
            for i, cotangent in zip(positions, cotangents, strict=True):
                upstream[i] = cotangent
            assert recorded.pull is not None
            context = {"ctx": ctx} if recorded.takes_ctx else {}
            returned = recorded.pull(optree.tree_unflatten(seen["tree"], upstream), **context)
            if lost := lost_variables():
                warn_lost(recipe, lost, backend)
            gradients = match_gradients(recipe.name, returned, layout)
            return tuple(
                check_native(recipe.name, layout.leaves[i].path, tensor, gradients[i], backend)
                for i, tensor in zip(indices, tensors, strict=True)
            )

        return tuple(flat[i] for i in positions), pull, marked

    outputs = backend.autodiff.attach(run, tuple(leaves[i] for i in indices), recipe.name)
    flat = list(seen["flat"])
    for i, output in zip(seen["positions"], outputs, strict=True):
        flat[i] = output
    return optree.tree_unflatten(seen["tree"], flat)


def tensors_among(layout: Layout, leaves: Sequence[Any]) -> tuple[int, ...]:
    """Return the positions of the leaves that are tensors, numbers given as tensors among them."""
    numbers = (i for i in layout.indices("number") if not isinstance(leaves[i], int | float))
    return (*layout.indices("tensor"), *numbers)


def is_imported(recipe: Recipe) -> bool:
    """Return whether a recipe is a framework's own custom gradient, run by its original."""
    return recipe.apply is not None


def is_original_on(recipe: Recipe, backend: Backend) -> bool:
    return is_imported(recipe) and backend.name == recipe.dialect()


def no_original(error: TraceError, recipe: Recipe) -> TraceError:
    """Return why an imported function does not run on another framework than its own."""
    return TraceError(f"{error}; it runs as written on {recipe.dialect()} alone", error.place)


def run_recipe(
    recipe: Recipe,
    backend: Backend,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    error: TraceError | None,
) -> Recorded:
    """Run a function as written.

    Raises:
        TraceError: it was not captured (`error`), is written for another framework, and fails here.
    """
    refuse_elsewhere(error, backend)
    home = recipe.dialect()
    is_home, is_foreign = home == backend.name, error is not None and home not in ("", backend.name)
    if recipe.copies:
        args, kwargs = copied_all((args, kwargs))
    elif is_home:
        return recipe.run(args, kwargs)
    leaves = optree.tree_leaves((args, kwargs), none_is_leaf=True)

    def attempt(run: Callable[..., Any], *given: Any, **named: Any) -> Any:
        try:
            with intercepting():  # custom gradients inside, which are another framework's
                return within_call(run, leaves)(*given, **named)
        except MultigradError:
            raise
        except Exception as failure:
            if not is_foreign or error is None:
                raise
            raise no_original(error, recipe) from failure

    def pull_copied(upstream: Any, **own: Any) -> Any:
        # Backward may write into what it gets, as forward may.
        assert pull is not None
        return pull(copied_all(upstream), **own)

    if is_foreign and is_imported(recipe) and error is not None:
        raise no_original(error, recipe) from error.__cause__
    recorded = recipe.run(args, kwargs) if is_home else attempt(recipe.run, args, kwargs)
    pull = recorded.pull
    if pull is not None and not is_home:
        pull = partial(attempt, pull)
    return replace(recorded, pull=pull_copied if recipe.copies and pull is not None else pull)


def explain_fallback(
    recipe: Recipe, reason: str | TraceError, error: Exception, backend: Backend | None
) -> None:
    """Raise why an original runs as written if a transform of its framework refuses it."""
    explain = None if backend is None else backend.autodiff.explain_refusal
    refusal = "" if explain is None or isinstance(error, MultigradError) else explain(error)
    if refusal:
        defined = defined_at(recipe.functions)
        place = getattr(reason, "place", None) or (defined and (defined.file, defined.line))
        told = f"{recipe.subject}: {reason}" if isinstance(reason, str) else str(reason)
        message = f"{told}. So it runs as written, which {refusal}"
        raise TraceError(message, place) from error


def refuse_elsewhere(error: TraceError | None, backend: Backend) -> None:
    """Raise if a disproved graph would run on another framework than the code's own."""
    if isinstance(error, DisprovedError) and error.home not in ("", backend.name):
        raise error.to_keep()


def warn_lost(recipe: Recipe, lost: Sequence[Any], backend: Backend) -> None:
    """Warn that tensors which a function reads besides its arguments get no gradient."""
    place = defined_at(recipe.functions)
    file, line = ("<unknown>", 1) if place is None else (place.file, place.line)
    shown = ", ".join(f"{dtype_name(each.dtype)}{list(each.shape)}" for each in lost[:3])
    message = (
        f"function {recipe.name!r} reads besides its arguments what asks for a gradient ({shown}"
        f"{', ...' if len(lost) > 3 else ''}), and its own gradient has none for it: it gets none. "
        "Make it an argument (of a module or a layer: apply, parameters = xg.convert(module, "
        f"to={backend.name!r})), or stop its gradient"
    )
    warnings.warn_explicit(message, NativeRuleWarning, file, line, module=OWN)


def warn_disproved(error: DisprovedError, module: str) -> None:
    """Warn that a function runs as written because its graph computes something else."""
    file, line = error.place or ("<unknown>", 1)
    where = f"on {error.home} only" if error.home else "everywhere"
    message = f"{error}. It runs as written, {where}"
    warnings.warn_explicit(message, NativeRuleWarning, file, line, module=module)


def check_native(
    function: str, path: str, tensor: Tensor, gradient: Tensor | None, backend: Backend
) -> Tensor | None:
    """Return a gradient that fits its argument.

    Raises:
        GradientError: it is no tensor, or has another shape or dtype.
    """
    if gradient is None or dtype_name(tensor.dtype) not in FLOATS:
        return None
    if owner_of(gradient) is None:
        raise GradientError(
            f"function {function!r} returned a {type(gradient).__name__} as the gradient of "
            f"argument {path!r}; expected a tensor of its shape, or None"
        )
    if not shapes_agree(gradient.shape, tensor.shape):
        raise GradientError(
            f"function {function!r} returned a gradient of shape {tuple(gradient.shape)} for "
            f"argument {path!r} of shape {tuple(tensor.shape)}; expected the same shape"
        )
    actual, expected = dtype_name(gradient.dtype), dtype_name(tensor.dtype)
    if actual != expected and actual in FLOATS:  # as the frameworks' engines do
        return backend.kernels.rows[ops.CAST](gradient, dtype=tensor.dtype)
    if actual != expected:
        raise GradientError(
            f"function {function!r} returned a {actual} gradient for argument {path!r} of "
            f"{expected}; cast it back"
        )
    return gradient
