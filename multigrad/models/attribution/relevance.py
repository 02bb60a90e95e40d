"""Layer-wise relevance propagation: rules as formulas, tables of shares, and their computation.

A share is a sum of parts, z = sum_p f(x_p; w_p, b_p), with f the layer and x_p, w_p, b_p its input,
weight and bias, modified. Relevance R at the layer's output, weighted for that share, comes back as

    sum_p x_p * transpose of f(.; w_p) (R / stabilize(z)),  stabilize(z) = z + e, or z - e if z < 0

and the relevance of x is the sum over the shares (Montavon et al., 2019, sections 10.2 and 10.3).
16-bit tensors are computed in float32 and rounded once.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np

from ...core.support.pickles import pickled
from ...core.trace.xp import all as xp
from ...engine.functions.calls.parameters import told_arguments
from ...engine.functions.custom_gradient import custom_gradient
from ...engine.functions.function import Function
from ...errors import RuleTypeError, RuleValueError, suggest
from ...estimators.declared import widened
from .kinds import IN_OUT, KINDS, LAYOUTS, Inputs, LayerKind, check_numbers, from_in_to_out

Tensor = Any
Modify: TypeAlias = Callable[..., Tensor]
ZeroParams: TypeAlias = str | Sequence[str] | None
ZERO_PARAMS = ("weight", "bias")


@dataclass(frozen=True, slots=True)
class SharePart:
    """How a part of a share sees the layer: each `(tensor, numbers) -> tensor`.

    Attributes:
        input: of x.
        param: of the weight.
        bias: of the bias; None: the part has none.
    """

    input: Modify
    param: Modify
    bias: Modify | None = None


@dataclass(frozen=True, slots=True)
class Share:
    """A share of the relevance, `weigh(relevance, out, numbers)`, and the parts that divide it."""

    parts: tuple[SharePart, ...]
    weigh: Modify


@dataclass(frozen=True, slots=True)
class Formula:
    """A rule as the literature writes it.

    Attributes:
        name: the rule's name.
        shares: the shares that it sums.
        numbers: the names of its numbers, which `Modify` gets by name.
        stabilizer: the name of the number that is added.
        is_plain: whether it modifies nothing: then it also holds for layers without weights.
    """

    name: str
    shares: tuple[Share, ...]
    numbers: tuple[str, ...]
    stabilizer: str = "stabilizer"
    is_plain: bool = False

    def applies_to(self, layer: LayerKind) -> bool:
        # Not by `has_weight`: each forward of a layer in eager code comes here.
        return layer.channels is not None or (self.is_plain and layer.forward is not None)


# --- how a part sees inputs and parameters ------------------------------------------------------


def same(x: Tensor, numbers: Any) -> Tensor:
    return x


def ones(x: Tensor, numbers: Any) -> Tensor:
    return xp.ones_like(x)


def squared(x: Tensor, numbers: Any) -> Tensor:
    return x * x


def positive(x: Tensor, numbers: Any) -> Tensor:
    return xp.maximum(x, 0.0)


def negative(x: Tensor, numbers: Any) -> Tensor:
    return xp.minimum(x, 0.0)


def more_positive(x: Tensor, numbers: Any) -> Tensor:
    return x + numbers["gamma"] * xp.maximum(x, 0.0)


def more_negative(x: Tensor, numbers: Any) -> Tensor:
    return x + numbers["gamma"] * xp.minimum(x, 0.0)


def minus_low(x: Tensor, numbers: Any) -> Tensor:
    return xp.zeros_like(x) - numbers["low"]


def minus_high(x: Tensor, numbers: Any) -> Tensor:
    return xp.zeros_like(x) - numbers["high"]


# --- the relevance that a share divides -----------------------------------------------------------


def whole(relevance: Tensor, out: Tensor, numbers: Any) -> Tensor:
    return relevance


def where_positive(relevance: Tensor, out: Tensor, numbers: Any) -> Tensor:
    return xp.where(out > 0, relevance, 0.0)


def where_negative(relevance: Tensor, out: Tensor, numbers: Any) -> Tensor:
    return xp.where(out < 0, relevance, 0.0)


def alpha_times(relevance: Tensor, out: Tensor, numbers: Any) -> Tensor:
    return numbers["alpha"] * relevance


def minus_beta_times(relevance: Tensor, out: Tensor, numbers: Any) -> Tensor:
    return -numbers["beta"] * relevance


# --- the formulas -------------------------------------------------------------------------------

PLAIN = Share((SharePart(same, same, same),), whole)
EPSILON = Formula("epsilon", (PLAIN,), ("epsilon",), stabilizer="epsilon", is_plain=True)
NORM = Formula("norm", (PLAIN,), ("stabilizer",), is_plain=True)
# Contributions to z by sign: of two factors of one sign, and of two signs.
POSITIVE_CONTRIBUTIONS = (SharePart(positive, positive, positive), SharePart(negative, negative))
NEGATIVE_CONTRIBUTIONS = (SharePart(positive, negative, negative), SharePart(negative, positive))
ZPLUS = Formula("zplus", (Share(POSITIVE_CONTRIBUTIONS, whole),), ("stabilizer",))
ALPHA_BETA = Formula(
    "alpha_beta",
    (Share(POSITIVE_CONTRIBUTIONS, alpha_times), Share(NEGATIVE_CONTRIBUTIONS, minus_beta_times)),
    ("alpha", "beta", "stabilizer"),
)
GAMMA = Formula(
    "gamma",
    (
        Share(
            (SharePart(positive, more_positive, more_positive), SharePart(negative, more_negative)),
            where_positive,
        ),
        Share(
            (SharePart(positive, more_negative, more_negative), SharePart(negative, more_positive)),
            where_negative,
        ),
    ),
    ("gamma", "stabilizer"),
)
WSQUARE = Formula("wsquare", (Share((SharePart(ones, squared, squared),), whole),), ("stabilizer",))
FLAT = Formula("flat", (Share((SharePart(ones, ones),), whole),), ("stabilizer",))
# b - max(b, 0) - min(b, 0) = 0: biases leave the sum.
BETWEEN = (SharePart(same, same), SharePart(minus_low, positive), SharePart(minus_high, negative))
ZBOX = Formula("zbox", (Share(BETWEEN, whole),), ("low", "high", "stabilizer"))


# --- what computes them -------------------------------------------------------------------------


def stabilize(z: Tensor, stabilizer: Any) -> Tensor:
    """Return z moved away from zero; zero itself is moved up."""
    return z + xp.where(z >= 0, stabilizer, -stabilizer)


def share_out(
    formula: Formula,
    layer: LayerKind,
    attributes: Mapping[str, Any],
    zero_params: Sequence[str],
    inputs: Inputs,
    weight: Tensor,
    bias: Tensor,
    out: Tensor,
    relevance: Tensor,
    numbers: Mapping[str, Any],
) -> Inputs:
    total: list[Any] = [None] * len(inputs)
    # What decides by the sign of z does so without the parameters that count as zero.
    z_of_all = out
    if zero_params:
        w = xp.zeros_like(weight) if "weight" in zero_params else weight
        z_of_all = layer.forward(
            inputs, w, None if "bias" in zero_params else bias, out, **attributes
        )
    for share in formula.shares:
        changed_parts, z = [], None
        for part in share.parts:
            modified_inputs = tuple(part.input(x, numbers) for x in inputs)
            w = weight if weight is None else part.param(weight, numbers)
            if weight is not None and "weight" in zero_params:
                w = xp.zeros_like(weight)
            if formula.is_plain and not zero_params:
                # Nothing is modified: z is the layer's own output.
                part_output = out
            else:
                b = None
                if bias is not None and part.bias is not None and "bias" not in zero_params:
                    b = part.bias(bias, numbers)
                part_output = layer.forward(modified_inputs, w, b, out, **attributes)
            z = part_output if z is None else z + part_output
            changed_parts.append((modified_inputs, w))
        # One division by the sum of all parts, so that relevance is conserved.
        ratio = share.weigh(relevance, z_of_all, numbers) / stabilize(
            z, numbers[formula.stabilizer]
        )
        for modified_inputs, w in changed_parts:
            cotangents = layer.pull(ratio, inputs, w, out, **attributes)
            for i, (x, cotangent) in enumerate(zip(modified_inputs, cotangents, strict=True)):
                term = x * cotangent
                total[i] = term if total[i] is None else total[i] + term
    return tuple(total)


# One for each formula and layer, so that it is captured and lowered once.
@cache
def make_function(
    formula: Formula, kind: str, attributes: tuple[tuple[str, Any], ...], zero: tuple[str, ...]
) -> Function:
    """Return a layer with a rule for its gradient, of its tensors and then the rule's numbers."""
    layer = KINDS[kind]
    names = (*layer.inputs, *(("weight", "bias") if layer.has_weight else ()), "out")
    attribute_values = dict(attributes)
    layout = attribute_values.pop("layout", IN_OUT)

    def forward(*args: Any) -> Any:
        tensors = args[: len(names)]
        numbers = dict(zip(formula.numbers, args[len(names) :], strict=True))
        inputs = tensors[: len(layer.inputs)]
        weight, bias = tensors[-3:-1] if layer.has_weight else (None, None)
        if layout != IN_OUT:
            weight = from_in_to_out(weight, bias, layout)
        wide = tuple(map(widened, inputs)), widened(weight), widened(bias)
        out = tensors[-1]
        if out is None and layer.needs_out:
            raise RuleTypeError(
                f"a layer of kind {kind!r} needs what it computed, as its last tensor: only the "
                "shape of that says what is added to the ends"
            )
        if out is None:
            out = xp.cast_like(layer.forward(*wide, None, **attribute_values), inputs[0])

        def grad(upstream: Tensor) -> Any:
            shares = share_out(
                formula,
                layer,
                attributes=attribute_values,
                zero_params=zero,
                inputs=wide[0],
                weight=wide[1],
                bias=wide[2],
                out=widened(out),
                relevance=widened(upstream),
                numbers=numbers,
            )
            results = [xp.cast_like(share, x) for share, x in zip(shares, inputs, strict=True)]
            # Weights get their own gradient through `out`.
            weights = (None, None) if layer.has_weight else ()
            out_gradient = None if tensors[-1] is None else upstream
            return (*results, *weights, out_gradient, *(None for _ in numbers))

        return out, grad

    forward.__name__ = f"{formula.name}_over_{kind}"
    # Named as the layer names its tensors: capture reads the signature.
    kinds = inspect.Parameter.POSITIONAL_OR_KEYWORD
    forward.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(name, kinds) for name in (*names, *formula.numbers)]
    )
    return custom_gradient(forward, native=False, dialect="xp")


@dataclass(frozen=True, eq=False)
class Relevance:
    """A relevance rule with its numbers.

    Examples:
        >>> rule = xg.attribution.epsilon(0.25)
        >>> rule, rule == xg.attribution.epsilon(0.25)
        (epsilon(epsilon=0.25), True)

    Attributes:
        formula: what it computes.
        numbers: by name; floats are run-time numbers.
        zero_params: the parameters of the layer, "weight" or "bias", that count as zero.
    """

    formula: Formula
    numbers: Mapping[str, Any]
    zero_params: tuple[str, ...] = ()
    # By kind and attributes: this rule over layers, with its numbers as defaults.
    _made: dict[Any, Function] = field(default_factory=dict, repr=False)

    @property
    def name(self) -> str:
        """The rule's name.

        Examples:
            >>> xg.attribution.gamma().name
            'gamma'
        """
        return self.formula.name

    @property
    def key(self) -> tuple[Any, ...]:
        # A tensor is compared by identity, because its numbers may be on a device.
        numbers = (n if isinstance(n, float | int) else id(n) for n in self.numbers.values())
        return (self.name, *numbers, self.zero_params)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Relevance) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __repr__(self) -> str:
        numbers = [f"{name}={value!r:.40}" for name, value in self.numbers.items()]
        zero = [f"zero_params={self.zero_params!r}"] if self.zero_params else []
        return f"{self.name}({', '.join(numbers + zero)})"

    def __reduce__(self) -> Any:
        # Without the Functions, which are made again.
        return pickled(make_rule, self.formula, self.zero_params, **self.numbers)

    def over(self, kind: str, **attributes: Any) -> Function:
        """Return a layer of a kind with this rule as its gradient, as a Function of its tensors.

        The kinds; layouts are the same on every framework, and attributes are given by keyword:

        - `linear(x, weight, bias, out, *, layout="in_out")`: over the last axis of x; weight (in,
          out), as Keras and flax have it, or with `layout="out_in"` (out, in), as
          `torch.nn.Linear` has it. Of a square weight the layout must be given.
        - `convolution(x, weight, bias, out, *, strides, padding, dilations, groups)`: x (batch,
          channels, *lengths) and weight (out, in / groups, *sizes), as torch has both; padding
          ((before, after), ...) of zeros.
        - `convolution_transpose(x, weight, bias, out, *, strides, padding, dilations, groups)`: the
          same with weight (in, out / groups, *sizes) and padding of what comes out. `out` is
          needed: its shape tells what is added to the ends.
        - `average_pooling(x, out, *, sizes, strides, padding, counts_padding)`: x as for a
          convolution.
        - `adaptive_average_pooling(x, out, *, counts)`: as many windows on each of the last axes.
        - `addition(a, b, out)`: of shapes that broadcast.

        The bias is (out,) or None. `out`, which may be left out, is what the layer gives for the
        tensors before it, for x a constant (computed from `x.detach()`): it is returned
        unchanged and with its own gradient, so that weights keep theirs.

        Examples:
            >>> layer = xg.attribution.epsilon().over("linear")
            >>> x, weight, bias = np.array([[1.0, 2.0]]), np.array([[3.0], [1.0]]), np.array([0.5])
            >>> y, pull = xg.vjp(layer, x, weight, bias)
            >>> y, pull(y)[0].round(3)
            (array([[5.5]]), array([[3., 2.]]))

        Args:
            kind: one of these.
            attributes: of the layer.

        Raises:
            RuleTypeError: the rule has no meaning for that kind, or an attribute is missing or
                unknown; of the Function, that a weight does not tell its layout.
            RuleValueError: a layout of another name.
        """
        layer = KINDS.get(kind)
        if layer is None or not self.formula.applies_to(layer):
            kinds = [name for name, each in KINDS.items() if self.formula.applies_to(each)]
            raise RuleTypeError(
                f"rule {self.name!r} has no meaning for a layer of kind {kind!r}"
                f"{suggest(kind, kinds)} (kinds: {', '.join(kinds)})"
            )
        attributes = {**layer.defaults, **attributes}
        if attributes.keys() != set(layer.example):
            example = ", ".join(f"{name}={value!r}" for name, value in layer.example.items())
            raise RuleTypeError(
                f"a layer of kind {kind!r} has the attributes "
                f"{', '.join(layer.example) or '(none)'}; given: {', '.join(attributes) or '-'}"
                f"{example and f'. Their form: {example}'}"
            )
        layout = attributes.get("layout")
        if layout not in (None, *LAYOUTS):
            raise RuleValueError(f"layout is one of {LAYOUTS}, not {layout!r}")
        values = tuple((name, _frozen(attributes[name])) for name in layer.example)
        cached = self._made.get((kind, values))
        if cached is None:
            function = make_function(self.formula, kind, values, self.zero_params)
            tensors = len(layer.inputs) - 1 + 2 * layer.has_weight + 1
            defaults = (None,) * tensors + tuple(self.numbers.values())
            # Another thread may have made it meanwhile.
            cached = self._made.setdefault((kind, values), function.with_defaults(defaults))
        return cached


def _frozen(value: Any) -> Any:
    is_sequence = isinstance(value, Sequence) and not isinstance(value, str)
    return tuple(map(_frozen, value)) if is_sequence else value


def make_rule(
    formula: Formula, zero_params: str | Sequence[str] | None = None, **numbers: Any
) -> Relevance:
    zero = (zero_params,) if isinstance(zero_params, str) else tuple(zero_params or ())
    for name in zero:
        if name not in ZERO_PARAMS:
            raise RuleValueError(
                f"zero_params is made of {' and '.join(map(repr, ZERO_PARAMS))}, not {name!r}"
            )
    given = ((name, numbers[name]) for name in formula.numbers)
    own_numbers = {n: float(x) if isinstance(x, int | np.number) else x for n, x in given}
    check_numbers(f"rule {formula.name!r}", own_numbers)
    return Relevance(formula, MappingProxyType(own_numbers), zero)


# --- the rules of `xg.attribution`, with zennit's names and defaults ------------------------------
# Each returns a rule for `xg.attach`, `xg.override` and `xg.composites`, or by itself a layer of
# any framework's tensors: `rule.over(kind)`. `zero_params` names those of the layer's parameters,
# "weight" or "bias", that count as zero.
@told_arguments
def epsilon(epsilon: float = 1e-6, zero_params: ZeroParams = None) -> Relevance:
    """x * w^T (R / stabilize(z)), with z = w x + b: LRP-epsilon.

    Source: Bach et al., 2015 (doi 10.1371/journal.pone.0130140), eq. 58; `Epsilon` of zennit.

    Examples:
        >>> x, weight = np.array([[1.0, 2.0]]), np.array([[3.0], [1.0]])
        >>> layer = xg.attribution.epsilon().over("linear")
        >>> y, pull = xg.vjp(layer, x, weight, None)
        >>> pull(y)[0].round(3)  # what each input added to y = 5: 1 * 3 and 2 * 1
        array([[3., 2.]])
    """
    return make_rule(EPSILON, zero_params, epsilon=epsilon)


@told_arguments
def zplus(stabilizer: float = 1e-6, zero_params: ZeroParams = None) -> Relevance:
    """The share of positive contributions to z: positive inputs times positive weights, and
    negative times negative.

    Source: Montavon et al., 2017 (doi 10.1016/j.patcog.2016.11.008), the z+ rule; the marginal
    winning probability of Zhang et al., 2018 (arXiv 1608.00507); `ZPlus` of zennit.

    Examples:
        >>> x, weight = np.array([[1.0, 2.0, 1.0]]), np.array([[3.0], [1.0], [-1.0]])
        >>> y, pull = xg.vjp(xg.attribution.zplus().over("linear"), x, weight, None)
        >>> pull(np.array([[5.0]]))[0].round(3)
        array([[3., 2., 0.]])
    """
    return make_rule(ZPLUS, zero_params, stabilizer=stabilizer)


@told_arguments
def gamma(
    gamma: float = 0.25, stabilizer: float = 1e-6, zero_params: ZeroParams = None
) -> Relevance:
    """Like epsilon, but contributions with the sign of z count 1 + gamma times; none where z = 0.

    Source: Montavon et al., 2019 (doi 10.1007/978-3-030-28954-6_10), section 10.2.3; for inputs of
    both signs Andeol et al., 2021; `Gamma` of zennit.

    Examples:
        >>> x, weight = np.array([[1.0, 2.0, 1.0]]), np.array([[3.0], [1.0], [-1.0]])
        >>> y, pull = xg.vjp(xg.attribution.gamma(1.0).over("linear"), x, weight, None)
        >>> pull(y)[0].round(3)
        array([[ 2.667,  1.778, -0.444]])
    """
    return make_rule(GAMMA, zero_params, gamma=gamma, stabilizer=stabilizer)


@told_arguments
def alpha_beta(
    alpha: float = 2.0,
    beta: float = 1.0,
    stabilizer: float = 1e-6,
    zero_params: ZeroParams = None,
) -> Relevance:
    """alpha times the share of positive contributions to z, minus beta times that of negative ones.

    Source: Bach et al., 2015 (doi 10.1371/journal.pone.0130140), eq. 60; `AlphaBeta` of zennit.

    Examples:
        >>> x, weight = np.array([[1.0, 2.0, 1.0]]), np.array([[3.0], [1.0], [-1.0]])
        >>> y, pull = xg.vjp(xg.attribution.alpha_beta(2.0, 1.0).over("linear"), x, weight, None)
        >>> pull(np.array([[5.0]]))[0].round(3)
        array([[ 6.,  4., -5.]])

    Raises:
        RuleValueError: alpha - beta is not 1, or one of them is below 0.
    """
    are_known = isinstance(alpha, int | float) and isinstance(beta, int | float)
    if are_known and alpha - beta != 1.0:
        raise RuleValueError(f"alpha - beta is 1, not {alpha} - {beta}")
    return make_rule(ALPHA_BETA, zero_params, alpha=alpha, beta=beta, stabilizer=stabilizer)


@told_arguments
def wsquare(stabilizer: float = 1e-6, zero_params: ZeroParams = None) -> Relevance:
    """The share of the squared weight, whatever the input.

    Source: Montavon et al., 2017 (doi 10.1016/j.patcog.2016.11.008), the w^2 rule; `WSquare` of
    zennit.

    Examples:
        >>> x, weight = np.array([[1.0, 2.0]]), np.array([[3.0], [1.0]])
        >>> y, pull = xg.vjp(xg.attribution.wsquare().over("linear"), x, weight, None)
        >>> pull(np.array([[10.0]]))[0].round(3)
        array([[9., 1.]])
    """
    return make_rule(WSQUARE, zero_params, stabilizer=stabilizer)


@told_arguments
def flat(stabilizer: float = 1e-6, zero_params: ZeroParams = None) -> Relevance:
    """An equal share for each connected input.

    Source: Lapuschkin et al., 2019 (doi 10.1038/s41467-019-08987-4); `Flat` of zennit.

    Examples:
        >>> x, weight = np.array([[1.0, 2.0]]), np.array([[3.0], [1.0]])
        >>> y, pull = xg.vjp(xg.attribution.flat().over("linear"), x, weight, None)
        >>> pull(np.array([[10.0]]))[0].round(3)
        array([[5., 5.]])
    """
    return make_rule(FLAT, zero_params, stabilizer=stabilizer)


@told_arguments
def zbox(
    low: Tensor, high: Tensor, stabilizer: float = 1e-6, zero_params: ZeroParams = None
) -> Relevance:
    """The share of x w - low max(w, 0) - high min(w, 0), for inputs known to lie within bounds.

    Source: Montavon et al., 2017 (doi 10.1016/j.patcog.2016.11.008), the z^B rule; `ZBox` of
    zennit.

    Examples:
        >>> x, weight = np.array([[1.0, 0.0]]), np.array([[3.0], [-1.0]])
        >>> y, pull = xg.vjp(xg.attribution.zbox(0.0, 1.0).over("linear"), x, weight, None)
        >>> pull(np.array([[4.0]]))[0].round(3)
        array([[3., 1.]])

    Args:
        low: the smallest value of the input: a number, or a tensor of the model's framework that
            broadcasts to it, for a convolution with channels before lengths, (1, channels, 1, 1),
            also where the framework has them last.
        high: the largest.
    """
    return make_rule(ZBOX, zero_params, low=low, high=high, stabilizer=stabilizer)


@told_arguments
def norm(stabilizer: float = 1e-6) -> Relevance:
    """x times the transpose of the layer at R / stabilize(z): for pooling and addition.

    The formula of epsilon, whose number here only prevents a division by zero. Source: `Norm` of
    zennit.

    Examples:
        >>> rule = xg.attribution.norm()
        >>> y, pull = xg.vjp(rule.over("addition"), np.array([3.0]), np.array([1.0]))
        >>> [part.round(3) for part in pull(np.array([4.0]))[:2]]  # each term gets what it added
        [array([3.]), array([1.])]
    """
    return make_rule(NORM, None, stabilizer=stabilizer)


RULES = (epsilon, zplus, gamma, alpha_beta, wsquare, flat, zbox, norm)
