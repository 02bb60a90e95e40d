"""Lowering of any pair of graphs: of Functions, of code with loops and calls, in forward mode, and
for people to call. The steps are those of the core, with other cuts and more checks.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from ...core.backend.contract import Backend
from ...core.backend.emitted import Attached, Code, Residuals
from ...core.ir.graph import Graph
from ...core.lowering.function_graph import FunctionGraph
from ...core.lowering.lower import Lowering, Style, attach, choose_names, describe, emit_code
from ...core.support.lazy_modules import loaded
from .checks import bind_checks, check_dtypes
from .cuts import Cuts, find_cuts, settle
from .tangents import emit_tangent


def lower_pair(
    graphs: FunctionGraph,
    backend: Backend,
    defaults: Mapping[str, Any] | None = None,
    *,
    style: Style = "fast",
    forward_mode: bool = False,
    checks: bool = False,
    asked: Mapping[str, Callable[..., Any]] = MappingProxyType({}),
) -> Attached:
    """Emit, compile and attach a pair of graphs on a backend.

    Args:
        defaults: values for params, where people call the object.
        style: as in the core's `lower_graphs`.
        forward_mode: whether the object pushes tangents itself.
        checks: whether the code refuses dtypes for which the backend lacks an op, and a tensor that
            asks for a gradient where a Function takes a number. Code of an entry need not: the
            entry has looked already.
        asked: by argument, what refuses another shape, dtype or number than the graphs are for.
    """
    autodiff, params, author_names = backend.autodiff, graphs.params, names_of(graphs)
    forward_mode = forward_mode or (graphs.is_pushed_first and autodiff.transposes)
    dual = None
    if autodiff.forward_mode and not forward_mode:
        lower = functools.partial(lower_dual, graphs, backend, style, defaults)
        dual = functools.cache(functools.partial(lower, checks=checks, asked=asked))
    lowering = choose_names(graphs if graphs.is_plain else settle(graphs, backend), backend, style)
    graphs, bind = lowering.graphs, lowering.emission.bind
    is_compiled = style == "compiled"
    cuts = find_cuts(
        graphs, backend, forward_mode=forward_mode, fast=lowering.is_fast, compiled=is_compiled
    )
    # The names of the residuals are reserved.
    lowering.emission.taken.update(cuts.anywhere.residuals, cuts.histories)
    code, fast = emit_codes(lowering, cuts)
    if checks:
        code, fast = check_dtypes(lowering, code, fast)
    names = params if checks else None
    bound_checks = bind_checks(graphs, lowering.emission, cuts.anywhere, names)
    if asked:
        pairs = zip(author_names, names_of(graphs), strict=True)
        facts = {own: bind(f"check_{own}", asked[name]) for name, own in pairs if name in asked}
        bound_checks = replace(bound_checks, facts=facts)
    tangent = emit_tangent(lowering, cuts.anywhere, bound_checks) if forward_mode else None
    emitted = describe(lowering, cuts.anywhere, code, fast, checks=bound_checks, dual=dual)
    key = ("key",) if graphs.is_random else ()
    values = {}
    if defaults is not None and (params or key):
        values = default_values(graphs, params, defaults)
    emitted = replace(
        emitted,
        # Where a loop computes what forward and `keep` need, these are no graphs.
        origin=replace(emitted.origin, graphs=None) if cuts.is_wide else emitted.origin,
        names=replace(emitted.names, params=(*graphs.params, *key), defaults=values),
        residuals=Residuals(
            names=cuts.anywhere.residuals,
            computed=cuts.anywhere.computed,
            histories=cuts.histories,
            likes=cuts.likes,
            late=tuple([r for r in cuts.anywhere.residuals if r in cuts.late and not is_compiled]),
            shapes=tuple(
                [n for n, check in zip(graphs.wrt, bound_checks.gradients, strict=True) if check]
            ),
        ),
        derivative=replace(emitted.derivative, tangent=tangent),
    )
    if emitted.draws:
        # The function itself: an ejected file holds its source.
        lowering.emission.namespace["draw_key"] = loaded(backend.draws.draw_key)
    return attach(lowering, emitted)


def lower_any(graphs: FunctionGraph, backend: Backend, *, style: Style = "fast") -> Attached:
    """Lower a pair for entries, which have looked at what a call is given."""
    return lower_pair(graphs, backend, style=style)


def lower_dual(
    graphs: FunctionGraph,
    backend: Backend,
    style: Style,
    defaults: Mapping[str, Any] | None = None,
    **asked: Any,
) -> Attached:
    """Lower a pair with forward mode."""
    own_style: Style = "fast" if style == "fast" else "plain"
    return lower_pair(graphs, backend, defaults, style=own_style, forward_mode=True, **asked)


def names_of(graphs: FunctionGraph) -> tuple[str, ...]:
    return (*graphs.inputs, *graphs.params)


def default_values(
    graphs: FunctionGraph, params: Sequence[str], defaults: Mapping[str, Any]
) -> dict[str, Any]:
    """Return values by the names in the code; a key without one is drawn."""
    safe_name_of = dict(zip(params, graphs.params, strict=True))
    values = {safe_name_of.get(name, name): value for name, value in defaults.items()}
    return {"key": None, **values} if graphs.is_random else values


def emit_codes(lowering: Lowering, cuts: Cuts) -> tuple[Code, Code]:
    """Emit the code that may run anywhere and the fast code."""
    autodiff = lowering.backend.autodiff
    is_only = lowering.is_fast and autodiff.only_fast
    code = fast = emit_split(lowering, cuts, autodiff.keeps_float_derivatives, is_only)
    differs = lowering.is_fast or (lowering.style == "compiled" and cuts.is_wide)
    if differs and not autodiff.only_fast:
        fast = emit_split(lowering, cuts, True, lowering.is_fast)
    return code, fast


def emit_split(lowering: Lowering, cuts: Cuts, is_wide: bool, is_fast: bool) -> Code:
    """Emit the code of one split: `is_wide`, of the one that keeps more, if there is one."""
    graphs, autodiff = lowering.graphs, lowering.backend.autodiff
    cut, joined = cuts.split(graphs, autodiff, wide=is_wide, fast=is_fast)
    # Where forward is joined with `keep`, that gives nothing by itself.
    if joined is not None:
        cut = replace(cut, keep=Graph("keep", cuts.anywhere.keep.inputs, ()))
    return emit_code(lowering, cut, fast=is_fast, joined=joined)
