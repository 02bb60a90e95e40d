"""The kinds of layers that have rules of their own, what each computes, and rules over a layer.

A linear layer has inputs, perhaps a weight, and perhaps a bias; it is linear in the inputs, so that
its transpose, the other half of each formula of relevance, is given by the VJPs of its ops.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Protocol, Self, TypeAlias

import numpy as np

from ...core.backend.discovery import backend_of
from ...core.ir.op import Op
from ...core.lowering.derivatives import accumulate_all
from ...core.ops import activations
from ...core.rules.rule import Rule
from ...core.support.params import Range
from ...core.trace.xp import all as xp
from ...engine.functions.function import Function
from ...engine.trace.xp.transposes import conv_left
from ...errors import BackendNotFound, RuleTypeError, RuleValueError

Tensor = Any
Inputs: TypeAlias = tuple[Tensor, ...]


LAYOUTS = IN_OUT, OUT_IN = "in_out", "out_in"


# --- linear layers --------------------------------------------------------------------------------
def linear(inputs: Inputs, weight: Tensor, bias: Tensor, out: Tensor) -> Tensor:
    z = xp.matmul(inputs[0], weight)
    return z if bias is None else z + bias


def from_in_to_out(weight: Tensor, bias: Tensor, layout: str | None) -> Tensor:
    """Return a linear layer's weight as (in, out); RuleTypeError if its layout must be told."""
    if layout is None:
        rows, columns = map(int, tuple(weight.shape)[-2:])
        if rows == columns or (bias is not None and tuple(bias.shape) == (rows,)):
            why = "may be both" if rows == columns else f"is no (in, out) beside a bias of {rows}"
            raise RuleTypeError(
                f"a linear layer's weight of shape ({rows}, {columns}) {why}: write over('linear', "
                "layout='out_in') for a weight (out, in), as torch.nn.Linear has it, or "
                "layout='in_out' for x @ weight, as Keras and flax have it"
            )
    return xp.matrix_transpose(weight) if layout == OUT_IN else weight


def add_channels(z: Tensor, bias: Tensor, axes: int) -> Tensor:
    return z if bias is None else z + xp.reshape(bias, (-1, *(1,) * axes))


def widen(x: Tensor, padding: Any) -> Tensor:
    """Return x with a border of zeros around its last axes."""
    if not any(map(any, padding)):
        return x
    return xp.pad(x, ((0, 0), (0, 0), *padding), 0.0)


def narrow(x: Tensor, padding: Any) -> Tensor:
    """Return x without the border that `widen` gave it."""
    if not any(map(any, padding)):
        return x
    return x[(..., *(slice(before, -after or None) for before, after in padding))]


def convolution(
    inputs: Inputs, weight: Tensor, bias: Tensor, out: Tensor, *, padding: Any, **steps: Any
) -> Tensor:
    z = xp.conv(widen(inputs[0], padding), weight, **steps)
    return add_channels(z, bias, len(padding))


def transposed(
    inputs: Inputs, weight: Tensor, bias: Tensor, out: Tensor, *, padding: Any, **steps: Any
) -> Tensor:
    # The transpose of a convolution of an input with the shape of `out`.
    z = narrow(conv_left(inputs[0], weight, widen(out, padding), **steps), padding)
    return add_channels(z, bias, len(padding))


def transpose_of_transposed(
    cotangent: Tensor, weight: Tensor, *, padding: Any, **steps: Any
) -> Tensor:
    return xp.conv(widen(cotangent, padding), weight, **steps)


def average_pooling(
    inputs: Inputs, weight: None, bias: None, out: Tensor, *, padding: Any, **windows: Any
) -> Tensor:
    (x,) = inputs
    sums = _sums(widen(x, padding), **windows)
    # Divided by the number of elements that each window averages.
    if windows["counts_padding"] or not any(map(any, padding)):
        return sums / float(math.prod(windows["sizes"]))
    return sums / _sums(widen(xp.ones_like(x), padding), **windows)


def _sums(x: Tensor, *, sizes: Any, strides: Any, counts_padding: bool) -> Tensor:
    return xp.sum(xp.windows(x, sizes, strides), axis=tuple(range(-len(sizes), 0)))


def adaptive_pooling(
    inputs: Inputs, weight: None, bias: None, out: Tensor, *, counts: Any
) -> Tensor:
    (x,) = inputs
    if set(counts) == {1}:  # of axes whose lengths need not be known
        return xp.mean(x, axis=tuple(range(-len(counts), 0)), keepdims=True)
    # For each axis a matrix (windows, elements) that averages it. Window i of n reaches from
    # floor(i l / n) to ceil((i + 1) l / n) of l elements, as in PyTorch.
    for axis, n in enumerate(counts, -len(counts)):
        length = int(x.shape[axis])
        matrix = np.zeros((n, length))
        for i in range(n):
            start, end = i * length // n, -(-(i + 1) * length // n)
            matrix[i, start:end] = 1 / (end - start)
        x = xp.moveaxis(xp.matmul(xp.moveaxis(x, axis, -1), xp.matrix_transpose(matrix)), -1, axis)
    return x


def addition(inputs: Inputs, weight: None, bias: None, out: Tensor) -> Tensor:
    return inputs[0] + inputs[1]


# --- the table ------------------------------------------------------------------------------------
# The tensors of each kind's Function, their layouts and its attributes: see `Relevance.over`. relu,
# activation (any other), max_pooling and batch_normalization are chosen by composites, with a rule
# that reads no weights.
# A batch normalization that is merged makes one layer with the linear layer or convolution before
# it, of its kind and with its x, the weight and bias of `merge_batch_norm`, and out from itself.
@dataclass(frozen=True, slots=True)
class LayerKind:
    """A kind of layers.

    Attributes:
        part_of: the kind whose rule in a composite holds for this one, unless it has its own.
        channels: the axis of output channels in a weight; None: it has no weight, nor a bias.
        example: attributes as a layer of this kind may have them; their names are all that it has.
        defaults: those that may be left out.
        inputs: the names of what relevance is for.
        forward: `(inputs, weight, bias, out, **attributes)`; `out` gives a shape, or is None. None:
            only rules that read no weights are for layers of this kind.
        transpose: `(cotangent, weight, **attributes)`, the transpose of forward without the bias,
            where the VJPs of forward's ops would compute it again for a shape.
        needs_out: whether only `out` tells the shape of the output.
    """

    part_of: str | None = None
    channels: int | None = None
    example: Mapping[str, Any] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    inputs: tuple[str, ...] = ("x",)
    forward: Any = None
    transpose: Any = None
    needs_out: bool = False

    @property
    def has_weight(self) -> bool:
        return self.channels is not None

    def pull(
        self, cotangent: Tensor, inputs: Inputs, weight: Tensor, out: Tensor, **attributes: Any
    ) -> Sequence[Tensor]:
        """Return the transpose of forward without the bias: a cotangent for each input."""
        if self.transpose is not None:
            return [self.transpose(cotangent, weight, **attributes)]
        z = self.forward(inputs, weight, None, out, **attributes)
        targets = [x.node for x in inputs]
        return accumulate_all(cotangent.trace, [(z.node, cotangent)], targets)


_STEPS = {"strides": (1,), "padding": ((0, 0),), "dilations": (1,), "groups": 1}
_WINDOWS = {"sizes": (1,), "strides": (1,), "padding": ((0, 0),), "counts_padding": True}
KINDS: Mapping[str, LayerKind] = MappingProxyType(
    {
        "linear": LayerKind(
            channels=-1, example={"layout": IN_OUT}, defaults={"layout": None}, forward=linear
        ),
        "convolution": LayerKind(channels=0, example=_STEPS, forward=convolution),
        "convolution_transpose": LayerKind(
            "convolution",
            channels=1,
            example=_STEPS,
            forward=transposed,
            transpose=transpose_of_transposed,
            needs_out=True,
        ),
        "average_pooling": LayerKind(example=_WINDOWS, forward=average_pooling),
        "adaptive_average_pooling": LayerKind(
            "average_pooling",
            example={"counts": (1,)},
            forward=adaptive_pooling,
        ),
        "max_pooling": LayerKind(),
        "addition": LayerKind(inputs=("a", "b"), forward=addition),
        "relu": LayerKind("activation"),
        "activation": LayerKind(),
        "batch_normalization": LayerKind(),
    }
)


# Functions of one tensor, without case and underscores: our ops, and other libraries' names.
ACTIVATIONS = frozenset(
    {
        *(op.in_xp.replace("_", "") for op in vars(activations).values() if isinstance(op, Op)),
        *("hardswish", "logistic", "prelu", "rrelu", "swish", "tanh"),
    }
).difference(("heaviside", "logit"))


def kind_of_function(name: str) -> str | None:
    """Return the kind of an activation, by any library's name for it; None for another function."""
    plain = name.replace("_", "").lower()
    if plain not in ACTIVATIONS:
        return None
    return "relu" if plain == "relu" else "activation"


class LayerRule(Protocol):
    """A rule that reads what its layer holds: relevance, for those kinds that have it.

    Attributes:
        name: what tables and messages call it.
    """

    @property
    def name(self) -> str: ...

    def over(self, kind: str, **attributes: Any) -> Function:
        """Return the layer's forward with this rule for its gradient, as a Function of the tensors
        that `KINDS` names; the same object for the same arguments.

        Raises:
            RuleTypeError: the rule has no meaning for that kind.
        """
        ...


def is_layer_rule(rule: Any) -> bool:
    """Return whether a rule reads what its layer holds; a `Rule` reads a gradient and an input."""
    return callable(getattr(rule, "over", None)) and not isinstance(rule, Rule)


def check_bounds(rule: Any, x: Any) -> None:
    """Raise if a bound of a rule, as `zbox` has, does not fit an example of its layer's input."""
    numbers, example = getattr(rule, "numbers", {}), tuple(x.shape)[1:]
    for name in ("low", "high"):
        shape = tuple(getattr(numbers.get(name), "shape", ()))
        lengths = zip(reversed(shape), reversed(example), strict=False)
        if len(shape) > len(example) + 1 or any(n not in (1, m) for n, m in lengths):
            raise RuleValueError(
                f"rule {rule.name!r}: {name!r} has shape {shape}, and the layer's input {example} "
                "for each example: give a number, or a tensor that broadcasts to that"
            )


def has_meaning(rule: LayerRule, kind: str) -> bool:
    try:
        rule.over(kind, **KINDS[kind].example)
    except RuleTypeError:
        return False
    return True


# --- a call of a layer ----------------------------------------------------------------------------
@dataclasses.dataclass(frozen=True, slots=True)
class LayerCall:
    """A call of a layer before its activation, as a rule reads it: in the layouts of `KINDS`.

    Attributes:
        kind: the kind of layer.
        inputs: the tensors that get relevance.
        params: weight and bias, if the kind has them.
        attributes: the fixed numbers of the call.
        shape: the shape of the output, if the framework has it with other axes.
    """

    kind: str
    inputs: tuple[Tensor, ...]
    params: tuple[Any, ...] = ()
    attributes: Mapping[str, Any] = field(default_factory=dict)
    shape: tuple[int, ...] | None = None

    def merged(self, *statistics: Any, epsilon: float) -> Self:
        """Return the call with a batch normalization merged: mean, variance, scale and shift."""
        weight, bias = self.params
        axis = KINDS[self.kind].channels
        assert axis is not None
        params = merge_batch_norm(weight, bias, *statistics, epsilon=epsilon, axis=axis)
        return dataclasses.replace(self, params=params)


# --- a batch normalization, merged so that a rule meets one linear layer --------------------------
def merge_batch_norm(
    weight: Tensor,
    bias: Tensor | None,
    mean: Tensor,
    variance: Tensor,
    scale: Tensor | None = None,
    shift: Tensor | None = None,
    epsilon: float = 1e-5,
    *,
    axis: int = 0,
) -> tuple[Tensor, Tensor]:
    """Return weight and bias of the layer that computes both, for tensors of any framework.

    weight * f and (bias - mean) * f + shift, with f = scale / sqrt(variance + epsilon).

    Examples:
        >>> weight, bias = np.array([[1.0, 2.0]]), np.array([0.5])  # (out, in)
        >>> mean, variance = np.array([0.5]), np.array([4.0])
        >>> xg.attribution.merge_batch_norm(weight, bias, mean, variance, epsilon=0.0)
        (array([[0.5, 1. ]]), array([0.]))

    Args:
        weight: of the layer before; its channels lie on `axis`: 0 for a convolution's (out, in,
            *sizes), -1 for a linear layer's (in, out).
        bias: (out,), or None.
        mean: the running mean, (out,).
        variance: the running variance, (out,).
        scale: (out,), None for ones.
        shift: (out,), None for zeros.
        epsilon: the number added to the variance.
        axis: the channels' axis in weight.
    """
    factor = 1.0 / (variance + epsilon) ** 0.5
    if scale is not None:
        factor = scale * factor
    merged = (0.0 - mean if bias is None else bias - mean) * factor
    if shift is not None:
        merged = merged + shift
    # Axes of length 1 after that of the channels, for broadcasting.
    trailing = len(weight.shape) - 1 - axis % len(weight.shape)
    return weight * factor[(..., *(None,) * trailing)], merged


# --- the numbers of a rule of relevance, checked where they are given -----------------------------
# No map of NaN tells which number made it.
NOT_NEGATIVE = Range.read(">= 0 and finite")
LIMITED = ("epsilon", "gamma", "alpha", "beta", "stabilizer")


def check_numbers(subject: str, numbers: Mapping[str, Any]) -> None:
    for name, value in numbers.items():
        if value is None or isinstance(value, Sequence):  # a str, too
            message = f"{subject}: param {name!r} is a number or a tensor, got {value!r:.40}"
            raise RuleTypeError(message)
        array = as_array(value)
        if array is None:
            continue
        if name in LIMITED:
            NOT_NEGATIVE.check(subject, name, float(array) if array.ndim == 0 else value)
        elif np.isnan(array).any():
            raise RuleValueError(f"{subject}: param {name!r} holds NaN; expected numbers")
    bounds: list[Any] = [as_array(numbers.get(name)) for name in ("low", "high")]
    low, high = bounds
    is_box = any(each is None for each in bounds)
    with suppress(ValueError):  # shapes that do not broadcast
        is_box = is_box or np.all(low <= high)
    if not is_box:
        raise RuleValueError(
            f"{subject}: param 'low' is <= high everywhere, got {numbers['low']!r:.40} and "
            f"{numbers['high']!r:.40}, of shapes {low.shape} and {high.shape}"
        )


def as_array(value: Any) -> Any:
    """Return a number or a tensor as an array; None: it is no number, or not known yet."""
    if isinstance(value, int | float | np.ndarray | np.number):
        return np.asarray(value)
    try:
        tensors = backend_of(value).tensors
    except BackendNotFound:
        return None
    return None if tensors.is_traced(value) else np.asarray(tensors.to_numpy(value))
