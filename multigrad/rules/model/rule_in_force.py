"""`RuleInForce`: a rule with values for its params; how it is made, and applied to tensors."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ...backend.contract import Backend
from ...backend.discovery import backend_among, backend_of
from ...backend.values import concrete_number, in_one_framework
from ...capture.user_code.signature import REQUIRED, STATIC_TYPES, Signature, check_value
from ...errors import GradientError, RuleTypeError, TraceError
from ...functions.calls.arguments import Leaf, lay_out
from ...functions.calls.capture_errors import NotCaptured
from ...functions.calls.facts import gather_facts
from ...functions.proof.samples import calling
from ...graph import ops
from ...graph.ir.graph import Graph
from ...graph.support.params import find_part, is_address, read_params
from ...graph.support.threads import SERIALS, build_once
from ...graph.support.trees import optree
from ...lowering.bare import emit_bare_rule, emit_rule_once
from ...lowering.input_checks import (
    check_float,
    check_values,
    find_device,
    find_lacking,
    refuse_lacking,
    shapes_agree,
    two_devices,
)
from ...trace.active_rules import FREE, KeySource, key_token
from ...trace.identity import function_key, items_key, owners_of
from ...trace.lookups import at_present
from ...trace.moving_numbers import Moving, settle
from ...trace.ranks import CHECKED, note
from ...trace.trace import NeedsConcrete, dtype_name
from .rule_code import code_of
from .rule_names import as_registered
from .specialization import Slot, Specialization

Rule = Any  # of rule.py, which imports this module
MOST_SPECIALIZATIONS = 256  # of one rule: by params that are part of its code
LIKELY = {"dtype": "float32", "ndim": 2, "shape": (2, 3)}  # an input as good as any


class RuleInForce:
    """A rule with values for its params, and where its random draws come from; never changed.

    Examples:
        >>> from multigrad.context import apply_now
        >>> isinstance(apply_now("triangular", None), xg.context.RuleInForce)
        True

    Attributes:
        specialization: the rule with its static params.
        values: the run-time params, in the order of `specialization.runtime`.
        token: equal for equal meaning; `own_token` is the same without the key of the draws.
        has_tensors: whether a param is a tensor, which may change in place, or a schedule.
        moves: whether one is a schedule: `lookups.at_present` returns its current value.
        present: the rule with what stood for them last.
    """

    __slots__ = (
        "__weakref__", "draws", "has_tensors", "moves", "own_token", "present", "specialization",
        "token", "values",
    )  # fmt: skip

    def __init__(
        self,
        specialization: Specialization,
        values: tuple[Any, ...],
        token: str,
        draws: KeySource = FREE,
    ) -> None:
        self.specialization, self.values, self.draws = specialization, values, draws
        self.own_token = token
        self.token = token if draws.key is None else token + key_token(draws)
        self.has_tensors = self.moves = False
        self.present: RuleInForce | None = None
        for value in values:
            if type(value) is not float:
                self.has_tensors = True
                if isinstance(value, Moving):
                    self.moves = True
                    value.hold(self)

    def with_values(self, values: tuple[Any, ...], token: str) -> RuleInForce:
        return RuleInForce(self.specialization, values, token, self.draws)

    def with_draws(self, draws: KeySource) -> RuleInForce:
        return RuleInForce(self.specialization, self.values, self.own_token, draws)

    def with_numbers(self, values: tuple[float, ...], token: str) -> RuleInForce:
        """Return this rule, in force without a key, with other floats, which have been checked.

        Each new number of `use` comes here, so `__init__` is bypassed.
        """
        new = RuleInForce.__new__(RuleInForce)
        new.specialization, new.draws = self.specialization, self.draws
        new.values, new.token, new.own_token = values, token, token
        new.has_tensors = new.moves = False
        new.present = None
        return new

    @property
    def numbers(self) -> dict[str, Any]:
        """The run-time params by name."""
        return dict(zip(self.specialization.runtime, self.values, strict=True))

    @property
    def key(self) -> Any:
        """Two uint32, or a backend's own key object; None: draws are the framework's own."""
        return self.draws.key

    @property
    def counter(self) -> Any:
        """A Counter if there is a key."""
        return self.draws.counter

    @property
    def params(self) -> dict[str, Any]:
        return self.specialization.params(self.values)

    @property
    def rule(self) -> Rule:
        return self.specialization.fill_bound(self._given())[0]

    def _given(self) -> dict[str, Any]:
        return self.specialization.name_values(self.values)

    def graph(self) -> Graph:
        """Return the rule's graph with the params' own values where the rule branches on them."""
        facts: dict[str, Any] = {}
        while True:
            try:
                return self.specialization.graph(True, facts)
            except NeedsConcrete as need:
                names = [fact.removeprefix("param:") for fact in need.facts]
                params = self._given()
                if not params.keys() >= set(names):
                    raise
                facts.update({f"param:{name}": settle(params[name]) for name in names})

    def likely_graph(self, has_tin: bool) -> tuple[Graph | None, dict[str, Any]]:
        """Return the rule's graph for a likely input and the facts it needed; None: no graph."""
        facts: dict[str, Any] = {}
        known = {**LIKELY, **{f"param:{name}": value for name, value in self._given().items()}}
        while True:
            try:
                return self.specialization.graph(has_tin, facts), facts
            except NeedsConcrete as need:
                for fact in need.facts:
                    facts[fact] = read_number(known[fact])
                    if facts[fact] is None:  # known at run time only: the application says so
                        return None, facts
            except TraceError:  # it runs as it is, on the numbers that it expects
                return None, facts

    def tensor_params(self) -> tuple[str, ...]:
        """Return the run-time params that may be tensors: no Python code looks at them."""
        graph, facts = self.likely_graph(True)
        if graph is None:
            return ()
        return tuple(name for name in self.specialization.runtime if f"param:{name}" not in facts)


def read_number(value: Any) -> Any:
    """Return the number in a 0-d tensor, None if it is known at run time only.

    Of a moving number, return the one that stands for it outside applications; else the value.
    """
    if not hasattr(value, "dtype"):
        return settle(value)
    return concrete_number(value)


# --- from a rule and its params to the rule in force ---------------------------------------------
def bind(
    rule: Rule, params: Mapping[str, Any] | None = None, draws: KeySource = FREE
) -> RuleInForce:
    """Return a rule with values for its params, checked against its signature and ranges."""
    chosen = read_params(params)
    if any(map(is_address, chosen)) and rule.parts:
        rule, chosen = bind_addressed(rule, chosen)
    signature = rule.signature
    rule._check_names(chosen, signature)
    values = {**_values(rule, signature, chosen), **rule.bound}
    if rule.bound:
        # Bound values run as params do, so that the code of a rule is shared by all its bindings.
        rule = rule.copy(bound={})
        signature = rule.signature
    runtime: dict[str, Any] = {}
    static: dict[str, Any] = {}
    for name, value in values.items():
        is_runtime, value = check_value(rule.name, signature.param(name), value)
        (runtime if is_runtime else static)[name] = value
    if rule.own_ranges or rule.parts:  # each `use` with a new number asks
        rule._check_ranges({**runtime, **static}, whole=bool(rule.parts))
    # Taken before `_frozen`, whose copies have none: the rule that people hold keeps them.
    known = rule._specializations
    rule, hidden = _hide_bound(rule._frozen(), {*signature.params, *values})
    runtime.update(hidden)
    names = tuple(sorted(runtime))
    specialization = _specialize(rule, names, static, frozenset(hidden), known)
    ordered = tuple(runtime[name] for name in names)
    return RuleInForce(specialization, ordered, token_of(specialization, ordered), draws)


def token_of(specialization: Specialization, values: tuple[Any, ...]) -> str:
    """Return text that is equal for rules that do the same with equal values."""
    if len(values) == 1 and type(values[0]) is float:  # each new number comes here
        return f"{specialization.id}({values[0]!r})"
    words = [repr(v) if type(v) is float else value_token(v) for v in values]
    return f"{specialization.id}({','.join(words)})"


def tokens_of(acts: RuleInForce | None, pars: RuleInForce | None) -> str:
    """Return a token that is equal for equal rules, of activations and of parameters."""
    first = "-" if acts is None else acts.token
    second = "-" if pars is None else pars.token
    return first if first == second else f"{first} | {second}"


def _values(rule: Rule, signature: Signature, chosen: Mapping[str, Any]) -> dict[str, Any]:
    values = dict(chosen)
    is_single = _is_single(rule)
    for param in signature.params.values():
        if param.name in chosen:
            continue
        if param.default is REQUIRED:
            raise RuleTypeError(
                f"rule {rule.name!r} needs a value for param {param.name!r}: "
                f"params={{{param.name!r}: ...}}"
            )
        if is_single:
            # The parts of a composed rule may have different defaults: they keep their own.
            values[param.name] = param.default
    return values


def _is_single(rule: Rule) -> bool:
    if rule.function is not None:
        return True
    if len(rule.parts) != 1:
        return False
    # A name alone, with a choice that was made (`lookup._named`): no composition of one rule.
    (part,) = rule._resolved_parts()
    return part.name == rule.name and _is_single(part)


def _hide_bound(rule: Rule, taken: set[str], path: str = "") -> tuple[Rule, dict[str, Any]]:
    hidden: dict[str, Any] = {}
    bound = dict(rule.bound)
    for name, value in rule.bound.items():
        # All values share the code: a slot is filled at each call.
        if not isinstance(value, STATIC_TYPES):
            slot = f"{name}_of_part{path}"
            while slot in taken:
                slot += "_"
            hidden[slot], bound[name] = value, Slot(slot)
    parts = []
    for i, part in enumerate(rule.parts, 1):
        part, inner = _hide_bound(part, taken, f"{path}_{i}")
        parts.append(part)
        hidden.update(inner)
    return (rule.copy(bound=bound, parts=tuple(parts)), hidden) if hidden else (rule, hidden)


def _specialize(
    rule: Rule,
    runtime: tuple[str, ...],
    static: Mapping[str, Any],
    hidden: frozenset[str],
    known: dict[Any, dict[Any, Specialization]],
) -> Specialization:
    identity = _identity(rule)
    specializations = known.get(identity)
    if specializations is None:
        # A part's name means another rule now: what was made for the old one goes.
        known.clear()
        specializations = known.setdefault(identity, {})
    key = (runtime, items_key(static))
    specialization = specializations.get(key)
    if specialization is None:
        code = code_of(rule.name, (identity, *key), _owners(rule))
        if len(specializations) >= MOST_SPECIALIZATIONS:
            specializations.clear()
        specialization = Specialization(rule, runtime, static, hidden, code)
        specialization = specializations.setdefault(key, specialization)
    return specialization


def _identity(rule: Rule) -> Any:
    made_of = (
        function_key(rule.function)
        if rule.function is not None
        else tuple(map(_identity, rule.parts))
    )
    asked = (rule.prove, rule.shards, rule.fused)
    said = (rule.name, rule.native, rule.first_order, rule.library, *asked)
    said += (rule.residuals,) if rule.residuals != "auto" else ()
    return said, made_of, items_key(rule.bound)


def _owners(rule: Rule) -> Iterator[Any]:
    if rule.function is not None:
        yield from owners_of(rule.function)
    for part in rule.parts:
        yield from _owners(part)


def value_token(value: Any) -> str:
    """Return text that is equal for equal values; a traced value equals nothing else."""
    if isinstance(value, float | int):
        return repr(value)
    if isinstance(value, Moving):
        return f"moving {value.serial}"
    number = concrete_number(value)
    # Not a number's text: what is compiled for a number holds it, and a tensor may change in place.
    return f"<traced {next(SERIALS)}>" if number is None else f"tensor {number!r}"


# --- the parts of a composed rule: their params by name, and the chain in words -------------------
Path = tuple[int, ...]


def bind_addressed(rule: Rule, params: Mapping[str, Any]) -> tuple[Rule, dict[str, Any]]:
    """Return a rule with the params that name a part ("noise.sigma") bound, and the others."""
    rest = {}
    for name, value in params.items():
        if is_address(name):
            rows = list(_walk(rule))
            labels = [label for label, _ in rows]
            address = name if name.rpartition(".")[0] in labels else respelled(name)
            position, param = find_part(f"rule {rule.name!r}", address, labels)
            rule = _bind(rule, rows[position][1], name, param, value)
        else:
            rest[name] = value
    return rule, rest


def _walk(rule: Rule, path: Path = ()) -> Iterator[tuple[str, Path]]:
    for i, part in enumerate(rule._resolved_parts()):
        yield part.name, (*path, i)
        yield from _walk(part, (*path, i))


def respelled(address: str) -> str:
    """Return an address with a package's rule spelled as it is registered."""
    part, _, param = address.rpartition(".")
    label, bracket, index = part.partition("[")
    return f"{as_registered(label) or label}{bracket}{index}.{param}"


def _bind(rule: Rule, path: Path, address: str, param: str, value: Any) -> Rule:
    if param in rule.bound:
        raise RuleTypeError(
            f"rule {rule.name!r}: param {param!r} is bound by with_params, so {address!r} can "
            "no longer be set"
        )
    first, *inner = path
    parts = list(rule._resolved_parts())
    chosen_part = parts[first]
    parts[first] = (
        _bind(chosen_part, tuple(inner), address, param, value)
        if inner
        else chosen_part.with_params(**{param: value})
    )
    # The other parts stay names, which are looked up at each use.
    kept = (part if i == first else rule.parts[i] for i, part in enumerate(parts))
    return rule.copy(parts=tuple(kept))


def words_of(rule: Rule, with_params: bool = False) -> str:
    """Return a rule's display name: its own name or its parts, with the bound values.

    Args:
        with_params: whether to include the params that may be set, with their defaults.
    """
    where = "" if rule.shards is None else f", {rule.shards}"
    where += "" if rule.residuals == "auto" else f", residuals={rule.residuals!r}"
    if rule.parts:
        named = "" if rule.name.startswith("compose(") else f"{rule.name}: "
        return f"{named}{chain_of(rule)}{where}"
    bound = ", ".join(f"{name}={value!r}" for name, value in rule.bound.items())
    known = [
        name if value is REQUIRED else f"{name}={value!r}" for name, value in rule.params.items()
    ]
    params = f"({', '.join(known)})" if with_params and known else ""
    return f"{rule.name}{params}{f' with {bound}' if bound else ''}{where}"


def chain_of(rule: Rule) -> str:
    """Return a rule in words: its parts in the order in which they act, with what is bound."""
    bound = ", ".join(f"{name}={value!r}" for name, value in rule.bound.items())
    if not rule.parts:
        return f"{rule.name}({bound})" if bound else rule.name
    rows = zip(rule.parts, rule._resolved_parts(), strict=True)
    words = [part if isinstance(part, str) else _within(resolved) for part, resolved in rows]
    chain = " → ".join(words)
    return f"({chain})({bound})" if bound else chain


def _within(part: Rule) -> str:
    words = chain_of(part)
    return f"({words})" if part.parts and not part.bound else words


# --- a rule applied to tensors, outside any autodiff: `rule(None, grad_out, tin, **params)` -------


Tensor = Any
MOST_ENTRIES = 1024  # of one specialization: there may be one per shape or value
_MISSING: Any = object()  # None: the rule runs as it is
EmittedRule = tuple[Callable[..., Any], bool, Mapping[str, str]]


def apply_rule(in_force: RuleInForce, ctx: Any, grad_out: Tensor, tin: Tensor | None) -> Tensor:
    """Apply a rule in force to a gradient, outside autodiff; the result is like tin or grad_out."""
    backend = backend_among((grad_out, tin))
    # Tensors of one class belong to one framework.
    if type(grad_out) is not type(tin):
        grad_out, tin = in_one_framework((grad_out, tin))
    if in_force.moves:
        in_force = at_present(in_force, backend)
    if CHECKED and not backend.tensors.is_traced(grad_out):
        note("gradients under", in_force)
    specialization, values = in_force.specialization, in_force.values
    if grad_out is None:
        raise GradientError(f"{specialization.subject} got None for grad_out; expected a tensor")
    for tensor in (grad_out, tin):
        if isinstance(tensor, int | float) and not hasattr(tensor, "dtype"):
            raise GradientError(
                f"{specialization.subject} got {type(tensor).__name__} {tensor!r}; expected a "
                f"tensor: numpy.array({float(tensor)!r}), or one of your framework"
            )
        if tensor is not None:
            check_float(tensor, specialization.rule)
    if tin is not None and not shapes_agree(grad_out.shape, tin.shape):
        raise GradientError(
            f"{specialization.subject} got a gradient of shape {tuple(grad_out.shape)} for an "
            f"input of shape {tuple(tin.shape)}; expected the same shape"
        )
    if tin is not None and find_device(grad_out) != find_device(tin):
        raise two_devices(specialization.subject, "a gradient", grad_out, "its input", tin)
    check_values(specialization.subject, specialization.runtime, backend, grad_out, values)
    if tin is not None and grad_out.dtype != tin.dtype:
        grad_out = backend.kernels.rows[ops.CAST](grad_out, dtype=tin.dtype)
    find, _ = _opaque.get(backend.name) or _make_opaque(backend)
    emitted = find(specialization, backend, grad_out, tin, values)
    if emitted is None:
        return specialization.run_as_it_is(ctx, grad_out, tin, values)
    call, is_random, lacking = emitted
    refuse_lacking(lacking, dtype_name(grad_out.dtype))
    arguments = (grad_out,) if tin is None else (grad_out, tin)
    key = (in_force.draws.next_key(backend),) if is_random else ()
    return call(*arguments, *values, *key)


Find = Callable[
    [Specialization, Backend, Tensor, Tensor | None, tuple[Any, ...]], EmittedRule | None
]
_opaque: dict[str, tuple[Find, Callable[..., Any]]] = {}  # by backend


def _make_opaque(backend: Backend) -> tuple[Find, Callable[..., Any]]:
    # A compiler that reads Python would enter the capture.
    opaque = backend.compiler.opaque
    made = (find_rule, _act) if opaque is None else (opaque(find_rule), opaque(_act))
    return _opaque.setdefault(backend.name, made)


def find_rule(
    specialization: Specialization,
    backend: Backend,
    grad_out: Tensor,
    tin: Tensor | None,
    values: tuple[Any, ...],
) -> EmittedRule | None:
    """Return the emitted rule, whether it is random, what it lacks by dtype; None: run as is."""
    if specialization.rule.native is True:
        return None
    leaves = (grad_out, *values)
    rows = [Leaf("tensor", "grad_out", "grad_out", dtype_name(grad_out.dtype))]
    rows += [Leaf("number", name, name) for name in specialization.runtime]
    layout = lay_out(optree.tree_structure((leaves, {}), none_is_leaf=True), rows)
    while True:
        try:
            facts = gather_facts(specialization.subject, specialization.code.facts, layout, leaves)
        except NotCaptured as error:
            raise error.error from None
        key = (backend.name, tin is None, grad_out.dtype, items_key(facts))
        emitted = specialization.code.entries.get(key, _MISSING)
        if emitted is not _MISSING:
            return emitted
        build = functools.partial(_build, specialization, backend, tin is not None, facts)
        try:
            with calling(grad_out if tin is None else tin, specialization.params(values)):
                return build_once(specialization.code.entries, key, build, MOST_ENTRIES)
        except NeedsConcrete:
            continue  # `facts` have grown: look again


def _build(
    specialization: Specialization, backend: Backend, has_tin: bool, facts: Mapping[str, Any]
) -> EmittedRule | None:
    # Another thread's capture may have found that more is needed.
    if not specialization.code.facts <= facts.keys():
        raise NeedsConcrete(*specialization.code.facts, noted=False)
    try:
        graph = specialization.graph(has_tin, facts)
        specialization.prove_dtype(has_tin, facts)
    except TraceError as error:
        specialization.give_up(error)
        return None
    lacking = find_lacking(specialization.subject, backend, graph)
    emitted = emit_rule_once(graph, backend, specialization.code.emitted)
    return emitted, graph.input("key") is not None, lacking


# --- many gradients, in as few calls of the framework as it has -----------------------------------
# Rules that draw, that ask for facts of their input, or whose params are tensors act on one
# gradient after another; so do all rules where a framework has no such call.
def apply_to_many(
    in_force: RuleInForce, gradients: Sequence[Tensor], in_place: bool, *tries: bool
) -> list[Tensor] | None:
    """Apply a rule in force to gradients of one class and dtype; None: apply it to each instead.

    With one more True, in place, nothing is written, and an empty list says that it would be.
    """
    backend = backend_of(gradients[0])
    if backend.autodiff.many is None:
        return None
    in_force = at_present(in_force, backend)
    if not all(type(value) is float for value in in_force.values):
        return None
    _, act = _opaque.get(backend.name) or _make_opaque(backend)
    return act(in_force, gradients, backend, in_place, *tries)


def _act(
    in_force: RuleInForce,
    gradients: Sequence[Tensor],
    backend: Backend,
    in_place: bool,
    *tries: bool,
) -> list[Tensor] | None:
    specialization, values = in_force.specialization, in_force.values
    first = gradients[0]
    check_float(first, specialization.rule)
    check_values(specialization.subject, specialization.runtime, backend, first, values)
    emitted = find_rule(specialization, backend, first, None, values)
    if (
        emitted is None
        or emitted[1]
        or specialization.code.facts
        or specialization.rule.shards is not None
    ):
        return None
    refuse_lacking(emitted[2], dtype_name(first.dtype))
    key = ("many", backend.name, in_place)
    build = functools.partial(_build_many, specialization.graph(False, {}), backend, in_place)
    run = build_once(specialization.code.entries, key, build, MOST_ENTRIES)
    return None if run is None else run(gradients, values, *tries)


def _build_many(graph: Graph, backend: Backend, in_place: bool) -> Any:
    assert backend.autodiff.many is not None
    emit = functools.partial(emit_bare_rule, backend=backend)
    return backend.autodiff.many(graph, emit, in_place)
