"""Rules as JAX users write them; every function here is a rule that must be captured as it stands.

Run on JAX's arrays as it is, each is its own oracle (see test_rules_of_libraries.py).
"""

import functools

import jax
import jax.numpy as jnp
from jax import lax, nn
from jax.numpy import exp as e_to_the
from jax.numpy import where as choose

from . import helpers_in_jax as helpers
from .helpers_in_jax import Curve

THRESHOLD = jnp.float32(0.75)
CURVES = {"bell": lambda x: jnp.exp(-(x**2)), "step": jnp.sign}
WEIGHTS = jnp.array([0.5, 1.0, 1.5, 2.0])


def _soft_mask(x, width):
    return nn.sigmoid(x / max(width, 1e-6))


@jax.jit
def _jitted(x):
    return jnp.tanh(x) * jnp.float32(2.0).astype(x.dtype)


@functools.partial(jax.jit, static_argnames="power")
def _jitted_power(x, power=2):
    return jnp.abs(x) ** power


@jax.custom_jvp
def _own_jvp(x):
    return jnp.log1p(jnp.exp(-jnp.abs(x)))


@_own_jvp.defjvp
def _own_jvp_rule(primals, tangents):
    return _own_jvp(*primals), tangents[0]


@jax.custom_vjp
def _straight_through(x):
    return jnp.round(x)


_straight_through.defvjp(lambda x: (jnp.round(x), None), lambda _, g: (g,))


class _Window:
    """An object whose method is written in jax.numpy."""

    def __init__(self, width, curve):
        self.width = width
        self.curve = curve

    def inside(self, x):
        return jnp.abs(x) < self.width

    def __call__(self, x):
        return self.inside(x) * self.curve(x)


WINDOW = _Window(1.5, jnp.cos)


def name_imported_from_jax(ctx, grad_out, tin):
    return choose(tin > THRESHOLD, grad_out, e_to_the(-tin))


def clamped(ctx, grad_out, tin):
    return lax.clamp(-1.0, grad_out, 1.0) + jnp.clip(tin, min=0.25) + jnp.clip(grad_out, -0.5, 0.5)


def log_tailed(ctx, grad_out, tin):
    tail = jnp.piecewise(tin, [tin > 0, tin > 1], [1.0, lambda x: 1 / x, 0.1])
    return grad_out * tail


def activations(ctx, grad_out, tin):
    curves = nn.relu(tin) + nn.leaky_relu(tin) + nn.elu(tin) + nn.selu(tin) + nn.celu(tin, 0.5)
    more = nn.silu(tin) + nn.softplus(tin) + nn.gelu(tin) + nn.gelu(tin, approximate=False)
    hard = nn.relu6(tin) + nn.hard_tanh(tin) + nn.hard_sigmoid(tin) + nn.hard_swish(tin)
    rest = nn.log_sigmoid(tin) + nn.soft_sign(tin) + nn.squareplus(tin) + nn.mish(tin)
    return grad_out * (curves + more + hard + rest + nn.sparse_plus(tin))


def along_axes(ctx, grad_out, tin):
    weights = nn.softmax(tin) + jax.nn.log_softmax(tin, axis=0) + nn.standardize(tin)
    return grad_out * weights + nn.logsumexp(tin, axis=-1, keepdims=True)


def clip_by_norm(ctx, grad_out, tin, max_norm: float = 1.0):
    norm = jnp.linalg.norm(grad_out, axis=-1, keepdims=True)
    return grad_out * jnp.minimum(1.0, max_norm / jnp.maximum(norm, 1e-12))


def centered(ctx, grad_out, tin):
    return grad_out - jnp.mean(grad_out, axis=-1, keepdims=True) - grad_out.mean(0)


def standardized(ctx, grad_out, tin):
    spread = jnp.std(grad_out) + grad_out.std(axis=0) + jnp.var(tin, ddof=1) + tin.var()
    return (grad_out - grad_out.mean()) / spread


def masked_reductions(ctx, grad_out, tin):
    inside = jnp.abs(tin) < 1
    total = jnp.sum(grad_out, where=inside) + jnp.mean(tin, axis=0, where=tin > -5)
    return grad_out * total + jnp.max(tin, initial=0.5) - jnp.ptp(tin, axis=1, keepdims=True)


def running_sums(ctx, grad_out, tin):
    back = lax.cumsum(grad_out, axis=1, reverse=True)
    back = back + lax.cumlogsumexp(tin, axis=1, reverse=True)
    return back + jnp.cumsum(tin, axis=0) + lax.cummax(tin, axis=1)


def at_a_mask(ctx, grad_out, tin):
    return grad_out.at[tin < 0].set(0.0).at[tin > 1].multiply(2.0).at[tin == 1].add(tin[tin == 1])


def at_a_row(ctx, grad_out, tin):
    kept = grad_out.at[0].set(0.0).at[:, 1].add(tin[:, 1]).at[-1, 2:].max(0.5)
    return kept.at[1].set(tin[1]).at[..., 0].apply(jnp.abs) + grad_out.at[0].get() * 0


def at_rows(ctx, grad_out, tin):
    rows = jnp.array([0, 2])
    return grad_out.at[rows].set(0.5).at[rows].add(1.0) * tin.at[jnp.array([1, 1])].multiply(2.0)


def branch_on_a_param(ctx, grad_out, tin, width: float = 1.0):
    return lax.cond(width > 0, lambda g: g * tin, lambda g: -g, grad_out)


def update_of_a_copy(ctx, grad_out, tin):
    kept = grad_out
    grad_out += 1.0  # arrays of jax do not change
    return kept * tin + grad_out


def made_from_shapes(ctx, grad_out, tin):
    ones = jnp.ones(tin.shape, tin.dtype) + jnp.zeros_like(tin) + jnp.full(tin.shape, 2.0)
    return grad_out * ones + jnp.arange(tin.shape[-1]) + jnp.linspace(0.0, 1.0, tin.shape[1])


def constants(ctx, grad_out, tin):
    half = jnp.asarray(0.5, dtype=tin.dtype)
    return grad_out * half * WEIGHTS + jnp.array([1.0, -1.0, 0.0, 2.0], tin.dtype) * jnp.inf**-1


def smallest_number(ctx, grad_out, tin):
    return grad_out / (jnp.abs(tin) + jnp.finfo(tin.dtype).eps)


def branch_on_dtype(ctx, grad_out, tin):
    if not jnp.issubdtype(tin.dtype, jnp.floating) or tin.dtype == jnp.bfloat16:
        return grad_out
    return grad_out * tin.astype(jnp.float32).astype(grad_out.dtype)


def branch_on_class(ctx, grad_out, tin):
    return grad_out * tin if isinstance(tin, jax.Array) and tin.ndim == 2 else grad_out


def without_nan(ctx, grad_out, tin):
    ratio = tin / jnp.where(tin == 0, 0.0, 1.0)
    return grad_out * jnp.nan_to_num(ratio, nan=2.0) + jnp.isfinite(ratio)


def stopped(ctx, grad_out, tin):
    return lax.stop_gradient(grad_out) * jnp.heaviside(tin, 0.5) + lax.max(tin, lax.neg(tin))


def shapes(ctx, grad_out, tin):
    flat = jnp.ravel(tin)[::-1].reshape(tin.shape)
    moved = jnp.transpose(jnp.moveaxis(tin, 0, 1)) + jnp.flip(tin, 0) + jnp.roll(tin, 1, axis=1)
    joined = jnp.concatenate([tin, grad_out], axis=0)[:3] + jnp.stack([tin, tin])[0]
    return grad_out + flat + moved + joined + jnp.squeeze(tin[None], 0) + tin[0][None, :]


def loops(ctx, grad_out, tin):
    return lax.fori_loop(0, 3, lambda i, x: 0.5 * (x + jnp.abs(tin) / (jnp.abs(x) + 1)), grad_out)


def helper(ctx, grad_out, tin, width: float = 2.0):
    return grad_out * _soft_mask(tin, width)


def jitted_helpers(ctx, grad_out, tin):
    return grad_out * _jitted(tin) + _jitted_power(tin, power=3)


def jitted_inside(ctx, grad_out, tin):
    square = jax.jit(lambda x: jnp.square(x))
    return grad_out * square(tin)


def helpers_with_gradients_of_their_own(ctx, grad_out, tin):
    return grad_out * _own_jvp(tin) + _straight_through(tin)


def partial_of_a_function(ctx, grad_out, tin):
    leaky = functools.partial(nn.leaky_relu, negative_slope=0.3)
    return grad_out * leaky(tin)


def functions_in_a_table(ctx, grad_out, tin):
    return grad_out * sum(curve(tin) for curve in CURVES.values())


def methods_of_an_object(ctx, grad_out, tin):
    return grad_out * WINDOW(tin) + WINDOW.inside(tin)


def imported_inside(ctx, grad_out, tin):
    import jax.numpy as numpy_of_jax
    from jax.nn import softplus as smooth

    return grad_out * numpy_of_jax.tanh(tin) + smooth(tin)


def module_of_helpers(ctx, grad_out, tin):
    return grad_out * helpers.soft(tin, 2.0) + helpers.TABLE[0](tin) + helpers.jitted(grad_out)


def default_of_a_helper(ctx, grad_out, tin):
    return grad_out * helpers.soft(tin) + helpers.soft(tin, curve=jnp.tanh)


def class_of_the_users(ctx, grad_out, tin):
    return grad_out * Curve(tin).value() + Curve.bell(tin)


def _make_alias_in_a_closure():
    np_of_jax, smooth, linear = jnp, nn.softplus, jax.lax

    def alias_in_a_closure(ctx, grad_out, tin):
        def inner(x):
            return np_of_jax.where(x > 0, smooth(x), linear.neg(x))

        return grad_out * inner(tin)

    return alias_in_a_closure


ALIAS = _make_alias_in_a_closure()


def alias_in_a_closure(ctx, grad_out, tin):
    return ALIAS(ctx, grad_out, tin)


def helper_imported_inside(ctx, grad_out, tin):
    from .helpers_in_jax import soft as soft_step

    return grad_out * soft_step(tin)
