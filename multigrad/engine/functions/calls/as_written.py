"""Code run as its author wrote it, with the framework's own custom gradient around it.

`decision` says when. `run_as_it_is` makes a call that can be differentiated, `run_recipe` only runs
the code and returns its pullback. An imported function has an original (`ImportedGradient`), which
runs on its own framework alone; other code may also run on another framework's tensors, where it is
foreign if it was not captured, and a failure says why.
"""

from __future__ import annotations

import types
import warnings
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from ....core import ops
from ....core.backend.contract import Backend
from ....core.backend.discovery import backend_of
from ....core.backend.values import OF_CALL, owner_of
from ....core.functions.arguments import Layout
from ....core.functions.recipe import Recipe, Recorded, defined_at
from ....core.ir.op import FLOATS, dtype_name
from ....core.lowering.checks import shapes_agree
from ....core.support.threads import set_within
from ....core.support.tracebacks import shorten
from ....core.support.trees import Tensor, optree
from ....core.trace.active_rules import name_rank
from ....errors import (
    DisprovedError,
    GradientError,
    MultigradError,
    NativeRuleWarning,
    TraceError,
    explaining,
)
from ...capture.foreign_calls import intercepting
from ...lowering.checks import unlike
from .arguments import replace_at
from .effects import copied_all
from .gradient_matching import match_gradients
from .imported_gradients import lost_variables

OWN = __name__.partition(".")[0]


def run_as_it_is(
    recipe: Recipe,
    layout: Layout,
    backend: Backend,
    leaves: Sequence[Any],
    error: TraceError | None,
) -> Any:
    """Call the user's function on tensors; the backend attaches its gradient.

    `error` says why it was not captured; None: nobody asked. It is raised again where the code is
    written for another framework.
    """
    refuse_elsewhere(error, backend)
    if recipe.is_derived:  # there is no backward to attach: the framework differentiates the code
        outputs = run_recipe(recipe, backend, *layout.rebuild(leaves), error).outputs
        owners = map(owner_of, optree.tree_leaves(outputs, none_is_leaf=True))
        if error is not None and any(owner not in (None, backend) for owner in owners):
            raise error
        return outputs
    return _attach(recipe, layout, backend, leaves, error)


def _attach(
    recipe: Recipe,
    layout: Layout,
    backend: Backend,
    leaves: Sequence[Any],
    error: TraceError | None,
) -> Any:
    # The backend calls `run`, at times again, then its pull; outputs are nested as in the last run.
    places = tensors_among(layout, leaves)
    last_run: Any = None

    def run(*tensors: Tensor) -> tuple[tuple[Tensor, ...], Any, tuple[int, ...]]:
        nonlocal last_run
        args, kwargs = layout.rebuild(replace_at(leaves, places, tensors))
        recorded = run_recipe(recipe, backend, args, kwargs, error)
        flat, tree = optree.tree_flatten(recorded.outputs, none_is_leaf=True)
        positions = [i for i, each in enumerate(flat) if owner_of(each) is not None]
        last_run = flat, tree, positions
        foreign = error if is_foreign(error, recipe, backend) else None
        # The code fell back to its own framework's tensors.
        if foreign is not None and any(owner_of(flat[i]) is not backend for i in positions):
            raise foreign.to_keep()

        def pull(*cotangents: Tensor, ctx: Any = None) -> tuple[Tensor | None, ...]:
            try:  # a framework calls it: no door of ours is above
                assert recorded.pull is not None
                upstream = replace_at([None] * len(flat), positions, cotangents)
                context = {"ctx": ctx} if recorded.takes_ctx else {}
                returned = recorded.pull(optree.tree_unflatten(tree, upstream), **context)
                if lost := lost_variables():
                    warn_lost(recipe, lost, backend)
                gradients = match_gradients(recipe.name, returned, layout)
                return tuple(
                    check_native(
                        recipe.subject, layout.leaves[i].path, tensor, gradients[i], backend
                    )
                    for i, tensor in zip(places, tensors, strict=True)
                )
            except Exception as failure:
                shorten(failure)
                raise

        constants = recorded.undifferentiable
        undifferentiable = tuple(
            n for n, i in enumerate(positions) if any(flat[i] is each for each in constants)
        )
        return tuple(flat[i] for i in positions), pull, undifferentiable

    outputs = backend.autodiff.attach(run, tuple(leaves[i] for i in places), recipe.name)
    flat, tree, positions = last_run
    return optree.tree_unflatten(tree, replace_at(flat, positions, outputs))


def tensors_among(layout: Layout, leaves: Sequence[Any]) -> tuple[int, ...]:
    """Return the positions of the leaves that are tensors, numbers given as tensors among them."""
    numbers = (i for i in layout.indices("number") if not isinstance(leaves[i], int | float))
    return (*layout.indices("tensor"), *numbers)


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
    """Run a function as written; `error` says why it was not captured.

    Raises:
        TraceError: it was not captured, is written for another framework, and fails here.
    """
    refuse_elsewhere(error, backend)
    is_home = backend.name == recipe.dialect(backend.name)
    if is_home and not recipe.options.copies:
        return recipe.run(args, kwargs)
    if recipe.options.copies:
        args, kwargs = copied_all((args, kwargs))
    if is_home:
        recorded = recipe.run(args, kwargs)
        pull = recorded.pull
    else:
        foreign = error if is_foreign(error, recipe, backend) else None
        if foreign is not None and recipe.imported is not None:
            raise no_original(foreign, recipe) from foreign.__cause__
        leaves = optree.tree_leaves((args, kwargs), none_is_leaf=True)
        attempt = partial(run_abroad, recipe, leaves, foreign)
        recorded = attempt(recipe.run, args, kwargs)
        pull = None if recorded.pull is None else partial(attempt, recorded.pull)
    if not recipe.options.copies or pull is None:
        return replace(recorded, pull=pull)

    def pull_copied(upstream: Any, **context: Any) -> Any:
        # Backward may write into its cotangents, as forward into its arguments.
        return pull(copied_all(upstream), **context)

    return replace(recorded, pull=pull_copied)


def run_as_written(
    specialization: Any,
    ctx: Any,
    grad_out: Tensor,
    tin: Tensor | None,
    values: tuple[Any, ...],
) -> Tensor:
    """Call a rule's function on tensors and check what it returns."""
    error, shards = specialization.code.uncapturable, specialization.rule.shards
    if shards is not None:
        raise TraceError(
            f"{specialization.subject} runs as written, on the tensor in hand, so it cannot be "
            f"used {shards}: reduce over shards in the rule itself"
        )
    backend, like = backend_of(grad_out), grad_out if tin is None else tin
    recipe = specialization.captures[tin is not None].recipe
    recorded = run_recipe(recipe, backend, (like, *values), {}, error)
    assert recorded.pull is not None
    try:
        gradient = recorded.pull(grad_out, ctx=ctx)[0]
    except MultigradError:
        raise
    except Exception as failure:
        name_rank(failure, f"{specialization.subject} failed")
        if error is None or not isinstance(failure, TypeError):
            raise  # else another library's function may have met these tensors
        text = f"{error}; run as written on {backend.name}, it failed: {failure}"
        trace_error = TraceError(text)
        name_rank(trace_error)
        raise trace_error from failure
    path = "grad_out" if tin is None else "tin"
    checked = check_native(specialization.subject, path, like, gradient, backend)
    assert checked is not None  # of a float
    return checked


def within_call(run: Callable[..., Any], leaves: Iterable[Any]) -> Callable[..., Any]:
    """Return a function whose numbers take the float dtype of a call's tensors, if any."""
    # `where(mask, 1e-6, -1e-6)` has that dtype, as in a capture.
    dtypes = {leaf.dtype for leaf in leaves if "float" in str(getattr(leaf, "dtype", ""))}
    if len(dtypes) != 1:
        return run
    (dtype,) = dtypes

    def within(*args: Any, **kwargs: Any) -> Any:
        with set_within(OF_CALL, dtype):
            return run(*args, **kwargs)

    return within


def run_abroad(
    recipe: Recipe,
    leaves: Sequence[Any],
    foreign: TraceError | None,
    run: Callable[..., Any],
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Run code, or its pullback, on tensors of another framework than its recipe's own."""
    try:
        with intercepting():  # custom gradients inside, which are another framework's
            return within_call(run, leaves)(*args, **kwargs)
    except MultigradError:
        raise
    except Exception as failure:
        if foreign is None:
            raise
        raise no_original(foreign, recipe) from failure


def is_foreign(error: TraceError | None, recipe: Recipe, backend: Backend) -> bool:
    return error is not None and recipe.dialect(backend.name) not in ("", backend.name)


def explain_fallback(
    recipe: Recipe, reason: str | TraceError, error: Exception, backend: Backend | None
) -> None:
    """Raise why an original runs as written if a transform of its framework refuses it."""
    explain = None if backend is None else backend.autodiff.explain_refusal
    refusal = "" if explain is None or isinstance(error, MultigradError) else explain(error)
    if refusal:
        defined = defined_at(recipe.functions)
        place = getattr(reason, "place", None) or (defined and (defined.file, defined.line))
        cause = f"{recipe.subject}: {reason}" if isinstance(reason, str) else str(reason)
        ours = TraceError(f"{cause}. So it runs as written, which {refusal}", place)
        raise explaining(error, ours) from error


def refuse_elsewhere(error: TraceError | None, backend: Backend) -> None:
    """Raise if a disproved graph would run on another framework than the code's own."""
    if isinstance(error, DisprovedError) and error.home not in ("", backend.name):
        raise error.to_keep()


def warn_lost(recipe: Recipe, lost: Sequence[Any], backend: Backend) -> None:
    """Warn that tensors which a function reads besides its arguments get no gradient."""
    place = defined_at(recipe.functions)
    file, line = ("<unknown>", 1) if place is None else (place.file, place.line)
    listed = ", ".join(f"{dtype_name(each.dtype)}{list(each.shape)}" for each in lost[:3])
    message = (
        f"function {recipe.name!r} reads besides its arguments what asks for a gradient ({listed}"
        f"{', ...' if len(lost) > 3 else ''}), and its own gradient has none for it: it gets none. "
        "Make it an argument (of a module or a layer: apply, parameters = xg.convert(module, "
        f"to={backend.name!r})), or stop its gradient"
    )
    warnings.warn_explicit(message, NativeRuleWarning, file, line, module=OWN)


def check_native(
    subject: str, path: str, tensor: Tensor, gradient: Tensor | None, backend: Backend
) -> Tensor | None:
    """Return a gradient that fits its argument."""
    if gradient is None or dtype_name(tensor.dtype) not in FLOATS:
        return None
    if owner_of(gradient) is not backend:
        kind = type(gradient)
        module = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
        raise GradientError(
            f"{subject} returned a {module}{kind.__qualname__} as the gradient of argument "
            f"{path!r}; expected a tensor of {backend.name} of its shape"
        )
    if not shapes_agree(gradient.shape, tensor.shape):
        raise unlike(subject, path, tuple(gradient.shape), tuple(tensor.shape))
    actual, expected = dtype_name(gradient.dtype), dtype_name(tensor.dtype)
    if actual != expected and actual in FLOATS:  # as the frameworks' engines do
        return backend.kernels.rows[ops.CAST](gradient, dtype=tensor.dtype)
    if actual != expected:
        raise GradientError(
            f"{subject} returned a {actual} gradient for argument {path!r} of {expected}; cast it "
            "back"
        )
    return gradient


# --- warnings that code runs as written -----------------------------------------------------------
# The functions of whose running as written users were warned.
_warned_of: weakref.WeakSet[types.FunctionType] = weakref.WeakSet()
# The code as written raises them again.
MISTAKES = (AttributeError, ImportError, NameError, ZeroDivisionError)


def warn_native(functions: Iterable[Any], error: TraceError) -> None:
    function = next(iter(functions), None)
    if isinstance(error, DisprovedError) or isinstance(error.__cause__, MISTAKES):
        return  # the proof has warned, or the code as written raises it
    if isinstance(function, types.FunctionType):
        if function in _warned_of:
            return
        _warned_of.add(function)
    defined = defined_at((function,))
    file, line = error.place or ((defined.file, defined.line) if defined else ("<unknown>", 1))
    # The line of use would say less, and is behind the frames of a framework.
    warnings.warn_explicit(
        f"{error}. It runs as written, in this framework only (register it with native=True to "
        "say that this is meant)",
        NativeRuleWarning,
        file,
        line,
        module=getattr(function, "__module__", None),
    )


def warn_disproved(error: DisprovedError, module: str) -> None:
    file, line = error.place or ("<unknown>", 1)
    scope = f"on {error.home} only" if error.home else "everywhere"
    message = f"{error}. It runs as written, {scope}"
    warnings.warn_explicit(message, NativeRuleWarning, file, line, module=module)
