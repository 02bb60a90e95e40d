"""Keras's dialect, the functions of `keras.losses` and the cross-entropies of `keras.ops`; see
`table.py`.
"""

# Keras gathers its public names at import, where pyright cannot follow.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import keras

from multigrad.capture.code.names import handlers
from multigrad.capture.meanings.networks import losses
from multigrad.capture.meanings.parts import length, rank
from multigrad.capture.symbols.dtypes import own_dtype
from multigrad.capture.values.elementwise import is_whole
from multigrad.graph import ops
from multigrad.graph.ir.types import FLOATS, T
from multigrad.trace.trace import Value, cast
from multigrad.trace.xp import all as xp

from .arrays import normalize
from .asked import limits_logarithms, log_of_2, remembers_logits
from .elementwise import expected

Tensor = Any
Handler = Callable[..., Any]


# --- keras.ops ------------------------------------------------------------------------------------
def binary_crossentropy(target: Any, output: Tensor, from_logits: bool = False) -> Tensor:
    need_floats(output)
    output, from_logits = behind(output, from_logits)
    if from_logits:
        positive, negative = xp.log_sigmoid(output), xp.log_sigmoid(xp.negative(output))
    else:
        p = within(output)
        if limits_logarithms():
            return losses.binary_cross_entropy(p, target)
        positive, negative = xp.log(p), xp.log(xp.subtract(1.0, p))
    rest = xp.multiply(xp.subtract(1.0, target), negative)
    return xp.negative(xp.add(xp.multiply(target, positive), rest))


def categorical_crossentropy(
    target: Any, output: Tensor, from_logits: bool = False, axis: int = -1
) -> Tensor:
    need_floats(output)
    output, from_logits = behind(output, from_logits)
    if from_logits:
        return losses.softmax_cross_entropy(output, target, axis)
    p = xp.divide(output, xp.sum(output, axis, keepdims=True))
    return xp.negative(xp.sum(xp.multiply(target, xp.log(within(p))), axis))


def behind(output: Any, from_logits: bool) -> tuple[Any, bool]:
    """Return the logits that probabilities were just made of, where this Keras goes back to them
    (`_get_logits` of its TensorFlow backend): else probabilities of 0 and 1 would hide them.
    """
    made = output.node if isinstance(output, Value) else None
    if made is not None and made.op in (ops.SIGMOID, ops.SOFTMAX) and remembers_logits():
        return output.trace.value(made.operands[0]), True
    return output, from_logits


def within(p: Tensor) -> Tensor:
    """Probabilities, kept away from 0 and 1."""
    epsilon = keras.config.epsilon()
    return xp.clip(p, epsilon, 1.0 - epsilon)


# --- keras.losses ---------------------------------------------------------------------------------
def paired(y_true: Any, y_pred: Any) -> tuple[Any, Any]:
    """Return both in one rank: a last axis of length 1 is dropped, or added to a vector."""
    more, less = rank(y_true), rank(y_pred)
    if more < less:
        y_pred, y_true = paired(y_pred, y_true)
    elif more == less + 1 and length(y_true, -1) == 1:
        if less == 1:
            return y_true, xp.expand_dims(y_pred, -1)
        return xp.squeeze(y_true, -1), y_pred
    return y_true, y_pred


def of_floats(loss: Handler) -> Handler:
    """Return a loss whose targets take the dtype of its predictions first, as Keras casts them."""

    @functools.wraps(loss)
    def record(y_true: Any, y_pred: Any, *args: Any, **kwargs: Any) -> Tensor:
        need_floats(y_pred)
        of_both = own_dtype(y_true) and own_dtype(y_pred)
        y_true = cast(y_true, own_dtype(y_pred)) if of_both else y_true
        return loss(y_true, y_pred, *args, **kwargs)

    return record


def need_floats(given: Any) -> None:
    """Raise TypeError for predictions of integers or bools."""
    if is_whole(given):
        raise TypeError("predictions of integers, in which Keras computes: cast to a float first")


def as_float(x: Any) -> Any:
    """Bools and integers become floats."""
    return cast(x, T) if isinstance(x, Value) and x.node.type.kind == "tensor" else x


def mean_of(name: str, error: Callable[[Any, Any], Tensor]) -> Handler:
    """Return a loss that is a mean over the last axis."""

    def record(y_true: Any, y_pred: Any) -> Tensor:
        return xp.mean(error(*paired(y_true, y_pred)), -1)

    record.__name__ = record.__qualname__ = name
    return record


def percentage_error(y_true: Any, y_pred: Any) -> Tensor:
    least = xp.maximum(xp.abs(y_true), keras.config.epsilon())
    return xp.abs(xp.divide(xp.subtract(y_true, y_pred), least))


def mean_percentage_error(y_true: Any, y_pred: Any) -> Tensor:
    """Multiplied after the mean, where 16 bits may hold it."""
    return xp.multiply(xp.mean(percentage_error(*paired(y_true, y_pred)), -1), 100.0)


def logarithmic_error(y_true: Any, y_pred: Any) -> Tensor:
    """In the dtype of its epsilon, where that holds more than the predictions do."""
    wide = expected(y_true, y_pred)
    given = [cast(y, wide) if own_dtype(y) and wide in FLOATS else y for y in (y_pred, y_true)]
    logs = [xp.log(xp.maximum(y, keras.config.epsilon()) + 1.0) for y in given]
    return xp.square(xp.subtract(*logs))


def log_cosh(y_true: Any, y_pred: Any) -> Tensor:
    """log(cosh(y_pred - y_true)), without overflow."""
    error = xp.subtract(y_pred, y_true)
    return error + xp.softplus(error * -2.0) - log_of_2()


def poisson(y_true: Any, y_pred: Any) -> Tensor:
    return losses.poisson(y_pred, y_true, keras.config.epsilon())


def huber(y_true: Any, y_pred: Any, delta: Any = 1.0) -> Tensor:
    y_true, y_pred = paired(y_true, y_pred)
    delta = cast(delta, own_dtype(y_pred)) if own_dtype(delta) and own_dtype(y_pred) else delta
    size = xp.abs(xp.subtract(y_pred, y_true))
    beyond = xp.subtract(xp.multiply(delta, size), xp.multiply(0.5, xp.multiply(delta, delta)))
    inside = xp.multiply(0.5, xp.square(size))
    return xp.mean(xp.where(xp.less_equal(size, delta), inside, beyond), -1)


def hinge_error(y_true: Any, y_pred: Any) -> Tensor:
    """max(0, 1 - t p); targets of 0 and 1 alone count as -1 and 1."""
    is_binary = xp.all(xp.equal(y_true, 0) | xp.equal(y_true, 1))
    signs = xp.where(is_binary, 2.0 * y_true - 1.0, y_true)
    return xp.maximum(1.0 - xp.multiply(signs, y_pred), 0.0)


def hinge(y_true: Any, y_pred: Any) -> Tensor:
    return xp.mean(hinge_error(as_float(y_true), y_pred), -1)


def squared_hinge(y_true: Any, y_pred: Any) -> Tensor:
    return xp.mean(xp.square(hinge_error(as_float(y_true), y_pred)), -1)


def categorical_hinge(y_true: Any, y_pred: Any) -> Tensor:
    positive = xp.sum(xp.multiply(y_true, y_pred), -1)
    negative = xp.max(xp.multiply(xp.subtract(1.0, y_true), y_pred), -1)
    return xp.maximum(negative - positive + 1.0, 0.0)


def cosine_similarity(y_true: Any, y_pred: Any, axis: int = -1) -> Tensor:
    if isinstance(y_true, Value):
        y_true = cast(y_true, own_dtype(y_pred) or T)
    units = (normalize(y, axis) for y in paired(y_true, y_pred))
    return xp.negative(xp.sum(xp.multiply(*units), axis))


def kl_divergence(y_true: Any, y_pred: Any) -> Tensor:
    target, p = (xp.clip(y, keras.config.epsilon(), 1.0) for y in (as_float(y_true), y_pred))
    return xp.sum(target * xp.log(target / p), -1)


def smoothed(y_true: Any, amount: float, classes: float) -> Any:
    """Return targets moved towards equal shares of the classes."""
    if not amount:
        return as_float(y_true)
    return xp.add(xp.multiply(as_float(y_true), 1.0 - amount), amount / classes)


def categorical_loss(
    y_true: Any,
    y_pred: Any,
    from_logits: bool = False,
    label_smoothing: float = 0.0,
    axis: int = -1,
) -> Tensor:
    classes = length(y_true, -1) if label_smoothing else 1
    target = smoothed(y_true, label_smoothing, classes)
    return categorical_crossentropy(target, y_pred, from_logits, axis)


def categorical_focal_loss(
    y_true: Any,
    y_pred: Any,
    alpha: float = 0.25,
    gamma: float = 2.0,
    from_logits: bool = False,
    label_smoothing: float = 0.0,
    axis: int = -1,
) -> Tensor:
    classes = length(y_true, -1) if label_smoothing else 1
    target = smoothed(y_true, label_smoothing, classes)
    p = xp.softmax(y_pred, axis) if from_logits else y_pred
    p = within(xp.divide(p, xp.sum(p, axis, keepdims=True)))
    factor = xp.pow(1.0 - p, gamma) * alpha
    return xp.negative(xp.sum(factor * (target * xp.log(p)), axis))


def binary_loss(
    y_true: Any,
    y_pred: Any,
    from_logits: bool = False,
    label_smoothing: float = 0.0,
    axis: int = -1,
) -> Tensor:
    target = smoothed(y_true, label_smoothing, 2.0)
    return xp.mean(binary_crossentropy(target, y_pred, from_logits), axis)


def binary_focal_loss(
    y_true: Any,
    y_pred: Any,
    apply_class_balancing: bool = False,
    alpha: float = 0.25,
    gamma: float = 2.0,
    from_logits: bool = False,
    label_smoothing: float = 0.0,
    axis: int = -1,
) -> Tensor:
    target = smoothed(y_true, label_smoothing, 2.0)
    p = xp.sigmoid(y_pred) if from_logits else y_pred
    chance = target * p + (1.0 - target) * (1.0 - p)
    loss = xp.pow(1.0 - chance, gamma) * binary_crossentropy(target, p)
    if apply_class_balancing:
        loss = (target * alpha + (1.0 - target) * (1.0 - alpha)) * loss
    return xp.mean(loss, axis)


def dice(y_true: Any, y_pred: Any, axis: Any = None) -> Tensor:
    total = xp.sum(y_true, axis) + xp.sum(y_pred, axis) + keras.config.epsilon()
    return 1.0 - 2.0 * xp.sum(xp.multiply(y_true, y_pred), axis) / total


def tversky(
    y_true: Any, y_pred: Any, alpha: float = 0.5, beta: float = 0.5, axis: Any = None
) -> Tensor:
    common = xp.sum(xp.multiply(y_true, y_pred), axis)
    missed = xp.sum(xp.multiply(xp.subtract(1.0, y_pred), y_true), axis)
    wrong = xp.sum(xp.multiply(y_pred, xp.subtract(1.0, y_true)), axis)
    return 1.0 - common / (common + missed * alpha + wrong * beta + keras.config.epsilon())


OPS: dict[str, Handler] = {
    "binary_crossentropy": binary_crossentropy,
    "categorical_crossentropy": categorical_crossentropy,
}
MEANT: dict[str, Handler] = {
    **handlers(
        {
            __name__: """
                binary_loss: binary_crossentropy; binary_focal_loss: binary_focal_crossentropy;
                categorical_loss: categorical_crossentropy; categorical_focal_loss:
                categorical_focal_crossentropy; categorical_hinge; cosine_similarity; dice; hinge;
                huber; kl_divergence; mean_percentage_error: mean_absolute_percentage_error;
                squared_hinge; tversky
            """
        }
    ),
    "log_cosh": mean_of("log_cosh", log_cosh),
    "mean_absolute_error": mean_of("mean_absolute_error", losses.absolute_error),
    "mean_squared_error": mean_of("mean_squared_error", losses.squared_error),
    "mean_squared_logarithmic_error": mean_of("mean_squared_logarithmic_error", logarithmic_error),
    "poisson": mean_of("poisson", poisson),
}
LOSSES = {name: of_floats(loss) for name, loss in MEANT.items()}
