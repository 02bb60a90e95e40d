"""A spike whose surrogate gradient has a width that is learned."""

from __future__ import annotations

import math
from typing import Any

from ...errors import RuleValueError, suggest
from ...trace.xp import all as xp
from .declared import estimator
from .precision import summed, widened

Tensor = Any
# Beyond it a sigmoid is flat in every dtype; an arc tangent only beyond the other, whose square
# float32 does not hold.
FLAT = {"sigmoid": 200.0, "arctan": 1e18}


@estimator(ranges={"width": "> 0 and finite"})
def learnable_step(x: Tensor, width: Tensor, kind: str = "sigmoid") -> Any:
    """1 where x > 0, else 0; width > 0, for all or per channel.

    Gradients: those of S(x / width): x: S'(u) / width; width: -u * S'(u) / width, u = x / width,
    summed to its shape. S is the logistic sigmoid, S'(u) = s(u) * s(-u), or with kind="arctan"
    S'(u) = 1 / (2 * (1 + (pi * u / 2)**2)). Source: the learnable width of Lian et al., 2023
    (Learnable Surrogate Gradient for Direct Training Spiking Neural Networks, IJCAI); the curves of
    Fang et al., 2021 (arXiv 2007.05785).

    Examples:
        >>> x, width = np.array([-1.0, 0.5]), np.array(0.5)
        >>> y, pull = xg.vjp(xg.estimators.learnable_step, x, width)
        >>> grad_x, grad_width = pull(np.ones(2))[:2]
        >>> y, grad_x.round(3), round(float(grad_width), 3)
        (array([0., 1.]), array([0.21 , 0.393]), 0.027)
    """
    if kind not in FLAT:
        raise RuleValueError(
            f"function 'learnable_step': param 'kind' is one of {', '.join(map(repr, FLAT))}, got "
            f"{kind!r}{suggest(kind, FLAT)}"
        )
    spread = widened(width)

    def grad(grad_out: Tensor) -> Any:
        u = xp.clip(widened(x) / spread, -FLAT[kind], FLAT[kind])
        if kind == "sigmoid":
            slope = xp.sigmoid(u) * xp.sigmoid(-u)
        else:
            slope = 0.5 / (1.0 + xp.square(0.5 * math.pi * u))
        passed = widened(grad_out) * slope / spread
        return xp.cast_like(passed, x), summed(-u * passed, width)

    return xp.where(x <= 0, 0.0, xp.sign(x)), grad
