"""`tf.distribute` runs replicas on threads of its own, where a `use` around them is not in
force.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

pytestmark = pytest.mark.needs("tensorflow")


def test_use_inside_of_the_replica_function_acts_and_one_around_a_traced_one_is_refused() -> None:
    # Devices are configured when TensorFlow starts, so the script is a process of its own.
    script = """
        import numpy as np
        import tensorflow as tf

        import multigrad as xg

        cpu = tf.config.list_physical_devices("CPU")[0]
        two = [tf.config.LogicalDeviceConfiguration()] * 2
        tf.config.set_logical_device_configuration(cpu, two)
        strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
        act = xg.activation("Tanh")

        def gradient(x):
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = act(x)
            return tape.gradient(y, x)

        def step(x):
            with xg.use("triangular"):
                return gradient(x)

        def run(f):
            def of_replica(context):
                return tf.constant([0.25, 0.5]) * (context.replica_id_in_sync_group + 1)

            values = strategy.experimental_distribute_values_from_function(of_replica)
            return strategy.experimental_local_results(f(values))

        def replicated(values):
            return strategy.run(step, args=(values,))

        def around(values):
            return strategy.run(gradient, args=(values,))

        for f in (replicated, tf.function(replicated)):
            first, second = run(f)
            np.testing.assert_allclose(first, [0.75, 0.5], rtol=1e-6)
            np.testing.assert_allclose(second, [0.5, 0.0], rtol=1e-6)
        with xg.use("triangular"):
            try:
                run(tf.function(around))
                raise SystemExit("the rule around the replicas was dropped in silence")
            except xg.StaleTraceError as error:
                assert "inside the function" in str(error)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=True)
