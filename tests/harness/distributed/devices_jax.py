"""Placement on four devices, and the networks and rules that `ranks/jax_devices.py` runs."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import multigrad as xg

PLACES = (P(None, "m"), P(("b", "m")))
ROWS = P("b")
RNG = np.random.default_rng(0)
X = RNG.standard_normal((8, 12)).astype(np.float32)
W = RNG.standard_normal(12).astype(np.float32)
COLLECTIVE = re.compile(
    r"= (\S+) (all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter)"
)


def grid(kind: AxisType = AxisType.Auto) -> Any:
    return jax.make_mesh((2, 2), ("b", "m"), axis_types=(kind, kind))


def line() -> Any:
    return jax.make_mesh((4,), ("b",), axis_types=(AxisType.Auto,))


def place(x: Any, mesh: Any, spec: P) -> Any:
    return jax.device_put(x, NamedSharding(mesh, spec))


def shards(f: Any, inputs: Any = ROWS, outputs: Any = ROWS, **options: Any) -> Any:
    options = {"mesh": line(), **options}
    return jax.jit(jax.shard_map(f, in_specs=inputs, out_specs=outputs, **options))


def gradient(rule: Any, key: Any = None) -> Callable[[Any], Any]:
    """Return the gradient of a network that is one activation under a rule."""

    def loss(x: Any) -> Any:
        with xg.use(rule, key=key):
            return (xg.activation("Linear")(x) * jax.lax.stop_gradient(x)).sum()

    return jax.grad(loss)


def collectives(f: Any, *args: Any) -> list[tuple[str, str]]:
    """Return the exchanges of a compiled function: what each gives, and its name."""
    return COLLECTIVE.findall(jax.jit(f).lower(*args).compile().as_text())


def close(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(found, expected, rtol=2e-6, atol=2e-6)


# --- functions, of what is shared and what is split ----------------------------------------------
@xg.custom_gradient
def constant_slope(x: Any) -> Any:
    return x * 1.0, lambda upstream: jnp.ones(x.shape, x.dtype) * 2.0


@functools.partial(xg.custom_gradient, native=True)
def constant_slope_as_it_is(x: Any) -> Any:
    return x * 1.0, lambda upstream: jnp.ones(x.shape, x.dtype) * 2.0


def forward(weight: Any, x: Any) -> Any:
    return jnp.tanh(weight) * x


def backward(upstream: Any, weight: Any, x: Any) -> Any:
    return (upstream * x).sum(0) * 0.5, upstream * jnp.tanh(weight)


shared = xg.function(forward, backward)
shared_as_it_is = xg.function(forward, backward, native=True)


@xg.custom_gradient
def repeated(x: Any) -> Any:
    """A loop that values end, of what is carried shared and split."""
    _, y = jax.lax.while_loop(
        lambda carry: jnp.all(carry[0] < 5.0),
        lambda carry: (carry[0] + 1.0, carry[1] * 0.5 + 0.1),
        (jnp.zeros(()), x),
    )
    return y, lambda upstream: upstream * 0.5


NETWORKS: dict[str, Callable[..., Any]] = {
    "constant": lambda w, x: constant_slope(w * x),
    "constant_as_it_is": lambda w, x: constant_slope_as_it_is(w * x),
    "shared": shared,
    "shared_as_it_is": shared_as_it_is,
    "loop": lambda w, x: repeated(w * x),
    "scan": lambda w, x: jax.lax.scan(lambda c, _: (shared(w, c), None), x, None, length=3)[0],
    "remat": lambda w, x: jax.checkpoint(shared)(w, constant_slope(x)),
}


# --- rules and functions that exchange numbers ----------------------------------------------------
@xg.register("scaled_by_all")
def scaled_by_all(ctx: Any, grad_out: Any, tin: Any) -> Any:
    spread = xg.xp.softmax(tin, axis=0) * xg.xp.std(tin) + xg.xp.max(grad_out)
    return grad_out * spread * xg.xp.sum(xg.xp.ones_like(tin))


@xg.register("by_psum")
def by_psum(ctx: Any, grad_out: Any, tin: Any) -> Any:
    return grad_out / jnp.sqrt(jax.lax.psum((grad_out * grad_out).sum(), "b"))


@xg.register("by_pmean")
def by_pmean(ctx: Any, grad_out: Any, tin: Any) -> Any:
    return grad_out - jax.lax.pmean(grad_out.mean(), ("b",)) + jax.lax.pmin(tin, "b")


@xg.register("by_size")
def by_size(ctx: Any, grad_out: Any, tin: Any) -> Any:
    return grad_out / jax.lax.axis_size("b")


@xg.register("by_count")
def by_count(ctx: Any, grad_out: Any, tin: Any) -> Any:
    return grad_out / jax.lax.psum(1, "b")


@jax.custom_vjp
def total(x: Any) -> Any:
    return jax.lax.psum((x**2).sum(), "b")


def total_kept(x: Any) -> Any:
    return total(x), x


def total_pulled(x: Any, upstream: Any) -> Any:
    return (upstream * 3.0 * x / jax.lax.pmax(jnp.abs(x).max(), "b"),)


total.defvjp(total_kept, total_pulled)
