"""The same training on one device and on two workers in TensorFlow, by tf.distribute.

    python tensorflow_two_workers.py --one
    python tensorflow_two_workers.py              two processes, MultiWorkerMirroredStrategy
    python tensorflow_two_workers.py --mirrored   two devices of one process, MirroredStrategy

Without TF_CONFIG it starts two workers itself, each with its own; on a cluster the launcher sets
it. The exit code is 1 where they do not train to the weights of one device. Needs: pip install
'multigrad-rules[tensorflow]' scikit-learn
"""

import json
import os
import socket
import subprocess
import sys
from contextlib import nullcontext

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")  # the order of sums
import tensorflow as tf
from digits import BATCH, RATE, compare, draw_weights, load_batches

import multigrad as xg

CLIP = xg.get("clip_norm").with_params(max_norm=0.01)
NOISE = {"sigma": 1e-3}


def build_step(weights, strategy=None):
    """Return a compiled step of the whole batch, or of each replica's part of it."""
    over = "global" if strategy else None
    spike = xg.activation("Heaviside", "triangular")
    clipped = xg.activation("Tanh", CLIP.over(over))
    taken = xg.activation("Linear")  # takes the rule of `use`

    def step(images, labels, key):
        with tf.GradientTape() as tape:
            with xg.use("noise", NOISE, scope="activations", key=key, over=over):
                logits = taken(clipped(spike(images @ weights[0]) @ weights[1])) @ weights[2]
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
            loss = tf.reduce_sum(losses) / BATCH
        gradients = tape.gradient(loss, weights)
        if strategy:
            replica = tf.distribute.get_replica_context()
            gradients, loss = replica.all_reduce(tf.distribute.ReduceOp.SUM, [gradients, loss])
        # These are the gradients of the whole batch, the same on each replica.
        clipped_gradients = xg.apply_to_gradients(gradients, "clip_norm", {"max_norm": 0.2})
        for weight, gradient in zip(weights, clipped_gradients, strict=True):
            weight.assign_sub(RATE * gradient)
        return loss

    if strategy is None:
        return tf.function(step)
    return tf.function(lambda *batch: strategy.run(step, args=batch))


def train(strategy=None):
    with strategy.scope() if strategy else nullcontext():
        # Each replica has the same update already.
        mean = tf.VariableAggregation.MEAN if strategy else tf.VariableAggregation.NONE
        weights = [tf.Variable(weight, aggregation=mean) for weight in draw_weights()]
    step, losses = build_step(weights, strategy), []
    for i, batch in enumerate(load_batches()):
        key = tf.constant([0, i], tf.uint32)
        if strategy is None:
            losses.append(float(step(*map(tf.constant, batch), key)))
            continue
        images, labels = (split(array, strategy) for array in batch)
        each = step(images, labels, key)
        losses.append(float(strategy.experimental_local_results(each)[0]))
    return losses, [weight.numpy() for weight in weights]


def split(array, strategy):
    """Return an array of which each replica has an equal part."""
    size = BATCH // strategy.num_replicas_in_sync

    def part_of(context):
        first = context.replica_id_in_sync_group * size
        return tf.constant(array[first : first + size])

    return strategy.experimental_distribute_values_from_function(part_of)


def main() -> int:
    if "--one" in sys.argv:
        one = train()
        print(f"one device: loss {one[0][0]:.4f} to {one[0][-1]:.4f}")
        return 0
    if "--mirrored" in sys.argv:
        (cpu,) = tf.config.list_physical_devices("CPU")
        halves = [tf.config.LogicalDeviceConfiguration()] * 2
        tf.config.set_logical_device_configuration(cpu, halves)
        strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    elif "TF_CONFIG" not in os.environ:
        return start_workers()
    else:
        strategy = tf.distribute.MultiWorkerMirroredStrategy()
    one, several = train(), train(strategy)
    worker = json.loads(os.environ.get("TF_CONFIG", '{"task": {"index": 0}}'))["task"]["index"]
    if worker:
        return 0
    name = "MirroredStrategy" if "--mirrored" in sys.argv else "MultiWorkerMirroredStrategy"
    title = f"{name} on {strategy.num_replicas_in_sync} replicas"
    return 0 if compare(title, one, several) else 1


def start_workers() -> int:
    """Start this script twice, as a cluster's launcher does."""
    ports = [socket.create_server(("localhost", 0)) for _ in range(2)]
    workers = [f"localhost:{port.getsockname()[1]}" for port in ports]
    for port in ports:
        port.close()
    processes = []
    for index in range(2):
        task = {"type": "worker", "index": index}
        config = json.dumps({"cluster": {"worker": workers}, "task": task})
        environment = {**os.environ, "TF_CONFIG": config}
        processes.append(subprocess.Popen([sys.executable, *sys.argv], env=environment))
    return max(process.wait() for process in processes)


if __name__ == "__main__":
    sys.exit(main())
