"""Objects of TensorFlow packages that a factory makes, and the examples of its documentation."""

from __future__ import annotations

import tensorflow as tf

Tensor = tf.Tensor


@tf.custom_gradient
def log1pexp(x: Tensor) -> tuple[Tensor, object]:
    """Return log(1 + exp(x)), as TensorFlow's documentation has it."""
    e = tf.exp(x)

    def grad(upstream: Tensor) -> Tensor:
        return upstream * (1 - 1 / (1 + e))

    return tf.math.log(1 + e), grad


@tf.custom_gradient
def clip_gradient(x: Tensor) -> tuple[Tensor, object]:
    """Clip a gradient by its norm, as TensorFlow's documentation has it."""

    def backward(dy: Tensor) -> Tensor:
        return tf.clip_by_norm(dy, 0.5)

    return x, backward


def pass_through_round(x: Tensor) -> Tensor:
    """Round with the gradient of an identity."""
    return tf.grad_pass_through(tf.round)(x * 3.0)


def straight_through_layer(x: Tensor) -> Tensor:
    """Apply a custom gradient that is made in the function."""

    @tf.custom_gradient
    def spike(v: Tensor) -> tuple[Tensor, object]:
        def grad(dy: Tensor) -> Tensor:
            return dy / (1.0 + tf.abs(v)) ** 2

        return tf.cast(v > 0, v.dtype), grad

    return spike(x) * x


def square(x: Tensor) -> Tensor:
    """Return the square."""
    return x * x


def tfp_sigmoid_softplus(x: Tensor) -> Tensor:
    """Apply the bijector whose softplus has a stable gradient."""
    from tensorflow_probability.python.bijectors import softplus

    return softplus.Softplus().forward(x)


def larq_ste_sign(x: Tensor) -> Tensor:
    """Apply a quantizer's formula: the object itself is a layer of an old Keras."""
    import larq

    return larq.quantizers.SteSign(clip_value=1.0).call(x)


def larq_ste_heaviside(x: Tensor) -> Tensor:
    """Apply a quantizer's formula: the object itself is a layer of an old Keras."""
    import larq

    return larq.quantizers.SteHeaviside(clip_value=1.0).call(x)


def larq_swish_sign(x: Tensor) -> Tensor:
    """Apply a quantizer's formula: the object itself is a layer of an old Keras."""
    import larq

    return larq.quantizers.SwishSign(beta=5.0).call(x)


def larq_ste_tern(x: Tensor) -> Tensor:
    """Apply a quantizer's formula: the object itself is a layer of an old Keras."""
    import larq

    return larq.quantizers.SteTern().call(x)


def larq_dorefa(x: Tensor) -> Tensor:
    """Apply a quantizer's formula: the object itself is a layer of an old Keras."""
    import larq

    return larq.quantizers.DoReFa(k_bit=2).call(x)


def larq_magnitude_aware_sign(x: Tensor) -> Tensor:
    """Apply a quantizer's formula: the object itself is a layer of an old Keras."""
    import larq

    return larq.quantizers.MagnitudeAwareSign().call(x)


def nested_custom_gradient(x: Tensor) -> Tensor:
    """Apply one custom gradient to another."""
    return log1pexp(clip_gradient(2.0 * x)) * x


def keras_quantizer_layer(x: Tensor) -> Tensor:
    """Quantize as Keras's own layers do."""
    import keras

    low, high = tf.constant(-1.0), tf.constant(1.0)
    return keras.quantizers.fake_quant_with_min_max_vars(x, low, high)


def positive_definite(x: Tensor) -> Tensor:
    """Return a matrix that has a Cholesky factor."""
    return tf.matmul(x, x, transpose_b=True) + 3.0 * tf.eye(x.shape[-2], dtype=x.dtype)


def tfp_hpsd_logdet(x: Tensor) -> Tensor:
    """Return a logarithm of a determinant, whose gradient is the inverse."""
    from tensorflow_probability.python.math import linalg

    return linalg.hpsd_logdet(positive_definite(x))


def tfp_hpsd_solve(x: Tensor, b: Tensor) -> Tensor:
    """Solve, with the factor used again in the gradient."""
    from tensorflow_probability.python.math import linalg

    return linalg.hpsd_solve(positive_definite(x), b)


def tfp_hpsd_quadratic_form_solve(x: Tensor, b: Tensor) -> Tensor:
    """Return b^T A^-1 b."""
    from tensorflow_probability.python.math import linalg

    return linalg.hpsd_quadratic_form_solve(positive_definite(x), b)


def tfp_hpsd_quadratic_form_solvevec(x: Tensor, b: Tensor) -> Tensor:
    """Return the same of a vector."""
    from tensorflow_probability.python.math import linalg

    return linalg.hpsd_quadratic_form_solvevec(positive_definite(x), b)


def tfp_sigmoid_low_high(x: Tensor) -> Tensor:
    """Apply the bijector whose softplus has a stable gradient, within bounds."""
    from tensorflow_probability.python.bijectors import sigmoid

    return sigmoid.Sigmoid(low=-1.0, high=2.0).inverse_log_det_jacobian(
        tf.sigmoid(x), event_ndims=0
    )
