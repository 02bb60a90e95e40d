"""Rules as TensorFlow users write them; every function here is a rule that must be captured as it
stands.

Run on tensors as it is, each is its own oracle (see test_capture_tensorflow.py).
"""

import functools

import tensorflow as tf
import tensorflow.math as tfm
from tensorflow import where as choose

WINDOW = tf.constant(0.75)
SLOPES = [0.5, 1.0, 1.5, 2.0]
CURVES = {"bump": tf.nn.softplus, "step": tf.math.sign}


def _soft_mask(x, width):
    return tf.sigmoid(x / max(width, 1e-6))


def _inside(low, high):
    def mask(x):
        return tf.cast(tf.logical_and(x >= low, x <= high), x.dtype)

    return mask


@tf.function
def _compiled_helper(x):
    return tf.nn.relu(x) + 0.5


@tf.custom_gradient
def _with_a_gradient_of_its_own(x):
    def grad(upstream):
        return upstream * 0.0

    return tf.tanh(x), grad


class _Window:
    """An object that holds functions of TensorFlow."""

    curve = staticmethod(tf.nn.silu)

    def __init__(self, width):
        self.width = width
        self.measure = tf.math.abs

    def __call__(self, x):
        return self.curve(x) * tf.cast(self.measure(x) <= self.width, x.dtype)


_unit_window = _Window(1.0)
_between = _inside(-1.0, 1.0)
_clipped = functools.partial(tf.clip_by_value, clip_value_min=-0.5, clip_value_max=0.5)


def rectangular_in_single(ctx, grad_out, tin):
    return grad_out * tf.cast(tf.abs(tin) < 0.5, tf.float32, name="mask")


def erf_window(ctx, grad_out, tin):
    return grad_out * (tf.math.erf(tin + 1.0) - tf.math.erfc(1.0 - tin)) / tf.math.lgamma(3.5 + tin)


def log_tailed(ctx, grad_out, tin):
    tail = tf.math.divide_no_nan(tf.ones_like(tin), tin)
    return grad_out * tf.where(tin > 1.0, tail, tf.cast(tf.greater(tin, 0.0), tin.dtype))


def approximate_sign(ctx, grad_out, tin):
    window = tf.math.multiply_no_nan(2.0 * (1.0 - tf.abs(tin)), _between(tin))
    return window * grad_out


def swish_sign(ctx, grad_out, tin, beta: float = 5.0):
    bell = 2.0 - beta * tin * tf.tanh(beta * tin / 2.0)
    return grad_out * beta * bell / (1.0 + tf.cosh(beta * tin))


def clip_by_value(ctx, grad_out, tin):
    return tf.clip_by_value(grad_out, -0.5, 0.5) + tf.clip_by_value(tin, tf.constant(-1.0), 1.0)


def centralized(ctx, grad_out, tin):
    return grad_out - tf.reduce_mean(grad_out, axis=list(range(1, len(tin.shape))), keepdims=True)


def standardized(ctx, grad_out, tin):
    mean, variance = tf.nn.moments(tin, axes=[0])
    spread = tf.math.reduce_std(grad_out) + tf.math.reduce_variance(grad_out, axis=0)
    return (grad_out - mean) * tf.math.rsqrt(variance + 1e-3) / spread


def any_and_all(ctx, grad_out, tin):
    few = tf.reduce_any(tin > 2, axis=1, keepdims=True)
    return tf.where(few & tf.reduce_all(tf.math.is_finite(tin)), grad_out, 0.0)


def number_of_elements(ctx, grad_out, tin):
    count = tf.cast(tf.size(tin), tin.dtype)
    rows = tf.cast(tf.shape(tin)[0], tf.float32)
    return grad_out / count + tin * rows / tf.cast(tf.reduce_prod(tf.shape(tin)), grad_out.dtype)


def shapes_by_name(ctx, grad_out, tin):
    assert tin.shape.rank == tf.rank(tin) == tin.get_shape().ndims
    static = tin.shape.as_list()
    return grad_out / static[-1] + tf.reshape(tf.reshape(tin, [-1]), tf.shape(grad_out))


def made_from_a_shape(ctx, grad_out, tin):
    ones = tf.ones(tf.shape(tin), dtype=tin.dtype) + tf.ones_like(tin, name="ones")
    filled = tf.fill(tf.shape(tin), 0.5) + tf.zeros(shape=tin.shape)
    return grad_out * ones + filled * tf.broadcast_to(tf.reduce_max(tin), tf.shape(tin))


def quantized_to_four_bits(ctx, grad_out, tin):
    level = tf.cast(tf.round(tf.clip_by_value(tin, -1.0, 1.0) * 7.0), tf.int32)
    odd = tf.bitwise.bitwise_and(level, 1)
    return grad_out * tf.cast(odd, grad_out.dtype) + tf.cast(level // 2, tf.float32)


def operators(ctx, grad_out, tin):
    inside = (tin > -1) & ~(tin > 1)
    total = grad_out**2 - tin * 2 + 1 / (abs(tin) + 1)
    total += -grad_out
    return tf.where(inside | (tin == 2.9), total, tin % 2.0)


def module_under_another_name(ctx, grad_out, tin):
    return choose(tfm.is_nan(tin), 0.0, grad_out) * tfm.log1p(tfm.exp(tin))


def module_imported_inside(ctx, grad_out, tin):
    import tensorflow as t
    from tensorflow.nn import softplus

    return grad_out * t.math.tanh(softplus(tin))


def functions_in_containers(ctx, grad_out, tin):
    total = grad_out
    for curve in CURVES.values():
        total = total * curve(tin)
    return total


def function_with_arguments_bound(ctx, grad_out, tin):
    return _clipped(grad_out) * _clipped(tin, clip_value_max=1.0)


def helpers(ctx, grad_out, tin, width: float = 2.0):
    return grad_out * _soft_mask(tin, width) * _unit_window(tin) + _compiled_helper(tin)


def helper_with_a_gradient_of_its_own(ctx, grad_out, tin):
    @tf.custom_gradient
    def local(x):
        return tf.nn.relu(x), lambda upstream: upstream

    return grad_out * _with_a_gradient_of_its_own(tin) + local(tin)


def constants(ctx, grad_out, tin):
    weights = tf.constant(SLOPES) * tf.convert_to_tensor([1.0, -1.0, 1.0, -1.0], dtype=tin.dtype)
    return WINDOW * grad_out * weights + tf.constant(2.0) ** tin


def branch_on_dtype(ctx, grad_out, tin):
    if tf.as_dtype(tin.dtype) in (tf.float32, tf.float64) and tf.float16 != tin.dtype:
        return grad_out / (tf.abs(tin) + float(tin.dtype.as_numpy_dtype(0.5)))
    return grad_out


def branch_on_class(ctx, grad_out, tin):
    return grad_out * tin if isinstance(tin, tf.Tensor) and tf.is_tensor(tin) else grad_out


def scoped(ctx, grad_out, tin):
    with tf.name_scope("surrogate"), tf.device("/device:CPU:0"):
        return tf.multiply(grad_out, tf.subtract(tin, tf.divide(tin, 2.0)), name="scaled")


def raw_operations(ctx, grad_out, tin):
    return tf.raw_ops.Mul(x=grad_out, y=tf.raw_ops.Tanh(x=tin)) + tf.raw_ops.Relu(features=tin)
