"""Entries: what a call finds for a rule in force, built at the first miss.

A miss runs capture, passes and emission once; afterwards an entry is one dictionary hit away. What a capture needed
to know about its input (rank, shape, dtype, a param's value) becomes part of the entry's key.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ..errors import DisprovedError, GradientError, MultigradError, TraceError
from ..forwards import Forward
from ..identity import items_key
from ..ir.neutral_arrays import REPLAYED
from ..ir.record import NeedFact, dtype_name
from ..proof.samples import calling
from ..proof.setting import ALL, how_much
from ..threads import build_once
from .backend import Backend, backend_among, backend_of, key_for
from .input_checks import (
    check_float,
    check_float_name,
    check_values,
    find_device,
    find_lacking,
    refuse_lacking,
    shapes_agree,
    two_devices,
)
from .lower import Lowered, emit_rule, lower_family, lower_forward, shape_check

if TYPE_CHECKING:
    from ..context import Application
    from ..rule import Family, Rule

Tensor = Any
Entry = Callable[..., Any]
MOST_ENTRIES = 1024  # of one family: there may be one per shape or value
_MISSING: Any = object()  # None: the rule runs as it is
# The activations themselves, for rules that run as they are.
_forwards: dict[tuple[str, str], Callable[..., Any]] = {}


def find_entry(family: Family, backend: Backend, forward: Forward) -> Entry:
    """Return `entry(tin, application) -> output`, built at the first call."""
    key = (backend.name, forward.name)
    build = functools.partial(_build_entry, family, backend, forward, key)
    return family.entries.get(key) or build_once(family.entries, key, build, MOST_ENTRIES)


def _build_entry(family: Family, backend: Backend, forward: Forward, key: Any) -> Entry:
    if family.rule.native is True:
        return _native_entry(backend, forward)
    try:
        return _known_entry(family, backend, forward, {})
    except NeedFact:
        return _fact_entry(backend, forward, key)


def _known_entry(
    family: Family, backend: Backend, forward: Forward, facts: Mapping[str, Any]
) -> Entry:
    """Return the entry for input of which these facts are known, captured or as it is."""
    try:
        return _captured_entry(family, backend, forward, facts)
    except TraceError as error:
        family.give_up(error)
        return _native_entry(backend, forward)


def _captured_entry(
    family: Family, backend: Backend, forward: Forward, facts: Mapping[str, Any]
) -> Entry:
    """Return the entry of a rule that can be captured, with the checks that it needs and no others."""
    entry = _plain_entry(lower_family(family, backend, forward, facts), backend)
    if family.runtime:
        entry = _checking_values(entry, backend)
    graphs = family.graph(True, facts), forward.graph()
    entry = checking_dtype(entry, find_lacking(f"rule {family.rule.name!r}", backend, *graphs))
    return _proving(entry, facts) if how_much() == ALL else entry


def _proving(entry: Entry, facts: Mapping[str, Any]) -> Entry:
    """Return an entry that compares the rule with its graph on each input."""

    def proving(tin: Tensor, application: Application) -> Tensor:
        with calling(tin, application.spec.params):
            application.spec.family.prove_call(True, facts)
        return entry(tin, application)

    return proving


def find_lowered(
    family: Family,
    backend: Backend,
    forward: Forward,
    values: tuple[Any, ...],
    known: Mapping[str, Any],
    fast: bool = True,
) -> Lowered | None:
    """Lower where only some facts about the input are known; None: the rule runs as it is.

    `fast=False` is for a compiler to read.

    Raises:
        TraceError: the rule needs to know more about its input than `known` says.
        GradientError: the input's dtype is no float.
    """
    if "dtype" in known:
        check_float_name(known["dtype"], family.rule)
    if family.rule.native is True:
        return None
    while True:
        facts: dict[str, Any] = {}
        for name in sorted(family.facts):
            if name.startswith("param:"):
                facts[name] = _known_value(family, name.removeprefix("param:"), values)
            elif name in known:
                facts[name] = known[name]
            else:
                raise TraceError(
                    f"rule {family.rule.name!r} needs the input's {name} in Python, which compiled "
                    f"code does not fix. Use x.shape[i] only in arithmetic"
                )
        try:
            lowered = lower_family(family, backend, forward, facts, fast=fast)
            graphs = family.graph(True, facts), forward.graph()
            lacking = find_lacking(f"rule {family.rule.name!r}", backend, *graphs)
            refuse_lacking(lacking, known.get("dtype", ""))
            return lowered
        except NeedFact:
            continue
        except TraceError as error:
            family.give_up(error)
            return None


def _plain_entry(lowered: Lowered, backend: Backend) -> Entry:
    call = lowered.call
    assert lowered.lowering is not None
    if "key" in lowered.lowering.params:

        def random_entry(tin: Tensor, application: Application) -> Tensor:
            return call(tin, *application.spec.values, draw(application, backend))

        return random_entry

    def entry(tin: Tensor, application: Application) -> Tensor:
        return call(tin, *application.spec.values)

    native, bind = lowered.native, backend.bind
    if bind is not None:
        entry.bind = lambda x, application: bind(native, x, application.spec.values)  # type: ignore[attr-defined]
    return entry


def bind_entry(entry: Entry, x: Tensor, application: Application) -> Callable[[Tensor], Tensor]:
    """Return `f(tin)` of an entry for one application, for tensors of the type and dtype of x."""
    bind = getattr(entry, "bind", None)
    if bind is not None:
        return bind(x, application)
    return functools.partial(_apply_entry, entry, application)


def _apply_entry(entry: Entry, application: Application, tin: Tensor) -> Tensor:
    return entry(tin, application)


def _fact_entry(backend: Backend, forward: Forward, key: Any) -> Entry:
    """Return an entry that looks at its input first, one lowering per set of facts."""

    def entry(tin: Tensor, application: Application) -> Tensor:
        family = application.spec.family
        while True:
            facts = gather_facts(family, tin, application.spec.values)
            inner_key = (*key, items_key(facts))
            inner = family.entries.get(inner_key)
            if inner is None:
                build = functools.partial(_known_entry, family, backend, forward, facts)
                try:
                    with calling(tin, application.spec.params):
                        inner = build_once(family.entries, inner_key, build, MOST_ENTRIES)
                except NeedFact:
                    continue  # family.facts has grown: look again
            return inner(tin, application)

    return entry


def checking_dtype(function: Callable[..., Any], lacking: Mapping[str, str]) -> Callable[..., Any]:
    """Return a function that looks at the dtype of its first argument, where that can be lacking."""
    if not lacking:
        return function

    def checked(x: Tensor, *args: Any) -> Any:
        refuse_lacking(lacking, dtype_name(x.dtype))
        return function(x, *args)

    def bind(x: Tensor, application: Application) -> Callable[[Tensor], Tensor]:
        refuse_lacking(lacking, dtype_name(x.dtype))
        return bind_entry(function, x, application)

    checked.bind = bind  # type: ignore[attr-defined]
    return checked


def _checking_values(entry: Entry, backend: Backend) -> Entry:
    """Return an entry that looks at the params that are tensors."""

    def checked(tin: Tensor, application: Application) -> Tensor:
        spec = application.spec
        if any(type(value) is not float for value in spec.values):
            check_values(spec.family, backend, tin, spec.values)
        return entry(tin, application)

    def bind(x: Tensor, application: Application) -> Callable[[Tensor], Tensor]:
        if all(type(value) is float for value in application.spec.values):
            return bind_entry(entry, x, application)
        return functools.partial(_apply_entry, checked, application)

    checked.bind = bind  # type: ignore[attr-defined]
    return checked


def gather_facts(family: Family, x: Tensor, values: tuple[Any, ...]) -> dict[str, Any]:
    """Return what the family's capture needs to know about this call, in a fixed order."""
    facts: dict[str, Any] = {}
    for name in sorted(family.facts):
        if name == "dtype":
            facts[name] = dtype_name(x.dtype)
        elif name == "ndim":
            facts[name] = len(x.shape)
        elif name == "shape":
            facts[name] = _known_shape(family, x)
        else:
            facts[name] = _known_value(family, name.removeprefix("param:"), values)
    return facts


def _known_value(family: Family, param: str, values: tuple[Any, ...]) -> int | float:
    value = values[family.runtime.index(param)]
    if not isinstance(value, int | float):
        raise TraceError(
            f"rule {family.rule.name!r} needs the value of param {param!r} in Python "
            f"(a branch or a loop), but it is a tensor here. Pass a Python number"
        )
    return value


def _known_shape(family: Family, x: Tensor) -> tuple[int, ...]:
    shape = tuple(x.shape)
    if any(n is None for n in shape):
        raise TraceError(
            f"rule {family.rule.name!r} needs the input's shape in Python, "
            f"but it is {shape} here. Use x.shape[i] only in arithmetic"
        )
    return shape


def _native_entry(backend: Backend, forward: Forward) -> Entry:
    """Return an entry whose backward calls the user's function on the framework's own tensors."""
    key = (backend.name, forward.name)

    def entry(tin: Tensor, application: Application) -> Tensor:
        natives = application.spec.family.natives
        native = natives.get(key)
        if native is None:
            native = _attach_native(application.spec.family, backend, forward)
            native = natives.setdefault(key, native)
        return native(tin, application.spec.values)

    return entry


def _attach_native(family: Family, backend: Backend, forward: Forward) -> Callable[..., Any]:
    def backward(ctx: Any, grad_out: Tensor, tin: Tensor, values: tuple[Any, ...]) -> Tensor:
        return run_as_it_is(family, ctx, grad_out, tin, values)

    key = (backend.name, forward.name)
    run = _forwards.get(key)
    if run is None:
        run = _forwards.setdefault(key, lower_forward(forward, backend))
    return backend.attach_native(run, backward, family.rule.name)


def run_as_it_is(
    family: Family, ctx: Any, grad_out: Tensor, tin: Tensor | None, values: tuple[Any, ...]
) -> Tensor:
    """Call a rule's function on tensors and check what it returns.

    Raises:
        TraceError: it failed, and it had not been captured either.
        GradientError: the result is no tensor of the input's shape.
    """
    rule = family.rule
    error = family.uncapturable
    if isinstance(error, DisprovedError) and error.home not in ("", backend_of(grad_out).name):
        raise error.to_keep()
    try:
        grad_in = family.run_native(ctx, grad_out, tin, values)
    except MultigradError:
        raise
    except Exception as error:
        if family.uncapturable is None:
            raise
        owner = backend_of(grad_out).name
        raise TraceError(
            f"{family.uncapturable}; run as it is on {owner}, it failed: {error}"
        ) from error
    like = grad_out if tin is None else tin
    owner = backend_of(like)
    if not isinstance(grad_in, owner.tensor_types()):
        kind = type(grad_in)
        home = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
        given = "None" if grad_in is None else f"a {home}{kind.__qualname__}"
        raise GradientError(
            f"rule {rule.name!r} returned {given}; expected the gradient, a tensor of {owner.name}"
        )
    shape_check(rule.name)(grad_in, like)
    if grad_in.dtype != like.dtype:
        raise GradientError(
            f"rule {rule.name!r} returned {grad_in.dtype} for a {like.dtype} input; "
            f"cast it back to tin's dtype"
        )
    return grad_in


# --- random keys -------------------------------------------------------------------------------------


def draw(application: Application, backend: Backend) -> Any:
    """Return the key of the next application: from `key=`, else from the framework's own generator."""
    if application.counter is None:
        replayed = REPLAYED.get()  # in a proof the draws of a capture's own application
        return backend.draw_key() if replayed is None else next(replayed)
    n = next(application.counter)
    return backend.fold_in(key_for(backend, application.key), n)


# --- a bare rule on tensors --------------------------------------------------------------------------


def call_rule(
    rule: Rule, ctx: Any, grad_out: Tensor, tin: Tensor | None, params: Mapping[str, Any]
) -> Tensor:
    """Apply a rule to tensors of any framework: `rule(None, grad_out, tin, **params)`."""
    given = dict(params)
    key = None if rule.signature.takes("key") else given.pop("key", None)
    from ..context import Application, Counter, normalize_key

    spec = rule.spec(given)
    keyed = () if key is None else (normalize_key(key), Counter())
    return apply_rule(Application(spec, *keyed), ctx, grad_out, tin)


def apply_rule(application: Application, ctx: Any, grad_out: Tensor, tin: Tensor | None) -> Tensor:
    """Apply a rule in force to a gradient, outside any autodiff; the result is like tin, or grad_out."""
    backend = backend_among((grad_out, tin))
    if grad_out is None:
        raise GradientError(
            f"rule {application.spec.family.rule.name!r} got None for grad_out; expected a tensor"
        )
    family = application.spec.family
    values = application.spec.values
    for tensor in (grad_out, tin):
        if tensor is not None:
            check_float(tensor, family.rule)
    if tin is not None and not shapes_agree(grad_out.shape, tin.shape):
        raise GradientError(
            f"rule {family.rule.name!r} got a gradient of shape {tuple(grad_out.shape)} "
            f"for an input of shape {tuple(tin.shape)}; expected the same shape"
        )
    if tin is not None and find_device(grad_out) != find_device(tin):
        raise two_devices(family, "a gradient", grad_out, "its input", tin)
    check_values(family, backend, grad_out, values)
    if tin is not None and grad_out.dtype != tin.dtype:
        from ..ir import ops

        grad_out = backend.ops[ops.CAST](grad_out, dtype=tin.dtype)
    function = _bare(family, backend, grad_out, tin, values)
    if function is None:
        return run_as_it_is(family, ctx, grad_out, tin, values)
    call, is_random = function
    arguments = (grad_out,) if tin is None else (grad_out, tin)
    if is_random:
        return call(*arguments, *values, draw(application, backend))
    return call(*arguments, *values)


def _bare(
    family: Family, backend: Backend, grad_out: Tensor, tin: Tensor | None, values: tuple[Any, ...]
) -> tuple[Callable[..., Any], bool] | None:
    """Return the emitted rule and whether it is random; None: it runs as it is."""
    if family.rule.native is True:
        return None
    while True:
        facts = gather_facts(family, grad_out, values)
        key = (backend.name, None, tin is None, items_key(facts))
        found = family.entries.get(key, _MISSING)
        if found is not _MISSING:
            return found
        build = functools.partial(_build_bare, family, backend, tin is not None, facts)
        try:
            params = dict(zip(family.runtime, values, strict=True))
            with calling(grad_out if tin is None else tin, params):
                return build_once(family.entries, key, build, MOST_ENTRIES)
        except NeedFact:
            continue  # family.facts has grown: look again


def _build_bare(
    family: Family, backend: Backend, has_tin: bool, facts: Mapping[str, Any]
) -> tuple[Callable[..., Any], bool] | None:
    if not family.facts <= facts.keys():  # another thread's capture has found that more is needed
        raise NeedFact(*family.facts, noted=False)
    try:
        graph = family.graph(has_tin, facts)
    except TraceError as error:
        family.give_up(error)
        return None
    lacking = find_lacking(f"rule {family.rule.name!r}", backend, graph)
    call = checking_dtype(emit_rule(graph, backend)[0], lacking)
    return call, graph.input("key") is not None
