"""Attribution: relevance rules, which read a layer's weights, composites; and means of a gradient,
over noise around the input, or over the path to it from a baseline.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from operator import index
from typing import TYPE_CHECKING, Any

import numpy as np

from ...core.trace.xp import all as xp
from ...engine.functions.calls.parameters import told_arguments
from ...engine.functions.custom_gradient import function
from ...engine.support.public_modules import module_hooks
from ...errors import RuleValueError
from . import composites
from .kinds import as_array, merge_batch_norm
from .relevance import alpha_beta, epsilon, flat, gamma, norm, wsquare, zbox, zplus

__all__ = [
    "alpha_beta", "composites", "epsilon", "flat", "gamma", "integrated", "merge_batch_norm",
    "norm", "smooth", "wsquare", "zbox", "zplus",
]  # fmt: skip

if not TYPE_CHECKING:
    __getattr__, __dir__ = module_hooks(__name__, __all__)

Tensor = Any
GradientOfTensor = Callable[[Tensor], Tensor]


@function
def add_noise(x: Tensor, sigma: Tensor) -> Tensor:
    return x + sigma * xp.randn_like(x)


@told_arguments
def smooth(
    gradient: GradientOfTensor, x: Tensor, *, sigma: float = 0.1, n: int = 25, key: Any = None
) -> Tensor:
    """The mean of a gradient over n copies of x with noise: SmoothGrad, under any rules.

    mean over i of gradient(x + sigma * N(0, 1)), with new draws for each copy.

    Examples:
        >>> def slope(x):
        ...     return 2.0 * x  # the gradient of x * x
        >>> x = np.array([1.0, -3.0])
        >>> xg.attribution.smooth(slope, x, sigma=0.1, n=1000, key=0).round(1)
        array([ 2., -6.])

    Args:
        gradient: takes a tensor like x and returns its gradient, or its relevance.
        x: the input, of any framework; in torch it need not require a gradient.
        sigma: the standard deviation of the noise, in the units of x; or a tensor that broadcasts
            to x.
        n: the number of copies.
        key: an int as for `jax.random.key`, a jax key, or two uint32: makes the draws
            reproducible, the same on every framework. None: the framework's own generator.

    Returns:
        A tensor like x, which requires no gradient unless those of `gradient` do.

    Raises:
        RuleValueError: n is not a whole number or below 1, sigma is negative or not finite or does
            not broadcast to x, or gradient returned another shape.

    Source: Smilkov et al., 2017 (arXiv 1706.03825).
    """
    _check_broadcasts(x, "sigma", sigma)
    deviations = as_array(sigma)
    if deviations is not None and not (np.isfinite(deviations) & (deviations >= 0)).all():
        raise RuleValueError(f"sigma is a deviation, finite and 0 or more, not {sigma!r:.40}")
    draw = add_noise if key is None else add_noise.keyed(key)
    x = _asking(x)
    return _mean(gradient, x, (draw(x, sigma) for _ in range(_count(n))), n)


@told_arguments
def integrated(
    gradient: GradientOfTensor, x: Tensor, baseline: Tensor | float = 0.0, *, n: int = 20
) -> Tensor:
    """Integrated gradients: the mean of a gradient on the path from a baseline to x, times x -
    baseline.

    (x - baseline) * mean over i = 1 .. n of gradient(baseline + (i - 1/2) / n * (x - baseline)).
    The results of all elements add up to the change of the output, up to the error of the sum.

    Examples:
        >>> def slope(x):
        ...     return 2.0 * x  # the gradient of x * x
        >>> xg.attribution.integrated(slope, np.array([1.0, -3.0]))  # what each element added
        array([1., 9.])

    Args:
        gradient: takes a tensor like x and returns its gradient.
        x: the input, of any framework; in torch it need not require a gradient.
        baseline: the start of the path: a number, or a tensor that broadcasts to x.
        n: the number of points on the path.

    Returns:
        A tensor like x, which requires no gradient unless those of `gradient` do.

    Raises:
        RuleValueError: n is not a whole number or below 1, the baseline does not broadcast to x, or
            gradient returned another shape.

    Source: Sundararajan et al., 2017 (arXiv 1703.01365), eq. 3, at the middles of the steps.
    """
    _check_broadcasts(x, "baseline", baseline)
    x = _asking(x)
    difference = x - baseline
    # The middles of the steps, from the baseline to x.
    points = (x - difference * ((n - i - 0.5) / n) for i in range(_count(n)))
    mean = _mean(gradient, x, points, n)
    # Of a gradient without a graph of its own, what it is multiplied by needs none.
    is_number = getattr(mean, "requires_grad", True) is False
    return mean * (xp.stop_gradient(difference) if is_number else difference)


def _asking(x: Tensor) -> Tensor:
    """Return x, as a copy that asks for a gradient where a tensor has to."""
    if getattr(x, "requires_grad", True):
        return x
    with suppress(RuntimeError):  # within a transform, which asks for none
        return xp.stop_gradient(x).requires_grad_()
    return x


def _mean(gradient: GradientOfTensor, x: Tensor, points: Any, n: int) -> Tensor:
    terms = map(gradient, points)
    # One after the other, so that few tensors are alive at a time.
    total = next(terms)
    own, shape = tuple(x.shape), getattr(total, "shape", None)
    if shape is None or tuple(shape) != own:
        got = f"a {type(total).__name__}" if shape is None else f"shape {tuple(shape)}"
        raise RuleValueError(
            f"gradient takes a tensor like x, of shape {own}, and returns one of that shape, but "
            f"returned {got}: give the gradient of a score, not the score, as in "
            "lambda x: torch.autograd.grad(model(x)[0, 3], x)[0] or jax.grad(score)"
        )
    for term in terms:
        total = total + term
    return total * (1.0 / n)


def _count(n: int) -> int:
    # True is an int, but no number of points.
    if isinstance(n, bool) or not hasattr(n, "__index__") or index(n) < 1:
        raise RuleValueError(f"a mean is over n points, a whole number of 1 or more, not {n!r:.40}")
    return index(n)


def _check_broadcasts(x: Tensor, name: str, value: Any) -> None:
    own, shape = tuple(x.shape), getattr(value, "shape", None)
    if shape is None:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise RuleValueError(
                f"{name} is a number or a tensor, not {type(value).__name__} {value!r:.40}"
            )
        return
    # Trailing axes, as in NumPy.
    trailing = own[len(own) - len(shape) :]
    fits = len(shape) <= len(own) and all(a in (1, b) for a, b in zip(shape, trailing, strict=True))
    if not fits:
        raise RuleValueError(
            f"{name} of shape {tuple(shape)} does not broadcast to the input's shape {own}"
        )
