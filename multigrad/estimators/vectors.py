"""Vector quantization, and gradients that bypass operations; vectors lie along the last axis."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..core.support.trees import Tensor
from ..core.trace.xp import all as xp
from ..engine.trace.xp.transposes import untake_at
from .declared import codebook_of_vectors, estimator, same_shape, summed, widened

TABLE = np.array([[0.5, -1.0, 0.25, 1.0], [-0.75, 0.5, 1.5, 0.0], [1.0, 1.0, -1.0, 0.5]])


@estimator(
    shapes={"codebook": codebook_of_vectors},
    examples=(np.linspace(-1.0, 1.0, 12).reshape(3, 4), TABLE),
)
def vq(
    x: Tensor, codebook: Tensor, codebook_gradient: bool = False, with_index: bool = False
) -> Any:
    """The row of the codebook that is nearest to each vector of x, of equal ones the first; with
    with_index also its number.

    Gradients: x: 1; codebook: none, or with codebook_gradient to each row the sum of what its
    vectors get. Source: van den Oord et al., 2017 (VQ-VAE, arXiv 1711.00937), section 3.1.

    Examples:
        >>> x, codebook = np.array([[0.4, 0.6], [0.9, 0.2]]), np.array([[0.0, 1.0], [1.0, 0.0]])
        >>> chosen, index = xg.estimators.vq(x, codebook, with_index=True)
        >>> chosen, index
        (array([[0., 1.],
               [1., 0.]]), array([0, 1]))
    """
    table = widened(codebook)
    # |x - c|**2 / 2 without |x|**2 / 2, which is the same for all codes.
    near = xp.matmul(widened(x), xp.matrix_transpose(table)) - 0.5 * xp.sum(table * table, axis=-1)
    index = xp.argmax(near, axis=-1)
    nearest = xp.cast_like(xp.take(codebook, index, axis=0), x)

    def grad(grad_out: Any) -> Any:
        upstream = grad_out[0] if with_index else grad_out
        if not codebook_gradient:
            return upstream
        row_sums = untake_at(widened(upstream), index, table, axis=0)
        return upstream, xp.cast_like(row_sums, codebook)

    return ((nearest, index) if with_index else nearest), grad


@estimator(shapes={"q": same_shape})
def straight_through(x: Tensor, q: Tensor) -> Any:
    """q, exactly.

    Gradients: x: 1; q: none. Source: x + stop_gradient(q - x) of van den Oord et al., 2017 (VQ-VAE,
    arXiv 1711.00937), without its rounding.

    Examples:
        >>> x, q = np.array([0.4, 0.6]), np.array([0.0, 1.0])
        >>> y, pull = xg.vjp(xg.estimators.straight_through, x, q)
        >>> y, pull(np.array([2.0, 3.0]))[0]
        (array([0., 1.]), array([2., 3.]))
    """
    return xp.cast_like(q, x), lambda grad_out: grad_out


@estimator()
def replace_grad(x_forward: Tensor, x_backward: Tensor) -> Any:
    """x_forward, exactly.

    Gradients: x_forward: none; x_backward: 1, summed to its shape. Source: `ReplaceGrad` of
    VQGAN+CLIP (Crowson, 2021).

    Examples:
        >>> x, q = np.array([0.4, 0.6]), np.array([0.0, 1.0])
        >>> y, pull = xg.vjp(xg.estimators.replace_grad, q, x)
        >>> y, pull(np.array([2.0, 3.0]))[1]
        (array([0., 1.]), array([2., 3.]))
    """
    # Through `x_forward` alone the output would be the input itself.
    return x_forward, lambda grad_out: (None, summed(widened(grad_out), x_backward))


def unit(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the vectors of length 1, and their lengths as two factors; of 0 they are 0, 0 and 1.

    Squares of what is divided by the largest element neither overflow nor vanish.
    """
    largest = xp.max(xp.abs(x), axis=-1, keepdims=True)
    largest = xp.where(largest == 0, 1.0, largest)
    scaled = x / largest
    length = xp.sqrt(xp.sum(scaled * scaled, axis=-1, keepdims=True))
    return scaled / xp.where(length == 0, 1.0, length), length, largest


def dot(a: Tensor, b: Tensor) -> Tensor:
    return xp.sum(a * b, axis=-1, keepdims=True)


@estimator(shapes={"q": same_shape})
def rotation_trick(x: Tensor, q: Tensor) -> Any:
    """q, exactly: each vector of x turned to q and stretched.

    Gradients: x: the transpose of (|q| / |x|) * R, R the rotation that turns x to q, held constant:
    (|q| / |x|) * (g - 2 r (r . g) + 2 e (f . g)) with e = x / |x|, f = q / |q|, r = (e + f) / |e +
    f|; opposite vectors are reflected (r = 0); where x is 0 there is no direction, and g passes
    unchanged; q: none. Source: Fifty et al., 2024 (arXiv 2410.06424), section 4.

    Examples:
        >>> x, q = np.array([[1.0, 0.0]]), np.array([[0.0, 2.0]])
        >>> y, pull = xg.vjp(xg.estimators.rotation_trick, x, q)
        >>> y, pull(np.array([[0.0, 1.0]]))[0].round(3)  # turned and stretched as x is to q
        (array([[0., 2.]]), array([[2., 0.]]))
    """

    def grad(grad_out: Tensor) -> Tensor:
        upstream = widened(grad_out)
        e, length, largest = unit(widened(x))
        f, q_length, q_largest = unit(widened(q))
        r = unit(e + f)[0]
        # Fifty et al., 2024, section 4: the rotation without its matrix.
        rotated_grad = upstream - 2.0 * r * dot(r, upstream) + 2.0 * e * dot(f, upstream)
        is_zero = length == 0
        ratio = (q_length / xp.where(is_zero, 1.0, length)) * (q_largest / largest)
        return xp.cast_like(xp.where(is_zero, upstream, rotated_grad * ratio), x)

    return xp.cast_like(q, x), grad
