"""Rules: a Python function (or a chain of rules) and its parameters, and what it does.

Three objects, from the author's to the machine's: a `Rule` is what people hold; a `Specialization`
is a rule with its static params fixed, and owns graphs and lowered code; a `BoundRule` is one with
values for its run-time params.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeVar

from ...capture.code.signature import called_method, name_of
from ...errors import RuleError
from ...functions.documents.rules import encode_rule
from ...functions.function import Function
from ...graph.support.params import Fused, Shards, read_fused, read_shards
from ...lowering.function_graph import read_way
from ...lowering.names import ActivationName
from ...trace.scope.identity import function_key
from ...trace.trace import Trace
from ...trace.xp import all as xp
from . import names
from .binding import make_bound_rule, value_token
from .definition import ATTRIBUTES, RuleDefinition
from .forwards_of_code import as_forward
from .running import call_rule, record_rule, run_written
from .specialization import BoundRule, Specialization, read_number
from .under import put_under

__all__ = [
    "BoundRule",
    "Rule",
    "Specialization",
    "as_rule",
    "make_bound_rule",
    "read_number",
    "value_token",
]
Tensor = Any
T = TypeVar("T")


class Rule(RuleDefinition):
    """A gradient rule: `rule(None, grad_out, tin, **params)` on NumPy arrays and any framework's
    tensors.

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
        native: see `register`.
        first_order: see `register`.
        library: the one whose methods the function means, "" where the code tells.
        prove: see `register`.
        shards: see `over`; None: the framework's own meaning.
        fused: see `xg.activation`; `rule.copy(fused=True)` gives the rule with another.
    """

    # Tells AutoGraph that nothing is to be converted.
    autograph_info__: ClassVar[dict[str, Any]] = {}

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
        return self._over_shards(read_shards(over, axis_name))

    def _over_shards(self, shards: Shards | None) -> Rule:
        """Return this rule over shards; see `over`.

        Examples:
            >>> clip = xg.get("clip_norm").over("global")
            >>> xg.get("noise")._over_shards(clip.shards)  # the shards of another rule
            <Rule noise(sigma=0.1), over='global'>
        """
        other = self.copy(shards=shards)
        if shards is not None:
            other._specializations = self._over.setdefault(shards, {})
        return other

    def keeping(self, residuals: str) -> Rule:
        """Return this rule with a choice of what forward keeps for it: the same numbers, other
        bytes and time.

        Examples:
            >>> packed = xg.get("rectangular").keeping("packed")
            >>> xg.memory("rectangular", (8000,)).total, xg.memory(packed, (8000,)).total
            (8000, 1000)

        Args:
            residuals: "auto", "input", "mask", "packed", "recompute" or "time"; see
                `Function.keeping`.

        Raises:
            RuleValueError: it is another word.
        """
        return self.copy(residuals=read_way(residuals, f"rule {self.name!r}"))

    def under(self, forward: ActivationName | Callable[..., Any]) -> Function[..., Any]:
        """Return this rule under an activation: a Function whose forward is the activation and
        whose backward the rule.

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
        return put_under(bound_rule.specialization, as_forward(forward)).with_defaults(
            bound_rule.values
        )

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
        return self(None, xp.ones_like(x), x, **params)

    factor.__dict__.update(autograph_info__={})  # a method has none of its class

    def bound_rule(self, params: Mapping[str, Any] | None = None) -> BoundRule:
        """Return this rule with values for its params, checked.

        Examples:
            >>> xg.get("triangular").bound_rule({"width": 2.0}).values
            (2.0,)

        Raises:
            RuleTypeError: an unknown param, a missing one or a wrong kind of value.
            RuleValueError: a value is out of its range.
        """
        return make_bound_rule(self, params)

    def _run(self, trace: Trace, grad_out: Any, tin: Any, params: Mapping[str, Any]) -> Any:
        """Apply the rule inside a capture."""
        return record_rule(self, trace, grad_out, tin, params)

    def _run_native(
        self, ctx: Any, grad_out: Tensor, tin: Tensor | None, params: Mapping[str, Any]
    ) -> Tensor:
        """Apply the rule as it is, on a framework's tensors.

        Examples:
            >>> rule = xg.get("triangular")
            >>> rule._run_native(None, np.ones(2), np.array([0.0, 0.5]), {"width": 2.0})
            array([1.  , 0.75])
        """
        return run_written(self, ctx, grad_out, tin, params)

    def __call__(
        self, /, ctx: Any, grad_out: T, tin: Tensor | None, *args: Any, **params: Any
    ) -> T:
        """Apply the rule: return the gradient for `tin` (shape and dtype of tin, or of grad_out).

        `args` are params in the order of the rule's signature; `key=` seeds a random rule.
        """
        return call_rule(self, (ctx, grad_out, tin), args, params)

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
        known = names.registered(self.name)
        if known is self:
            return _by_name, (self.name, {})
        if known is not None and known.function is self.function is not None and not known.bound:
            told = (self.shards, self.fused, self.residuals)
            return _by_name, (self.name, dict(self.bound), *told)
        own = {name: getattr(self, name) for name in ATTRIBUTES}
        own["bound"] = dict(self.bound)
        return _rebuild, ({**own, "ranges": dict(self.own_ranges)} if self.own_ranges else own,)


def _by_name(
    name: str,
    bound: Mapping[str, Any],
    shards: Shards | None = None,
    fused: Fused = "auto",
    residuals: str = "auto",
) -> Rule:
    rule = names.get(name)
    rule = rule.with_params(**bound) if bound else rule
    rule = rule if shards is None else rule.copy(shards=shards)
    rule = rule if fused == "auto" else rule.copy(fused=fused)
    return rule if residuals == "auto" else rule.keeping(residuals)


def _rebuild(attributes: dict[str, Any]) -> Rule:
    return Rule(**attributes)


# A rule lives as long as someone holds it; what was made of it, as long as the functions it is made
# of (codes.py).
_wrapped: weakref.WeakValueDictionary[Any, Rule] = weakref.WeakValueDictionary()


def as_rule(
    function: Any,
    name: str | None = None,
    native: bool | None = None,
    first_order: bool = False,
    library: str = "",
) -> Rule:
    """Wrap a function as a Rule; a Rule is renamed. Without a name, one function gives one Rule."""
    if isinstance(function, Rule):
        return function.copy(
            name=name or function.name,
            native=function.native if native is None else native,
            first_order=function.first_order or first_order,
            library=library or function.library,
        )
    own_name, function = name_of(function), called_method(function)
    if name is not None:
        return Rule(
            name=name, function=function, native=native, first_order=first_order, library=library
        )
    key = function_key(function)
    known = _wrapped.get(key)
    if known is None:
        known = _wrapped.setdefault(key, Rule(name=own_name, function=function))
    return known


def resolve(rule: str | Rule | Callable[..., Any]) -> Rule:
    """Return the Rule for which a name, a Rule or a plain function currently stands.

    Examples:
        >>> from multigrad.registry import resolve
        >>> resolve(lambda ctx, grad_out, tin: grad_out).params  # a function is a rule
        {}
    """
    found = names.get(rule)
    return found if isinstance(found, Rule) else as_rule(found)


def rule_over(
    rule: Any, over: Any = None, axis_name: Any = None, residuals: str | None = None
) -> Any:
    """Return a rule as it was given, or over shards, or with a choice of what is kept; a name is
    still looked up when it is used.

    Raises:
        RuleError: there is no rule to say it of.
        RuleValueError: see `Rule.over` and `Rule.keeping`.
    """
    if residuals is not None:
        way = read_way(residuals, "a rule")
        if rule is None:
            raise RuleError(f"residuals={way!r} needs a rule: name the rule here too")
        named = isinstance(rule, str)
        rule = _named_keeping(rule, way) if named else resolve(rule).keeping(way)
    shards = read_shards(over, axis_name)
    if shards is None:
        return rule
    if rule is None:
        raise RuleError(f"{shards} needs a rule: name the rule here too")
    return (
        _named_over(rule, shards) if isinstance(rule, str) else resolve(rule)._over_shards(shards)
    )


def rule_fused(rule: Any, fused: Fused) -> Any:
    """Return a rule as it was given, or run by kernels, or without; a name is still looked up when
    it is used.

    Raises:
        RuleError: there is no rule to say it of.
        RuleTypeError: see `read_fused`.
    """
    if read_fused(fused) == "auto":
        return rule
    if rule is None:
        raise RuleError(f"fused={fused} needs a rule: name the rule here too")
    return _named_fused(rule, fused) if isinstance(rule, str) else resolve(rule).copy(fused=fused)


@functools.lru_cache(256)
def _named_fused(name: str, fused: Fused) -> Rule:
    return Rule(name=name, parts=(name,), fused=fused)


@functools.lru_cache(256)
def _named_keeping(name: str, residuals: str) -> Rule:
    return Rule(name=name, parts=(name,), residuals=residuals)


@functools.lru_cache(256)
def _named_over(name: str, shards: Shards) -> Rule:
    return Rule(name=name, parts=(name,), shards=shards)
