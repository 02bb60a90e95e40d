"""Functions with a custom gradient as TensorFlow's users write them, to be imported unchanged."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, TypeAlias

Tensor: TypeAlias = Any


@cache
def written() -> dict[str, Callable[..., Any]]:
    """The decorated functions, by name."""
    import tensorflow as tf
    from tensorflow import math as tfm

    @tf.custom_gradient
    def log1pexp(x: Tensor) -> Any:
        e = tf.exp(x)

        def grad(upstream: Tensor) -> Tensor:
            return upstream * (1 - 1 / (1 + e))

        return tfm.log(1 + e), grad

    @tf.custom_gradient
    def clip_gradient_by_norm(x: Tensor) -> Any:
        y = tf.identity(x)

        def grad_fn(dy: Tensor) -> list[Any]:
            return [tf.clip_by_norm(dy, 0.5)]

        return y, grad_fn

    @tf.custom_gradient
    def reverse_gradient(x: Tensor, strength: float = 1.0) -> Any:
        def grad(dy: Tensor) -> Any:
            return -strength * dy, None

        return tf.identity(x), grad

    @tf.custom_gradient
    def straight_through_sign(x: Tensor) -> Any:
        def grad(dy: Tensor) -> Tensor:
            inside = tf.cast(tf.abs(x) <= 1.0, dy.dtype)
            return dy * inside

        return tf.where(x >= 0, tf.ones_like(x), -tf.ones_like(x)), grad

    @tf.custom_gradient
    def straight_through_round(x: Tensor) -> Any:
        return tf.round(x), lambda dy: dy

    @tf.custom_gradient
    def bilinear(x: Tensor, w: Tensor) -> Any:
        def grad(dy: Tensor) -> Any:
            return dy * w, tf.clip_by_value(dy * x, -1.0, 1.0)

        return x * w, grad

    @tf.custom_gradient
    def product_and_sum(x: Tensor, w: Tensor) -> Any:
        def grad(d_product: Tensor, d_sum: Tensor) -> Any:
            return d_product * w + 2.0 * d_sum, d_product * x - d_sum

        return (x * w, x + w), grad

    @tf.custom_gradient
    def spread(x: Tensor, w: Tensor) -> Any:
        def grad(*dys: Tensor) -> Any:
            return [tf.add_n([dys[0] * w, dys[1]]), dys[0] * x]

        return [x * w, x + w], grad

    @tf.custom_gradient
    def nested(pair: dict[str, Tensor]) -> Any:
        a, b = pair["a"], pair["b"]

        def grad(d_mean: Tensor, d_product: Tensor) -> Any:
            return {"a": d_product * b, "b": d_product * a + tf.broadcast_to(d_mean, tf.shape(b))}

        return {"product": a * b, "mean": tf.reduce_mean(a)}, grad

    @tf.custom_gradient
    def normalized(x: Tensor) -> Any:
        norm = tf.sqrt(tf.reduce_sum(tf.square(x), axis=-1, keepdims=True) + 1e-12)
        y = x / norm

        def grad(dy: Tensor) -> Tensor:
            return (dy - y * tf.reduce_sum(dy * y, axis=-1, keepdims=True)) / norm

        return y, grad

    @tf.custom_gradient
    def keyword_only(x: Tensor, *, width: float = 2.0) -> Any:
        def grad(dy: Tensor) -> Tensor:
            return dy * tf.maximum(1.0 - tf.abs(x) / width, 0.0)

        return tf.cast(x > 0, x.dtype), grad

    @tf.custom_gradient
    def with_variables_allowed(x: Tensor) -> Any:
        def grad(dy: Tensor, variables: Any = None) -> Any:
            if variables is not None:
                return dy * 3.0, [None] * len(variables)
            return dy * 3.0

        return x * 2.0, grad

    @tf.custom_gradient
    def fake_int8(x: Tensor) -> Any:
        scale = tf.reduce_max(tf.abs(x)) / 127.0
        q = tf.cast(tf.clip_by_value(tf.round(x / scale), -128, 127), tf.int8)

        def grad(upstream: Tensor) -> Tensor:
            return upstream * tf.cast(tf.abs(q) < 100, upstream.dtype)

        return tf.cast(q, x.dtype) * scale, grad

    @tf.custom_gradient
    def saturated(x: Tensor) -> Any:
        q = tf.saturate_cast(tf.cast(x * 200.0, tf.int32), tf.uint8)
        p = tf.saturate_cast(x * 1000.0, tf.int16)
        return tf.cast(q, tf.float32) + tf.cast(p - 5, tf.float32), lambda upstream: upstream * 0.5

    rounded = tf.grad_pass_through(lambda x: tf.math.floor(x) + 0.5)
    own = {name: f for name, f in locals().items() if name not in ("tf", "tfm", "rounded")}
    return {**own, "grad_pass_through": rounded}


def tree(x: Tensor, w: Tensor) -> dict[str, Tensor]:
    return {"a": x, "b": w}


# The function, what makes its arguments of two tensors, and whether every op in it is exact to the
# last bit.
CASES: dict[str, tuple[Callable[..., tuple[Any, ...]], bool]] = {
    "log1pexp": (lambda x, w: (x,), False),
    "clip_gradient_by_norm": (lambda x, w: (x,), False),
    "reverse_gradient": (lambda x, w: (x, 0.5), True),
    "straight_through_sign": (lambda x, w: (x,), True),
    "straight_through_round": (lambda x, w: (x,), True),
    "bilinear": (lambda x, w: (x, w), True),
    "product_and_sum": (lambda x, w: (x, w), True),
    "spread": (lambda x, w: (x, w), True),
    "nested": (lambda x, w: (tree(x, w),), False),
    "normalized": (lambda x, w: (x,), False),
    "keyword_only": (lambda x, w: (x,), True),
    "with_variables_allowed": (lambda x, w: (x,), True),
    "fake_int8": (lambda x, w: (w,), True),
    "saturated": (lambda x, w: (w,), True),
    "grad_pass_through": (lambda x, w: (x,), True),
}
