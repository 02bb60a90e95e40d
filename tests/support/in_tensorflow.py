"""How TensorFlow applies each transform."""

from __future__ import annotations

import tempfile
from typing import Any

import numpy as np
import tensorflow as tf

import multigrad as xg

from . import ways
from .declared import NONLINEAR, Cells
from .kinds import GRAD_OUT, Kind, V, X, gradient_of, second_of, tangent_of

G, TANGENT, AT = tf.constant(GRAD_OUT), tf.constant(V), tf.constant(X)


def gradient(function: Any, persistent: bool = False) -> Any:
    def run(x: Any) -> Any:
        with tf.GradientTape(persistent=persistent) as tape:
            tape.watch(x)
            y = function(x)
        found = tape.gradient(y, x, output_gradients=tf.cast(G, y.dtype))
        if persistent:
            found = tape.gradient(y, x, output_gradients=tf.cast(G, y.dtype))
        return found

    return run


def pulled(function: Any) -> Any:
    return gradient(function)(AT).numpy(), gradient_of


def repeated(kind: Kind) -> Any:
    return gradient(kind.make(), persistent=True)(AT).numpy(), gradient_of


def second(kind: Kind) -> Any:
    run = gradient(kind.make())
    with tf.GradientTape() as tape:
        tape.watch(AT)
        value = tf.reduce_sum(run(AT) * TANGENT)
    found = tape.gradient(value, AT)
    return (np.zeros(4) if found is None else found.numpy()), second_of


def vmapped(kind: Kind) -> Any:
    run = gradient(kind.make())
    return tf.vectorized_map(run, tf.stack([AT, AT]))[1].numpy(), gradient_of


def jacobian(kind: Kind) -> Any:
    with tf.GradientTape() as tape:
        tape.watch(AT)
        y = kind.make()(AT)
    found = tape.jacobian(y, AT)
    return tf.linalg.matvec(found, TANGENT).numpy(), tangent_of


def forward_mode(kind: Kind) -> Any:
    with tf.autodiff.ForwardAccumulator(AT, TANGENT) as accumulator:
        y = kind.make()(AT)
    return accumulator.jvp(y).numpy(), tangent_of


def pushed(kind: Kind) -> Any:
    _, found = xg.jvp(kind.make(), (AT,), (TANGENT,))
    return found.numpy(), tangent_of


def compiled(kind: Kind, **options: Any) -> Any:
    return tf.function(gradient(kind.make()), **options)(AT).numpy(), gradient_of


def looped(kind: Kind) -> Any:
    function = kind.make()

    @tf.function
    def run(x: Any) -> Any:
        def turn(i: Any, y: Any) -> Any:
            return i + 1, function(x)

        with tf.GradientTape() as tape:
            tape.watch(x)
            _, y = tf.while_loop(lambda i, y: i < 1, turn, (tf.constant(0), tf.zeros_like(x)))
        return tape.gradient(y, x, output_gradients=G)

    return run(AT).numpy(), gradient_of


def chosen(kind: Kind) -> Any:
    function = kind.make()

    @tf.function
    def run(x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.cond(tf.reduce_sum(x) > 0, lambda: function(x), lambda: tf.identity(x))
        return tape.gradient(y, x, output_gradients=G)

    return run(AT).numpy(), gradient_of


def half(kind: Kind) -> Any:
    found = gradient(kind.make())(tf.cast(AT, tf.bfloat16))
    return tf.cast(found, tf.float32).numpy(), gradient_of


def exported(kind: Kind) -> Any:
    """A SavedModel with the gradient in it, read back."""
    module = tf.Module()
    spec = tf.TensorSpec([4], tf.float32)
    module.run = tf.function(gradient(kind.make()), input_signature=[spec])
    with tempfile.TemporaryDirectory() as folder:
        tf.saved_model.save(module, folder)
        return tf.saved_model.load(folder).run(AT).numpy(), gradient_of


def replicated(kind: Kind) -> Any:
    """Each replica of the strategy in force has an input of its own."""
    strategy = tf.distribute.get_strategy()
    found = strategy.run(tf.function(gradient(kind.make())), args=(AT,))
    return np.stack(strategy.experimental_local_results(found)), gradient_of


# What a transform needs besides.
NEEDS = {"run by PyTorch (a bridge)": ("torch",), "run by JAX (a bridge)": ("jax",)}
TRANSFORMS = {
    "backward": lambda kind: pulled(kind.make()),
    "backward, repeated": repeated,
    "another thread": ways.in_thread(pulled),
    "second derivative": second,
    "vmap": vmapped,
    "Jacobian by reverse mode": jacobian,
    "forward mode": forward_mode,
    "`xg.jvp`": pushed,
    "the framework's compiler": compiled,
    "XLA (`jit_compile=True`)": lambda kind: compiled(kind, jit_compile=True),
    "`xg.jit`": lambda kind: (xg.jit(gradient(kind.make()), "tensorflow")(AT).numpy(), gradient_of),
    "recomputed (checkpoint)": lambda kind: pulled(tf.recompute_grad(kind.make())),
    "loop (`scan`, `while`)": looped,
    "branch (`cond`)": chosen,
    "bfloat16": half,
    "export": exported,
    "`xg.override`": lambda kind: pulled(ways.overriding(kind, tf.nn.relu, tf.matmul)),
    "`xg.apply_to_gradients`": lambda kind: ways.applied(kind, G),
    "saved and loaded (`xg.save`)": ways.through(pulled, ways.saved),
    "ejected, without multigrad (`xg.source(..., standalone=True)`)": ways.through(
        pulled, ways.ejected, "tensorflow"
    ),
    "run by NumPy (a bridge)": ways.through(pulled, ways.bridged, "numpy"),
    "run by PyTorch (a bridge)": ways.through(pulled, ways.bridged, "torch"),
    "run by JAX (a bridge)": ways.through(pulled, ways.bridged, "jax"),
}
# By tests/ranks/tensorflow_replicas.py, on two devices.
ON_DEVICES = {"MirroredStrategy (`tf.distribute`)": replicated}
EXCEPTIONS = [
    Cells(
        ("`xg.override`",),
        ("rule of a layer",),
        "TensorFlow has no operation 'linear'",
        "RuleValueError",
    ),
    Cells(
        ("forward mode", "`xg.jvp`"),
        NONLINEAR,
        "tf.autodiff.ForwardAccumulator needs a rule that is linear in grad_out",
        "GradientError",
    ),
    Cells(
        ("export",),
        ("loop by values",),
        "Error when tracing gradients for SavedModel",
        "ValueError",
    ),
    Cells(
        ("Jacobian by reverse mode",),
        NONLINEAR,
        "Each row is the result for a gradient with a single 1: not the matrix of a linear map.",
    ),
]
