"""From a rule under a forward to a native object, and from a call to that object.

A miss runs capture, passes and emission once; afterwards an entry is one dictionary hit away. What a capture needed
to know about its input (rank, shape, dtype, a param's value) becomes part of the entry's key.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..errors import GradientError, MultigradError, TraceError, UnsupportedOp
from ..forwards import Forward, find_forward
from ..function import Function
from ..ir.graph import Graph
from ..ir.record import NeedFact
from ..ir.types import UNKNOWN
from .backend import Backend, backend_among, backend_of, load_backend
from .emit import Body, Emission, compile_source, emit_body, identifier

if TYPE_CHECKING:
    from ..context import Application
    from ..rule import Family, Rule

Tensor = Any
RESERVED = (
    "ctx", "tin", "grad_out", "key", "residuals", "output", "forward", "backward", "draw_key", "tangent", "primals", "tangents", "inputs", "cls", "args",
)
Entry = Callable[..., Any]
_lock = threading.RLock()


class NativeRuleWarning(UserWarning):
    """A rule could not be captured and runs as it is, in one framework only."""


@dataclass(frozen=True, slots=True, eq=False)
class Lowering:
    """A Function made ready for one backend: what `render` turns into source.

    Attributes:
        name: "rule under forward".
        identifier: a Python name for the class or function.
        forward: code of `tin -> output`.
        backward: code of `grad_out, [tin], *params, [key] -> grad`.
        params: the values that a call takes after the tensor: run-time params, then "key" if random.
        saves: whether backward reads tin's values.
        defaults: values for params where the object is for people to call; "key" is then drawn.
        check: the name of the shape check to apply to the result, or "".
        tangent: code of `tangent, [tin], *params -> tangent of the output`, where forward mode is asked for.
    """

    name: str
    identifier: str
    forward: Body
    backward: Body
    params: tuple[str, ...]
    saves: bool
    defaults: Mapping[str, Any] = field(default_factory=dict)
    check: str = ""
    tangent: Body | None = None

    @property
    def signature(self) -> str:
        """The params as they follow `tin` in a parameter list: ", width=1.0, key=None"."""
        words = []
        for name in self.params:
            if not self.defaults:
                words.append(f", {name}")
            else:
                words.append(f", {name}={self.defaults.get(name)!r}")
        return "".join(words)

    @property
    def arguments(self) -> str:
        """The params as they follow `tin` in a call: ", width, key"."""
        return "".join(f", {name}" for name in self.params)

    @property
    def draws(self) -> bool:
        """Whether a missing key is drawn from the framework's generator (name `draw_key`)."""
        return "key" in self.params and bool(self.defaults)

    @property
    def grad_in(self) -> str:
        """The expression that backward returns."""
        return f"{self.check}({self.backward.result}, grad_out)" if self.check else self.backward.result


@dataclass(slots=True)
class Lowered:
    """The result of lowering: the native object, its source, and how to call it."""

    native: Any
    source: str
    call: Callable[..., Any]
    lowering: Lowering | None = field(default=None)


def lower_function(
    function: Function,
    backend: Backend,
    defaults: Mapping[str, Any] | None = None,
    forward_mode: bool = False,
) -> Lowered:
    """Emit, compile and attach a Function on a backend."""
    emission = Emission(backend, function.backward.name)
    # The template's own words must not be taken by a param or an op.
    emission.taken.update(RESERVED, function.params)
    emission.namespace.update(backend.namespace)
    forward = emit_body(function.forward, emission)
    backward = emit_body(function.backward, emission)
    tangent = None
    if forward_mode:
        from ..ir.linearity import tangent_map

        tangent = emit_body(tangent_map(function.backward), emission)
    check = ""
    if function.backward.outputs[0].type.shape == UNKNOWN:
        check = emission.bind("check_shape", _shape_check(function.backward.name))
    params = (*function.params, *(("key",) if function.is_random else ()))
    lowering = Lowering(
        function.name, identifier(function.name), forward, backward, params,
        bool(function.saves), _defaults(function, params, defaults), check, tangent,
    )  # fmt: skip
    if lowering.draws:
        emission.namespace["draw_key"] = backend.draw_key
    source = backend.render(lowering)
    namespace = compile_source(source, function.name, emission.namespace)
    native = backend.finish(namespace, lowering)
    return Lowered(native, source, backend.call(native, lowering), lowering)


def _defaults(
    function: Function, params: tuple[str, ...], defaults: Mapping[str, Any] | None
) -> Mapping[str, Any]:
    if defaults is None or not params:
        return {}
    return {**{name: None for name in params if name == "key"}, **defaults}


def _shape_check(rule: str) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the check of a result whose shape capture could not tell."""

    def check_shape(grad_in: Tensor, like: Tensor) -> Tensor:
        given, expected = tuple(grad_in.shape), tuple(like.shape)
        if len(given) != len(expected) or any(
            a != b for a, b in zip(given, expected, strict=True) if a is not None and b is not None
        ):
            raise GradientError(
                f"rule {rule!r} returned shape {given} for an input of shape {expected}; "
                f"use keepdims=True where it reduces"
            )
        return grad_in

    return check_shape


# --- entries: what a call finds ----------------------------------------------------------------------


def find_entry(family: Family, backend: Backend, forward: Forward) -> Entry:
    """Return `entry(tin, application) -> output`, built at the first call."""
    key = (backend.name, forward.name)
    entry = family.entries.get(key)
    if entry is None:
        with _lock:
            entry = family.entries.get(key)
            if entry is None:
                entry = _build_entry(family, backend, forward, key)
                family.entries[key] = entry
    return entry


def _build_entry(family: Family, backend: Backend, forward: Forward, key: Any) -> Entry:
    if family.rule.native is True:
        return _native_entry(family, backend, forward)
    try:
        lowered = lower_family(family, backend, forward, {})
    except NeedFact:
        return _fact_entry(family, backend, forward, key)
    except TraceError as error:
        _warn_native(family, error)
        return _native_entry(family, backend, forward)
    return _plain_entry(lowered, backend)


def lower_family(
    family: Family,
    backend: Backend,
    forward: Forward,
    facts: Mapping[str, Any],
    defaults: Mapping[str, Any] | None = None,
    forward_mode: bool = False,
) -> Lowered:
    """Lower a rule under a forward."""
    backward = family.graph(True, facts)
    name = f"{family.rule.name} under {forward.name}"
    return lower_function(Function(name, forward.graph(), backward), backend, defaults, forward_mode)


def find_lowered(
    family: Family,
    backend: Backend,
    forward: Forward,
    values: tuple[Any, ...],
    known: Mapping[str, Any],
) -> Lowered | None:
    """Lower where only some facts about the input are known; None: the rule runs as it is.

    Raises:
        TraceError: the rule needs to know more about its input than `known` says.
    """
    if family.rule.native is True:
        return None
    while True:
        facts: dict[str, Any] = {}
        for name in sorted(family.facts):
            if name.startswith("param:"):
                facts[name] = values[family.runtime.index(name.removeprefix("param:"))]
            elif name in known:
                facts[name] = known[name]
            else:
                raise TraceError(
                    f"rule {family.rule.name!r} needs the input's {name} in Python, which compiled "
                    f"code does not fix. Use x.shape[i] only in arithmetic"
                )
        try:
            return lower_family(family, backend, forward, facts)
        except NeedFact:
            continue
        except TraceError as error:
            _warn_native(family, error)
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

    return entry


def _fact_entry(family: Family, backend: Backend, forward: Forward, key: Any) -> Entry:
    """Return an entry that looks at its input first, one lowering per set of facts."""

    def entry(tin: Tensor, application: Application) -> Tensor:
        while True:
            facts = gather_facts(family, tin, application.spec.values)
            inner_key = (*key, tuple(facts.items()))
            inner = family.entries.get(inner_key)
            if inner is None:
                try:
                    inner = _plain_entry(lower_family(family, backend, forward, facts), backend)
                except NeedFact:
                    continue  # family.facts has grown: look again
                except TraceError as error:
                    _warn_native(family, error)
                    inner = _native_entry(family, backend, forward)
                family.entries[inner_key] = inner
            return inner(tin, application)

    return entry


def gather_facts(family: Family, x: Tensor, values: tuple[Any, ...]) -> dict[str, Any]:
    """Return what the family's capture needs to know about this call, in a fixed order."""
    facts: dict[str, Any] = {}
    for name in sorted(family.facts):
        if name == "dtype":
            facts[name] = str(x.dtype).replace("<dtype: '", "").rstrip("'>").rsplit(".", 1)[-1]
        elif name == "ndim":
            facts[name] = len(x.shape)
        elif name == "shape":
            facts[name] = _known_shape(family, x)
        else:
            param = name.removeprefix("param:")
            value = values[family.runtime.index(param)]
            if not isinstance(value, int | float):
                raise TraceError(
                    f"rule {family.rule.name!r} needs the value of param {param!r} in Python "
                    f"(a branch or a loop), but it is a tensor here. Pass a Python number"
                )
            facts[name] = value
    return facts


def _known_shape(family: Family, x: Tensor) -> tuple[int, ...]:
    shape = tuple(x.shape)
    if any(n is None for n in shape):
        raise TraceError(
            f"rule {family.rule.name!r} needs the input's shape in Python, "
            f"but it is {shape} here. Use x.shape[i] only in arithmetic"
        )
    return shape


def _warn_native(family: Family, error: TraceError) -> None:
    if family.rule.native is False:
        raise error
    if family.uncapturable is None:
        family.uncapturable = error
        warnings.warn(
            f"{error}. It runs as it is, in this framework only "
            f"(register it with native=True to say that this is meant)",
            NativeRuleWarning,
            stacklevel=6,
        )


def _native_entry(family: Family, backend: Backend, forward: Forward) -> Entry:
    """Return an entry whose backward calls the user's function on the framework's own tensors."""
    identity = Function("", forward.graph(), forward.graph())
    body = emit_body(identity.forward, emission := Emission(backend, family.rule.name))
    source = f"def forward(tin):\n{body.indented(4)}    return {body.result}\n"
    run_forward = compile_source(source, forward.name, emission.namespace)["forward"]

    def backward(ctx: Any, grad_out: Tensor, tin: Tensor, values: tuple[Any, ...]) -> Tensor:
        return run_as_it_is(family, ctx, grad_out, tin, values)

    native = backend.attach_native(run_forward, backward, family.rule.name)

    def entry(tin: Tensor, application: Application) -> Tensor:
        return native(tin, application.spec.values)

    return entry


def run_as_it_is(
    family: Family, ctx: Any, grad_out: Tensor, tin: Tensor | None, values: tuple[Any, ...]
) -> Tensor:
    """Call a rule's function on tensors and check what it returns.

    Raises:
        TraceError: it failed, and it had not been captured either.
        GradientError: the result is no tensor of the input's shape.
    """
    params = {**family.static, **dict(zip(family.runtime, values, strict=True))}
    rule = family.rule
    try:
        grad_in = rule.run_native(ctx, grad_out, tin, params)
    except MultigradError:
        raise
    except Exception as error:
        if family.uncapturable is None:
            raise
        owner = backend_of(grad_out).name
        raise TraceError(f"{family.uncapturable}; run as it is on {owner}, it failed: {error}") from error
    like = grad_out if tin is None else tin
    if grad_in is None or not hasattr(grad_in, "shape"):
        given = "None" if grad_in is None else f"a {type(grad_in).__name__}"
        raise GradientError(f"rule {rule.name!r} returned {given}; expected the gradient, like tin")
    _shape_check(rule.name)(grad_in, like)
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
        return backend.draw_key()
    n = next(application.counter)
    return backend.fold_in(application.key, n)


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


def apply_rule(
    application: Application, ctx: Any, grad_out: Tensor, tin: Tensor | None
) -> Tensor:
    """Apply a rule in force to a gradient, outside any autodiff; the result is like tin, or grad_out."""
    backend = backend_among((grad_out, tin))
    family = application.spec.family
    values = application.spec.values
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
        key = (backend.name, None, tin is None, tuple(facts.items()))
        if key not in family.entries:
            try:
                graph = family.graph(tin is not None, facts)
            except NeedFact:
                continue
            except TraceError as error:
                _warn_native(family, error)
                family.entries[key] = None
            else:
                family.entries[key] = emit_rule(graph, backend)[0], graph.input("key") is not None
        return family.entries[key]


def emit_rule(graph: Graph, backend: Backend) -> tuple[Callable[..., Any], str]:
    """Return a rule's graph as a plain function of one backend, and its source."""
    emission = Emission(backend, graph.name)
    body = emit_body(graph, emission)
    result = body.result
    if graph.outputs[0].type.shape == UNKNOWN:
        check = emission.bind("check_shape", _shape_check(graph.name))
        result = f"{check}({result}, grad_out)"
    name = identifier(graph.name)
    source = (
        f"def {name}({', '.join(body.parameters)}):\n{body.indented(4)}    return {result}\n"
    )
    function = compile_source(source, graph.name, emission.namespace)[name]
    if backend.name == "numpy":
        from .reference import quiet

        function = quiet(function)
    return function, source


# --- the public lower and source -----------------------------------------------------------------------


def lower(
    rule: Any, backend: str, *, forward: str = "Linear", forward_mode: bool = False
) -> Any:
    """Return the native object: what an expert would have written for this framework.

    Args:
        rule: a name, a Rule or a function; None is the forward's true derivative.
        backend: "torch", "jax", "tensorflow", "numpy" or a third party's.
        forward: the activation that the rule sits under.
        forward_mode: ask for an object that also supports forward mode (torch: a Function with `jvp`; jax:
            `custom_jvp`, where jax chooses what to keep); for rules that are linear in grad_out.

    Returns:
        torch: an `autograd.Function` subclass, `F.apply(x, *params)`; jax: a `custom_vjp` function; tensorflow:
        a function with a custom gradient; numpy: an object with `f(x)` and `f.vjp(x) -> (y, pullback)`. Run-time
        params follow the tensor, in alphabetical order, and default to the rule's own.

    Raises:
        RuleError, BackendNotFound, TraceError, UnsupportedOp: what each says.
    """
    return _lower(rule, backend, forward, forward_mode).native


def source(rule: Any, backend: str, *, forward: str = "Linear") -> str:
    """Return the source that is emitted for a rule under a forward, for reading and pasting.

    Raises:
        RuleError, BackendNotFound, TraceError, UnsupportedOp: as `lower`.
    """
    return _lower(rule, backend, forward, False).source


def _lower(rule: Any, backend_name: str, forward: str, forward_mode: bool) -> Lowered:
    from ..registry import resolve

    backend = load_backend(backend_name)
    row = find_forward(forward)
    if forward_mode and not backend.forward_mode:
        raise UnsupportedOp(
            f"backend {backend.name!r} has no custom forward mode; lower without forward_mode=True"
        )
    if rule is None:
        return lower_derivative(row, backend, forward_mode)
    spec = resolve(rule).spec()
    try:
        values = dict(zip(spec.family.runtime, spec.values, strict=True))
        return lower_family(spec.family, backend, row, {}, values, forward_mode)
    except NeedFact as need:
        raise TraceError(
            f"rule {spec.family.rule.name!r} needs {', '.join(need.facts)} of its input in Python; "
            f"lower it through xg.activation(...), which knows the input"
        ) from need


def lower_derivative(forward: Forward, backend: Backend, forward_mode: bool = False) -> Lowered:
    """Lower a forward with its true derivative."""
    name = f"d({forward.name}) under {forward.name}"
    function = Function(name, forward.graph(), forward.derivative())
    return lower_function(function, backend, forward_mode=forward_mode)
