"""A batch normalization merged with the layer before it, so that a rule meets one linear layer."""

from __future__ import annotations

from typing import Any

Tensor = Any


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
    """Return the weight and bias of the layer that computes both: for the tensors of any framework.

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
        epsilon: what is added to the variance.
        axis: that of the channels in weight.
    """
    factor = 1.0 / (variance + epsilon) ** 0.5
    if scale is not None:
        factor = scale * factor
    merged = (0.0 - mean if bias is None else bias - mean) * factor
    if shift is not None:
        merged = merged + shift
    after = len(weight.shape) - 1 - axis % len(weight.shape)
    return weight * factor[(..., *(None,) * after)], merged
