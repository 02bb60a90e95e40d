"""Rules across devices: `shard_map` and `pmap` act per shard, automatic sharding on the whole
array.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

pytestmark = pytest.mark.needs("jax")

# jax takes the number of devices from the environment when it starts, so each script is a process
# of its own.
PREAMBLE = """
    import os

    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
    import jax
    import numpy as np
    from jax.sharding import AxisType, NamedSharding
    from jax.sharding import PartitionSpec as P

    import multigrad as xg

    x = np.array([-1.3, -0.45, -0.2, 0.1, 0.3, 0.48, 0.9], np.float32)
    w = np.array([0.5, -1.0, 2.0, 0.7, 0.3, -0.2, 1.1], np.float32)
    batch = np.stack([x, 0.5 * x, -x, 2.0 * x])

    def clip(g, x):
        return g / max(1.0, np.linalg.norm(g))

    formulas = {
        "triangular": lambda g, x: g * np.maximum(0.0, 1.0 - np.abs(x)),
        "rectangular": lambda g, x: g * (np.abs(x) <= 0.5),
        "d(Linear)": lambda g, x: g,
        "clip_norm": clip,
    }
    act = xg.activation("Tanh")
    mesh = jax.make_mesh((4,), ("b",), axis_types=(AxisType.Auto,))

    def loss(x):
        return (act(x) * w).sum()

    def close(got, expected):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)

    def shard(f, inputs, outputs):
        return jax.shard_map(f, mesh=mesh, in_specs=inputs, out_specs=outputs)
"""


def run(script: str) -> None:
    text = textwrap.dedent(PREAMBLE) + textwrap.dedent(script)
    subprocess.run([sys.executable, "-c", text], check=True)


def test_rules_on_shards_devices_and_whole_arrays_mean_what_jax_says() -> None:
    run("""
        assert jax.device_count() == 4
        for rule, formula in formulas.items():
            with xg.use(rule):
                per_shard = np.stack([formula(w, row) for row in batch])
                close(shard(jax.grad(loss), P("b"), P("b"))(batch), per_shard)
                through = shard(act, P("b"), P("b"))
                close(jax.grad(lambda x: (through(x) * w).sum())(batch), per_shard)
                close(jax.pmap(jax.grad(loss))(batch), per_shard)
                whole = formula(np.broadcast_to(w, batch.shape), batch)
                placed = jax.device_put(batch, NamedSharding(mesh, P("b")))
                close(jax.jit(jax.grad(loss))(placed), whole)
    """)


def test_a_weight_that_all_shards_share_gets_the_sum_of_their_gradients() -> None:
    run("""
        def before(weight, x):  # the rule acts on each shard's own values
            return jax.lax.psum((act(x * weight) * w).sum(), "b")

        def on_weight(weight, x):  # the rule acts on what all shards share
            return jax.lax.psum((act(weight) * x).sum(), "b")

        for rule, formula in formulas.items():
            with xg.use(rule):
                got = shard(jax.grad(before), (P(), P("b")), P())(np.ones_like(x), batch)
                close(got, sum(formula(w, row) * row for row in batch))
                got = shard(jax.grad(on_weight), (P(), P("b")), P())(x, batch)
                close(got, formula(batch.sum(0), x))
    """)


def test_key_in_a_shard_map_is_the_same_on_every_shard_unless_folded_in() -> None:
    run("""
        def draw(x):
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
    """)
