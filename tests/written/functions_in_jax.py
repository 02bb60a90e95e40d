"""Functions with gradients of their own as JAX users write them; each must run everywhere as it
stands.

Run on JAX's arrays as it is, each is its own oracle (see test_from_custom_vjp.py).
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax, nn
from jax.numpy import clip as limit


# --- a static argument ----------------------------------------------------------------------------
@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def clip_gradient(x, bound):
    """Identity whose gradient is limited to [-bound, bound]."""
    return x


def _clip_gradient_fwd(x, bound):
    return x, None


def _clip_gradient_bwd(bound, residuals, g):
    return (limit(g, -bound, bound),)


clip_gradient.defvjp(_clip_gradient_fwd, _clip_gradient_bwd)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def reverse_gradient(strength, x):
    return x


reverse_gradient.defvjp(
    lambda strength, x: (x, ()), lambda strength, _, g: (jax.tree.map(lambda t: -strength * t, g),)
)


@functools.partial(jax.custom_vjp, nondiff_argnames=("axis",))
def softmax(x, axis=-1):
    z = jnp.exp(x - jnp.max(x, axis=axis, keepdims=True))
    return z / jnp.sum(z, axis=axis, keepdims=True)


def _softmax_fwd(x, axis):
    y = softmax(x, axis)
    return y, y


def _softmax_bwd(axis, y, g):
    return (y * (g - jnp.sum(g * y, axis=axis, keepdims=True)),)


softmax.defvjp(_softmax_fwd, _softmax_bwd)


# --- one input ------------------------------------------------------------------------------------
@jax.custom_vjp
def safe_norm(x):
    """The Euclidean norm, whose gradient is zero at zero."""
    return jnp.sqrt(jnp.sum(x * x))


def _safe_norm_fwd(x):
    norm = safe_norm(x)
    return norm, (x, norm)


def _safe_norm_bwd(residuals, g):
    x, norm = residuals
    is_zero = norm == 0
    return (jnp.where(is_zero, 0.0, g * x / jnp.where(is_zero, 1.0, norm)),)


safe_norm.defvjp(_safe_norm_fwd, _safe_norm_bwd)


@jax.custom_vjp
def round_through(x):
    return jnp.round(x)


round_through.defvjp(lambda x: (round_through(x), None), lambda _, g: (g,))


@jax.custom_jvp
def log1pexp(x):
    return jnp.log(1.0 + jnp.exp(x))


@log1pexp.defjvp
def _log1pexp_jvp(primals, tangents):
    (x,), (t,) = primals, tangents
    return log1pexp(x), (1 - 1 / (1 + jnp.exp(x))) * t


@jax.jit
@jax.custom_vjp
def spike(x):
    """A step with SuperSpike's gradient."""
    return jnp.heaviside(x, 0.0)


@jax.jit
def _surrogate(x, slope=10.0):
    return 1.0 / (slope * jnp.abs(x) + 1.0) ** 2


spike.__wrapped__.defvjp(lambda x: (spike(x), x), lambda x, g: (g * _surrogate(x),))


# --- several inputs and outputs -------------------------------------------------------------------
@jax.custom_vjp
def scale_and_shift(x, scale, shift):
    return x * scale + shift, scale


def _scale_fwd(x, scale, shift):
    return scale_and_shift(x, scale, shift), {"x": x, "scale": scale}


def _scale_bwd(residuals, cotangents):
    g, h = cotangents
    return g * residuals["scale"], 0.5 * jnp.sum(g * residuals["x"], axis=0) + h, None


scale_and_shift.defvjp(_scale_fwd, _scale_bwd)


@jax.custom_vjp
def polar(point):
    """Radius and angle of a point, as dicts."""
    return {"radius": jnp.hypot(point["x"], point["y"]), "x": point["x"]}


def _polar_fwd(point):
    out = polar(point)
    return out, (point, out["radius"])


def _polar_bwd(residuals, g):
    point, radius = residuals
    return (
        {"x": g["radius"] * point["x"] / radius + g["x"], "y": g["radius"] * point["y"] / radius},
    )


polar.defvjp(_polar_fwd, _polar_bwd)


@jax.custom_vjp
def take_weighted(weights, counts):
    return weights * counts.astype(weights.dtype)


take_weighted.defvjp(
    lambda weights, counts: (take_weighted(weights, counts), counts),
    lambda counts, g: (g * counts, np.zeros(counts.shape, jax.dtypes.float0)),
)


class Kept(NamedTuple):
    """What `lerp` keeps."""

    start: object
    end: object


def _make_lerp(weight):
    """A custom function in a closure, whose rules reach a helper and the factory's argument."""

    def mix(a, b):
        return a * (1 - weight) + b * weight

    @jax.custom_vjp
    def lerp(a, b):
        return mix(a, b)

    def forward(a, b):
        return lerp(a, b), Kept(a, b)

    def backward(kept, g):
        return mix(g, 0.0), lax.select(kept.start > kept.end, g * weight, jnp.zeros_like(g))

    lerp.defvjp(forward, backward)
    return lerp


lerp = _make_lerp(0.25)


@jax.custom_vjp
def multiply_perturbed(x, y):
    return x * y


def _multiply_fwd(x, y):
    kept = (x.value, y.value if x.perturbed else None)
    return x.value * y.value, kept


def _multiply_bwd(kept, g):
    x, y = kept
    if isinstance(g, jax.custom_derivatives.SymbolicZero):
        return None, None
    return g * y, g * x


multiply_perturbed.defvjp(_multiply_fwd, _multiply_bwd, symbolic_zeros=True)


@jax.custom_jvp
def scaled_sine(x, y):
    return jnp.sin(x) * y


scaled_sine.defjvps(lambda t, out, x, y: jnp.cos(x) * t * y, lambda t, out, x, y: jnp.sin(x) * t)


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def power(x, exponent):
    return x**exponent


@power.defjvp
def _power_jvp(exponent, primals, tangents):
    (x,), (t,) = primals, tangents
    return power(x, exponent), exponent * x ** (exponent - 1) * t


@jax.custom_jvp
def center(x):
    """The mean is taken away; the tangent map is its own transpose."""
    return x - x.mean()


center.defjvp(lambda primals, tangents: (center(*primals), tangents[0] - tangents[0].mean()))


@jax.custom_gradient
def with_pullback(x, y):
    mask = x > y

    def pull(g):
        return jnp.where(mask, g * 2.0, g), g * x

    return jnp.maximum(x, y), pull


# --- what substitution cannot see through ---------------------------------------------------------
@jax.custom_vjp
def sum_of_rows(x):
    return jax.vmap(lambda row: jnp.sum(row * row))(x)


sum_of_rows.defvjp(
    lambda x: (sum_of_rows(x), x), lambda x, g: (jax.vmap(lambda row, c: 2 * row * c)(x, g),)
)


# --- one inside the other -------------------------------------------------------------------------
@jax.custom_vjp
def quantize(x):
    return round_through(x * 4.0) / 4.0


quantize.defvjp(
    lambda x: (quantize(x), nn.sigmoid(x)), lambda s, g: (g * s * round_through(s + 0.25),)
)


# --- quantizers that go through int8, uint8 or float8 ---------------------------------------------
@jax.custom_vjp
def fake_int8(x):
    scale = jnp.max(jnp.abs(x), axis=-1, keepdims=True) / 127.0
    q = jnp.clip(jnp.round(x / scale), -128, 127).astype(jnp.int8)
    return q.astype(x.dtype) * scale


fake_int8.defvjp(lambda x: (fake_int8(x), None), lambda kept, ct: (ct,))


@jax.custom_vjp
def saturated(x):
    """What is beyond a dtype is its end, as JAX casts it."""
    q = jax.lax.convert_element_type(x * 100, jnp.uint8)
    return (q >> 1).astype(x.dtype) + (x * 100).astype("int8").astype(x.dtype)


saturated.defvjp(
    lambda x: (saturated(x), jnp.packbits(x > 0, axis=-1)),
    lambda kept, ct: (ct * jnp.unpackbits(kept, axis=-1, count=ct.shape[-1]).astype(ct.dtype),),
)


@jax.custom_jvp
def float8(x):
    limit = jnp.finfo(jnp.float8_e4m3fn).max.astype(x.dtype)
    return jnp.clip(x * 256, -limit, limit).astype(jnp.float8_e4m3fn).astype(x.dtype) / 256


@float8.defjvp
def _float8_jvp(primals, tangents):
    return float8(*primals), tangents[0]
