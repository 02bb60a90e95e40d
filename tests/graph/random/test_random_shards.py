"""A key gives the same draws for the whole array however TensorFlow's replicas share it; on torch
and jax, see `ranks/torch_alone.py` and `ranks/jax_shards.py`.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest


def run(script: str) -> None:
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=True)


@pytest.mark.needs("tensorflow")
def test_each_replica_of_tensorflow_draws_its_part() -> None:
    run("""
        import numpy as np
        import tensorflow as tf

        import multigrad as xg
        from multigrad.graph import random as core

        cpu = tf.config.list_physical_devices("CPU")[0]
        two = [tf.config.LogicalDeviceConfiguration()] * 2
        tf.config.set_logical_device_configuration(cpu, two)
        strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
        act = xg.activation("Linear")
        whole = core.uniform(core.fold_in((0, 7), 0), (7, 12), np.float32)

        def draw(x):
            with xg.use("full_jam", key=7, over="global"):
                with tf.GradientTape() as tape:
                    tape.watch(x)
                    y = act(x)
            return tape.gradient(y, x)

        def on_replicas(draw):
            return lambda values: strategy.run(draw, args=(values,))

        def of_unknown_length(x):
            return draw(tf.boolean_mask(x, x[:, 0] < 1))

        def parts(rows):
            def of(context):
                first = context.replica_id_in_sync_group == 0
                return tf.zeros([rows if first else 7 - rows, 12])

            return strategy.experimental_distribute_values_from_function(of)

        cases = (
            (on_replicas(draw), 4),
            (tf.function(on_replicas(draw)), 4),
            (tf.function(on_replicas(of_unknown_length)), 5),
        )
        for f, rows in cases:
            drawn = np.concatenate(strategy.experimental_local_results(f(parts(rows))))
            np.testing.assert_array_equal(drawn, whole)

        def halves(context):
            return tf.zeros([3, 12])

        values = strategy.experimental_distribute_values_from_function(halves)
        compiled = tf.function(on_replicas(tf.function(draw, jit_compile=True)))
        drawn = np.concatenate(strategy.experimental_local_results(compiled(values)))
        np.testing.assert_array_equal(drawn, whole[:6])
        graph = tf.function(on_replicas(draw)).get_concrete_function(values).graph
        names = {op.type for op in graph.get_operations()}
        assert not any("Collective" in name or "Nccl" in name for name in names), names
    """)
