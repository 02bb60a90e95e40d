"""Discrete draws with a gradient.

Random numbers are the library's own, the same under a key on every framework:
`function.keyed(7)(x)`.
"""

from __future__ import annotations

from typing import Any

from ..core.support.trees import Tensor
from ..core.trace.xp import all as xp
from .declared import estimator, summed, widened


@estimator(ranges={"tau": "> 0 and finite"})
def gumbel_softmax(logits: Tensor, tau: float = 1.0, hard: bool = True, axis: int = -1) -> Any:
    """y = softmax((logits + G) / tau) along axis, G standard Gumbel noise; hard: 1 where y is
    largest, else 0.

    Gradients: those of y at the noise that was drawn, hard or not: logits: y * (g - sum(g * y)) /
    tau; tau: through logits / tau. Source: Jang et al., 2017 (arXiv 1611.01144) and Maddison et
    al., 2017 (arXiv 1611.00712); `gumbel_softmax` of torch.nn.functional.

    Examples:
        >>> logits = np.array([[0.0, 1.0, 2.0], [2.0, 1.0, 0.0]])
        >>> drawn = xg.estimators.gumbel_softmax.keyed(7)(logits)
        >>> drawn.sum(axis=-1)  # one of each row is 1
        array([1., 1.])
    """
    wide, heat = widened(logits), widened(tau)
    noisy = wide + xp.gumbel_like(wide)
    # Shifted by the maximum, so that no exp overflows, however small tau is.
    shifted_logits = (noisy - xp.max(noisy, axis=axis, keepdims=True)) / heat
    y = xp.softmax(shifted_logits, axis=axis)
    # The mask would hide NaN.
    sample = xp.where(xp.isnan(y), y, xp.argmax_mask(noisy, axis=axis)) if hard else y

    def grad(grad_out: Tensor) -> Any:
        weighted = widened(grad_out) * y
        inner = (weighted - y * xp.sum(weighted, axis=axis, keepdims=True)) / heat
        # A logit of -inf has probability 0, and no part in the gradient.
        of_tau = xp.where(y == 0, 0.0, -inner * shifted_logits)
        return xp.cast_like(inner, logits), summed(of_tau, tau)

    return xp.cast_like(sample, logits), grad


@estimator(ranges={"p": ">= 0 and <= 1"})
def bernoulli_straight_through(p: Tensor) -> Any:
    """1 with probability p, else 0.

    Gradients: p: 1. Source: Bengio et al., 2013 (arXiv 1308.3432), section 4.

    Examples:
        >>> draw = xg.estimators.bernoulli_straight_through.keyed(7)
        >>> y, pull = xg.vjp(draw, np.array([0.0, 0.5, 1.0]))
        >>> y[[0, 2]], pull(np.ones(3))[0]
        (array([0., 1.]), array([1., 1., 1.]))
    """
    sample = xp.bernoulli_like(p, p)
    # A comparison with NaN draws 0, which would hide it.
    return xp.where(xp.isnan(p), p, sample), lambda grad_out: grad_out


@estimator()
def bernoulli_st(logits: Tensor) -> Any:
    """1 with probability sigmoid(logits), else 0.

    Gradients: logits: s * (1 - s), s = sigmoid(logits). Source: Bengio et al., 2013 (arXiv
    1308.3432), section 4, with the slope of the probability.

    Examples:
        >>> y, pull = xg.vjp(xg.estimators.bernoulli_st.keyed(7), np.array([-50.0, 0.0, 50.0]))
        >>> y[[0, 2]], pull(np.ones(3))[0].round(3)
        (array([0., 1.]), array([0.  , 0.25, 0.  ]))
    """
    sample = xp.bernoulli_like(logits, xp.sigmoid(logits))

    def grad(grad_out: Tensor) -> Tensor:
        return grad_out * (xp.sigmoid(logits) * xp.sigmoid(-logits))

    return xp.where(xp.isnan(logits), logits, sample), grad
