"""Rules on the shards of four devices of one process: what they mean, sums of gradients, draws."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from harness.distributed.ranks import check
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import multigrad as xg

x = np.array([-1.3, -0.45, -0.2, 0.1, 0.3, 0.48, 0.9], np.float32)
w = np.array([0.5, -1.0, 2.0, 0.7, 0.3, -0.2, 1.1], np.float32)
batch = np.stack([x, 0.5 * x, -x, 2.0 * x])


def clip(g: Any, x: Any) -> Any:
    return g / max(1.0, np.linalg.norm(g))


formulas = {
    "triangular": lambda g, x: g * np.maximum(0.0, 1.0 - np.abs(x)),
    "rectangular": lambda g, x: g * (np.abs(x) <= 0.5),
    "d(Linear)": lambda g, x: g,
    "clip_norm": clip,
}
act = xg.activation("Tanh")


def line() -> Any:
    return jax.make_mesh((4,), ("b",), axis_types=(AxisType.Auto,))


def loss(x: Any) -> Any:
    return (act(x) * w).sum()


def close(got: Any, expected: Any) -> None:
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


def shard(f: Any, inputs: Any, outputs: Any) -> Any:
    return jax.shard_map(f, mesh=line(), in_specs=inputs, out_specs=outputs)


@check()
def rules_on_shards_devices_and_whole_arrays_mean_what_jax_says() -> None:
    assert jax.device_count() == 4
    for rule, formula in formulas.items():
        with xg.use(rule):
            per_shard = np.stack([formula(w, row) for row in batch])
            close(shard(jax.grad(loss), P("b"), P("b"))(batch), per_shard)
            through = shard(act, P("b"), P("b"))
            close(jax.grad(lambda x, f=through: (f(x) * w).sum())(batch), per_shard)
            close(jax.pmap(jax.grad(loss))(batch), per_shard)
            whole = formula(np.broadcast_to(w, batch.shape), batch)
            placed = jax.device_put(batch, NamedSharding(line(), P("b")))
            close(jax.jit(jax.grad(loss))(placed), whole)


@check()
def a_weight_that_all_shards_share_gets_the_sum_of_their_gradients() -> None:
    def before(weight: Any, x: Any) -> Any:  # the rule acts on each shard's own values
        return jax.lax.psum((act(x * weight) * w).sum(), "b")

    def on_weight(weight: Any, x: Any) -> Any:  # the rule acts on what all shards share
        return jax.lax.psum((act(weight) * x).sum(), "b")

    for rule, formula in formulas.items():
        with xg.use(rule):
            got = shard(jax.grad(before), (P(), P("b")), P())(np.ones_like(x), batch)
            close(got, sum(formula(w, row) * row for row in batch))
            got = shard(jax.grad(on_weight), (P(), P("b")), P())(x, batch)
            close(got, formula(batch.sum(0), x))


@check()
def key_in_a_shard_map_is_the_same_on_every_shard_unless_folded_in() -> None:
    def draw(x: Any) -> Any:
        key = jax.random.fold_in(jax.random.key(3), jax.lax.axis_index("b"))
        with xg.use("full_jam", key=key):
            return jax.grad(lambda x: act(x).sum())(x)

    rows = shard(draw, P("b"), P("b"))(batch)
    for i, row in enumerate(rows):
        key = jax.random.fold_in(jax.random.fold_in(jax.random.key(3), i), 0)
        np.testing.assert_array_equal(row, jax.random.uniform(key, (1, 7))[0])
    with xg.use("full_jam", key=3):
        rows = np.asarray(shard(jax.grad(lambda x: act(x).sum()), P("b"), P("b"))(batch))
    assert (rows == rows[0]).all()


@check()
def each_device_draws_its_part() -> None:
    mesh = jax.make_mesh((2, 2), ("a", "b"), axis_types=(AxisType.Auto,) * 2)
    x = np.zeros((8, 12), np.float32)
    act = xg.activation("Linear")
    key = jax.random.fold_in(jax.random.key(7), 0)
    whole = np.asarray(jax.random.uniform(key, x.shape))

    def draw(x: Any, over: Any = None, rule: str = "full_jam") -> Any:
        with xg.use(rule, key=7, over=over):
            return jax.grad(lambda x: act(x).sum())(x)

    def on_shards(f: Any, spec: Any, **options: Any) -> Any:
        return jax.jit(jax.shard_map(f, mesh=mesh, in_specs=spec, out_specs=spec, **options))

    for spec in (P("a"), P(None, "b"), P("b", "a"), P(("b", "a")), P(None, ("a", "b"))):
        for check_vma in (True, False):
            drawn = on_shards(lambda x, s=spec: draw(x, s), spec, check_vma=check_vma)(x)
            np.testing.assert_array_equal(drawn, whole)
    for spec in (P("a"), P(("a", "b"))):  # along whatever axes the batch is split
        np.testing.assert_array_equal(on_shards(lambda x: draw(x, "global"), spec)(x), whole)
    noisy = on_shards(lambda x: draw(x, P("b", "a"), "noise"), P("b", "a"))(x)
    np.testing.assert_allclose(noisy - 1, draw(x, None, "noise") - 1, atol=1e-6)

    # Each example of a shard draws what that shard draws.
    each = on_shards(lambda x: jax.vmap(lambda x: draw(x, P("a")))(x), P(None, "a"))
    stacked = np.zeros((3, *x.shape), np.float32)
    np.testing.assert_array_equal(each(stacked), np.broadcast_to(whole, stacked.shape))

    try:  # what differs between shards cannot be said to be one value
        jax.jit(
            jax.shard_map(lambda x: draw(x, P("a")), mesh=mesh, in_specs=P("a"), out_specs=P())
        )(x)
        raise SystemExit("a draw passed for the same on every shard")
    except ValueError as error:
        assert "replicat" in str(error) or "varying" in str(error), error

    # Under automatic sharding the array is one, of which each device computes its part.
    for spec in (P("a"), P("b", "a"), P(None, ("a", "b"))):
        placed = jax.device_put(x + 1, NamedSharding(mesh, spec))
        compiled = jax.jit(lambda x: x * draw(x)).lower(placed).compile()
        text = compiled.as_text()
        assert not any(word in text for word in ("all-gather", "all-reduce", "all-to-all"))
        assert "[8,12]" not in text, "a device draws for the whole array"
        drawn = compiled(placed)
        assert drawn.sharding.is_equivalent_to(placed.sharding, 2)
        np.testing.assert_array_equal(drawn, whole)
