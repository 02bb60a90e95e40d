"""`Rule`: a Python function (or a chain of rules), its parameters, and what can be done with it.

Three objects, from the author's to the machine's: a `Rule` is what people hold; a `RuleInForce` is
one with values for its params; a `Specialization` is a rule with its static params fixed, and owns
graphs and lowered code.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Never, Self, TypeVar

from ...errors import FormatError, RuleTypeError, TraceError
from ..support.lazy_modules import late_function, of_engine
from ..support.params import (
    FixedParams,
    Fused,
    Range,
    both,
    is_address,
    read_fused,
    read_shards,
    read_way,
)
from ..support.pickles import pickled
from ..support.tracebacks import shorten
from . import rule_names
from .signature import Signature, check_value, read_signature, unknown_param

if TYPE_CHECKING:
    from ...engine.functions.function import Function
    from ...engine.support.shards import Shards
    from ..lowering.forwards import ActivationName
    from .rule_in_force import RuleInForce
    from .specialization import Specialization

# What captures and applies rules is half of the package: registering one loads none of it.
bind = late_function("multigrad.core.rules.rule_in_force:bind")
bind_addressed = late_function("multigrad.core.rules.rule_in_force:bind_addressed")
words_of = late_function("multigrad.core.rules.rule_in_force:words_of")
put_under = late_function("multigrad.core.rules.activation_function:put_under")
as_forward = late_function("multigrad.core.rules.activation_function:as_forward")
call_rule = late_function("multigrad.core.rules.rule_application:call_rule")
call_with_ones = late_function("multigrad.core.rules.rule_application:call_with_ones")

Tensor = Any
T = TypeVar("T")
VOID: Any = inspect.Parameter.empty  # a default that signatures do not show
ATTRIBUTES = (
    "name", "function", "parts", "native", "bound", "first_order", "library", "prove", "shards",
    "fused", "residuals",
)  # fmt: skip
# Rules that differ in these alone share what they were made into: bound values run as params do,
# and the others are part of its key.
SHARING = frozenset({"bound", "shards", "fused", "residuals"})
NO_RANGES: Mapping[str, Range] = types.MappingProxyType({})
NO_CHOICES: Mapping[str, Any] = types.MappingProxyType({})


class Rule:
    """A gradient rule, called on arrays and tensors: `rule(None, grad_out, tin, **params)`.

    Examples:
        >>> rule = xg.get("triangular")
        >>> rule.params
        {'width': 1.0}
        >>> rule(None, np.array([1.0, 10.0]), np.array([0.0, 0.5]))
        array([1., 5.])
        >>> rule.with_params(width=2.0)
        <Rule triangular with width=2.0>

    Attributes:
        name: the name it was registered under, or the function's.
        params: the parameters that may be set, with their defaults.
        native, first_order, prove: see `register`.
        library: the one whose methods the function calls; "": its code tells.
        shards: see `over`; None: the framework's own meaning.
        fused: see `xg.activation`; `rule.copy(fused=True)` gives the rule with another.
    """

    # Tells AutoGraph to convert nothing.
    autograph_info__: ClassVar[dict[str, Any]] = {}

    def __init__(
        self,
        *,
        name: str,
        function: Callable[..., Any] | None = None,
        parts: tuple[Any, ...] = (),
        native: bool | None = None,
        bound: Mapping[str, Any] | None = None,
        first_order: bool = False,
        library: str = "",
        prove: bool = True,
        ranges: Mapping[str, Range] | None = None,
        shards: Shards | None = None,
        fused: Fused = "auto",
        residuals: str = "auto",
    ) -> None:
        self.shards = shards
        self.fused = read_fused(fused)
        self.residuals = residuals
        self.own_ranges = NO_RANGES if not ranges else types.MappingProxyType(dict(ranges))
        self.first_order = first_order
        self.library = library
        self.prove = prove
        self.name = name
        self.function = function
        self.parts = parts
        self.native = native
        self.bound = types.MappingProxyType(dict(bound or {}))
        # By what the rule does now (its parts are names, whose meaning may change), then by params;
        # `copy` shares it where it can.
        self._specializations: dict[Any, dict[Any, Specialization]] = {}
        self.signature_of_function: Any = None if parts else read_signature(name, function)
        # A missing function has no docstring; None itself has one from Python 3.13 on.
        docstring = None if function is None else function.__doc__
        self.__doc__ = docstring or f"{name} applied in series."
        self.__name__ = getattr(function, "__name__", name)
        # None if `exec` made it.
        self.__module__ = getattr(function, "__module__", None) or type(self).__module__
        if function is not None:
            self.__wrapped__ = function

    def __repr__(self) -> str:
        return f"<Rule {words_of(self, with_params=True)}>"

    @property
    def _words(self) -> str:
        return words_of(self)

    @property
    def signature(self) -> Signature:
        """What may be set from outside: own or the parts' params, without the bound ones.

        Examples:
            >>> xg.get("rectangular").signature.takes("a")
            True
            >>> xg.get("rectangular").with_params(a=-0.5).signature.takes("a")
            False
        """
        if self.signature_of_function is not None:
            params = dict(self.signature_of_function.params)
            takes_any = self.signature_of_function.takes_any
        else:
            params, takes_any = {}, False
            for part in self._resolved_parts():
                inner = part.signature
                takes_any = takes_any or inner.takes_any
                for param in inner.params.values():
                    params.setdefault(param.name, param)
        free_params = {name: param for name, param in params.items() if name not in self.bound}
        return Signature(free_params, takes_any)

    @property
    def params(self) -> dict[str, Any]:
        """The parameters that may be set, with their defaults.

        `inspect.Parameter.empty` stands for none: such a parameter is required.

        Examples:
            >>> xg.get("rectangular").params
            {'a': -0.5, 'b': 0.5}
            >>> xg.get("rectangular").with_params(a=-0.5).params
            {'b': 0.5}
        """
        defaults = {name: param.default for name, param in self.signature.params.items()}
        return FixedParams(defaults, "write rule.with_params(name=value)")

    @property
    def ranges(self) -> Mapping[str, Range]:
        """The ranges of the parameters that may be set, for those that have one.

        Examples:
            >>> {name: allowed.text for name, allowed in xg.get("triangular").ranges.items()}
            {'width': '>= 0'}
        """
        ranges = dict(self.own_ranges)
        for part in self._resolved_parts():
            for name, limits in part.ranges.items():
                ranges[name] = both(ranges.get(name), limits)
        for name in self.bound:
            ranges.pop(name, None)
        return types.MappingProxyType(ranges)

    def _check_ranges(self, values: Mapping[str, Any], *, with_defaults: bool = False) -> None:
        # `with_defaults`: params that are not given have theirs.
        if with_defaults and self.own_ranges:
            values = {**self.params, **values}
        wrong = [
            name
            for name, limits in self.own_ranges.items()
            if name in values and not limits.holds(values[name], values)
        ]
        # Of two that do not fit each other the one that was given is to blame, not a default.
        given = [name for name in wrong if values[name] != self.params.get(name)]
        for name in (*given, *wrong):
            self.own_ranges[name].check(f"rule {self.name!r}", name, values[name], values)
        for part in self._resolved_parts():
            part._check_ranges(
                {**part.signature.select(values), **part.bound}, with_defaults=with_defaults
            )

    def _resolved_parts(self) -> tuple[Self, ...]:
        return tuple(rule_names.get(part) for part in self.parts)

    def with_params(self, /, *others: Never, **params: Any) -> Self:
        """Return this rule with some params bound, which can no longer be set from outside.

        Examples:
            >>> chain = xg.compose("clip_norm", "noise", "noise")
            >>> chain = chain.with_params(max_norm=1.0, **{"noise[1].sigma": 0.01})
            >>> chain
            <Rule (clip_norm → noise → noise(sigma=0.01))(max_norm=1.0)>

        A param of a composed rule reaches every part that declares it; "noise.sigma" is that of
        one part alone, "noise[1].sigma" where several have the name. The part is then the rule
        that has the name now.

        Raises:
            RuleTypeError: the rule takes no such param, or not that kind of value.
            RuleValueError: a value is out of its range.
        """
        if others:
            raise RuleTypeError(
                f"rule {self.name!r}: with_params takes params by name, such as "
                f"with_params(width=1.0), got {type(others[0]).__name__} {others[0]!r:.40}"
            )
        if any(map(is_address, params)) and self.parts:
            rule, params = bind_addressed(self, params)
            return rule.with_params(**params)
        signature = self.signature
        self._check_names(params, signature)
        bound = dict(self.bound)
        for name, value in params.items():
            bound[name] = check_value(self.name, signature.param(name), value)[1]
        self._check_ranges(bound)
        return self.copy(bound=bound)

    def copy(self, **changes: Any) -> Self:
        """Return this rule with other attributes.

        Examples:
            >>> renamed = xg.get("triangular").copy(name="hat")
            >>> renamed
            <Rule hat(width=1.0)>
        """
        attributes = {name: getattr(self, name) for name in ATTRIBUTES}
        twin = type(self)(**{"ranges": self.own_ranges, **attributes, **changes})
        if changes.keys() <= SHARING:
            twin._specializations = self._specializations
        return twin

    def _frozen(self) -> Self:
        """Return this rule with what its parts' names mean now, and the options they give it."""
        if self.function is not None:
            return self
        parts = tuple(part._frozen() for part in self._resolved_parts())
        native = self.native
        # A part that runs as written makes the whole do so, else one that must be captured.
        for is_native in (True, False):
            if native is None and any(part.native is is_native for part in parts):
                native = is_native
        first_order = all(part.first_order for part in parts)
        return self.copy(parts=parts, native=native, first_order=first_order)

    def _check_names(self, params: Mapping[str, Any], signature: Signature) -> None:
        for name in params:
            if name in self.bound or (not signature.takes(name) and self._binds(name)):
                raise RuleTypeError(
                    f"rule {self.name!r}: param {name!r} is bound by with_params, so it "
                    "can no longer be set"
                )
            if not signature.takes(name):
                raise unknown_param(self.name, name, sorted(signature.params))

    def _binds(self, name: str) -> bool:
        return name in self.bound or any(part._binds(name) for part in self._resolved_parts())

    def over(self, over: Any = None, *, axis_name: Any = None) -> Rule:
        """Return this rule for tensors that are parts of an array, over which it reduces and draws.

        Examples:
            >>> clip = xg.get("clip_norm").over("global")  # of the whole batch, on each replica
            >>> clip
            <Rule clip_norm(max_norm=1.0, eps=1e-12), over='global'>
            >>> clip(None, np.array([3.0, 4.0]), None, max_norm=1.0)
            array([0.6, 0.8])

        Without it a tensor means what its framework says: the whole array under jax's automatic
        sharding and for a torch DTensor, the part in hand in `shard_map`, in data-parallel torch
        and on the replicas of `tf.distribute`. A rule that acts on single elements and draws
        nothing is the same either way, and communicates nothing.

        Args:
            over: "global": the tensor in hand is a part, along its first axis, of an array that is
                split over every shard. "shard": each shard is an array of its own. Or a partition
                spec, as jax's: for each axis of the array None, the name of a mesh axis or group,
                or a tuple of them. None with no `axis_name`: as the framework has it.
            axis_name: the mesh axes or the group that the first axis of the array is split over: a
                name, a tuple of names, a torch process group or mesh of one dimension.

        Returns:
            A rule whose norms, means and other reductions are those of the whole array, and whose
            draws under a key are this part of what the entire array would draw.

        Raises:
            RuleValueError: they say nothing that is known, or contradict each other.
        """
        return self.copy(shards=read_shards(over, axis_name))

    def keeping(self, residuals: str) -> Rule:
        """Return this rule with a choice of what forward keeps for it.

        The numbers stay the same; bytes and time do not.

        Examples:
            >>> packed = xg.get("rectangular").keeping("packed")
            >>> xg.memory("rectangular", (8000,)).total, xg.memory(packed, (8000,)).total
            (8000, 1000)

        Args:
            residuals: "auto", "input", "mask", "packed", "recompute" or "time"; see
                `Function.keeping`.

        Raises:
            RuleValueError: it is none of these words.
        """
        return self.copy(residuals=read_way(residuals, f"rule {self.name!r}"))

    def under(self, forward: ActivationName | Callable[..., Any]) -> Function[..., Any]:
        """Return a Function whose forward is an activation and whose backward is this rule.

        Examples:
            >>> spike = xg.get("triangular").under("Heaviside")
            >>> y, pull = xg.vjp(spike, np.array([-0.5, 0.5]), 2.0)  # 2.0 is the width
            >>> y, pull(np.ones(2))[0]
            (array([0., 1.]), array([0.75, 0.75]))

        The Function takes the tensor, then the run-time params in alphabetical order, which default
        to this rule's own.

        Args:
            forward: an activation's name, or a function of one tensor, as `xg.activation` takes
                them.

        Raises:
            RuleError: there is no such activation (also a ValueError), or the rule needs a param
                (also a TypeError).
        """
        bound_rule = self.bound_rule()
        function = put_under(bound_rule.specialization, as_forward(forward))
        return as_function(function).with_defaults(bound_rule.values)

    def factor(self, x: T, threshold: Any = None, /, **params: Any) -> T:
        """Return the surrogate's derivative at x: the rule's result for a gradient of ones.

        A rule that multiplies the gradient element by element is this factor times the gradient.
        For any other rule, such as `clip_norm` or a sign, it is only the result for ones.

        Examples:
            >>> xg.get("triangular").factor(np.array([-1.0, 0.0, 0.5]), width=2.0)
            array([0.5 , 1.  , 0.75])
            >>> xg.get("triangular").factor(np.array([0.5, 1.0]), 1.0)  # membrane, threshold
            array([0.5, 1. ])

        Args:
            x: the forward's input (for spiking units: membrane minus threshold), a tensor of any
                framework or a NumPy array.
            threshold: with it x is the membrane alone, as where sinabs asks; the factor is that of
                x - threshold. A rule with a param of that name gets it too.
            params: values for the rule's params; `key=` seeds a random rule.

        Returns:
            The factor, of x's shape, dtype and device.

        Raises:
            RuleError, GradientError: as a call of the rule.
        """
        if threshold is not None:
            x = x - threshold
            if self.signature.takes("threshold"):
                params = {"threshold": threshold, **params}
        return call_with_ones(self, x, params)

    factor.__dict__.update(autograph_info__={})  # AutoGraph does not look at a method's class

    def bound_rule(self, params: Mapping[str, Any] | None = None) -> RuleInForce:
        """Return this rule with values for its params, checked.

        Examples:
            >>> xg.get("triangular").bound_rule({"width": 2.0}).values
            (2.0,)

        Raises:
            RuleTypeError: an unknown param, a missing one or a wrong kind of value.
            RuleValueError: a value is out of its range.
        """
        return bind(self, params)

    def _run_native(
        self, ctx: Any, grad_out: Tensor, tin: Tensor | None, params: Mapping[str, Any]
    ) -> Tensor:
        values = {**params, **self.bound}
        if self.function is not None:
            return self.function(ctx, grad_out, tin, **self.signature_of_function.select(values))
        for part in self._resolved_parts():
            grad_out = part(ctx, grad_out, tin, **part.signature.select(values))
        return grad_out

    def __call__(
        self, /, ctx: Any, grad_out: T = VOID, tin: Tensor | None = VOID, *args: Any, **params: Any
    ) -> T:
        """Apply the rule: return the gradient for `tin` (shape and dtype of tin, or of grad_out).

        `args` are params in the order of the rule's signature; `key=` seeds a random rule.
        """
        try:
            if tin is VOID:
                raise RuleTypeError(
                    f"rule {self.name!r} is called as rule(ctx, grad_out, tin); where a function "
                    f"of one tensor is wanted, as spike_grad=, write "
                    f"xg.activation('Heaviside', {self.name!r})"
                )
            if args:
                names = list(self.signature.params)
                if len(args) > len(names):
                    raise RuleTypeError(
                        f"rule {self.name!r} takes {len(names)} params, got {len(args)} more "
                        "arguments"
                    )
                params = {**dict(zip(names, args, strict=False)), **params}
            if any(map(is_address, params)) and self.parts:
                rule, params = bind_addressed(self, params)
                return rule(ctx, grad_out, tin, **params)
            return call_rule(self, ctx, grad_out, tin, params)
        except Exception as error:
            shorten(error)
            raise

    def to_dict(self) -> dict[str, Any]:
        """Return this rule as plain data, which `xg.from_dict` reads and `xg.save` writes as JSON.

        Examples:
            >>> data = xg.get("triangular").to_dict()
            >>> data["name"], data["kind"]
            ('triangular', 'rule')

        Raises:
            TraceError: it cannot be captured, so there is no graph to save.
            FormatError: it has more than a document holds.
        """
        return encode_rule(self)

    def __reduce__(self) -> Any:
        # A registered rule pickles by name, so that functions made by a decorator pickle too.
        known = rule_names.RULES.get(self.name)
        if known is self:
            return pickled(_by_name, self.name, {})
        if known is not None and known.function is self.function is not None and not known.bound:
            choices = {"shards": self.shards, "fused": self.fused, "residuals": self.residuals}
            return pickled(_by_name, self.name, dict(self.bound), choices)
        attributes = {name: getattr(self, name) for name in ATTRIBUTES}
        # A mapping proxy does not pickle.
        attributes["bound"] = dict(self.bound)
        if self.own_ranges:
            attributes["ranges"] = dict(self.own_ranges)
        # As an argument, so that a deep copy copies what is bound: schedules count by themselves.
        return pickled(_rebuild, attributes)


as_function = of_engine(__name__, "as_function", "a rule as a Function to be called", TraceError)
encode_rule = of_engine(__name__, "encode_rule", "saving a rule", FormatError)


def _rebuild(attributes: dict[str, Any]) -> Rule:
    return Rule(**attributes)


def _by_name(name: str, bound: Mapping[str, Any], choices: Mapping[str, Any] = NO_CHOICES) -> Rule:
    rule = rule_names.get(name)
    rule = rule.with_params(**bound) if bound else rule
    changes = {word: each for word, each in choices.items() if each != getattr(rule, word)}
    return rule.copy(**changes) if changes else rule
