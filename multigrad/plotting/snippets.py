"""Code to copy: a rule in each framework, in a few lines that run."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import numpy as np

FRAMEWORKS = {"torch": "PyTorch", "jax": "JAX", "tensorflow": "TensorFlow", "keras": "Keras"}
# Under an activation: `$rule` is the name, `$params` what is given beside it, `$key` the key.
UNDER = {
    "torch": """\
import torch
import multigrad as xg

# a torch.nn.Module
spike = xg.Activation(
    "Heaviside", $rule$params
)
x = torch.linspace(-2, 2, 9, requires_grad=True)
spike(x).sum().backward()
print(x.grad)""",
    "jax": """\
import jax, jax.numpy as jnp
import multigrad as xg

spike = xg.activation(
    "Heaviside", $rule$params
)
x = jnp.linspace(-2, 2, 9)
$with    print(jax.grad(lambda x: spike(x).sum())(x))""",
    "tensorflow": """\
import tensorflow as tf
import multigrad as xg

spike = xg.activation(
    "Heaviside", $rule$params
)
x = tf.Variable(tf.linspace(-2.0, 2.0, 9))
with tf.GradientTape() as tape:
    y = spike(x)
print(tape.gradient(y, x))""",
    "keras": """\
import keras
import multigrad.keras

model = keras.Sequential([
    keras.Input((8,)),
    keras.layers.Dense(16),
    multigrad.keras.Activation(
        "Heaviside", $rule$params
    ),
    keras.layers.Dense(1),
])""",
}
# On gradients that exist.
ON_GRADIENTS = {
    "torch": """\
import torch
import multigrad as xg

model = torch.nn.Linear(4, 2)
with xg.use($rule$params, scope="params"$key):
    model(torch.randn(8, 4)).sum().backward()
print(model.weight.grad)""",
    "jax": """\
import jax.numpy as jnp
import multigrad as xg

gradients = {"w": jnp.linspace(-2, 2, 9)}
print(xg.apply_to_gradients(
    gradients, $rule$params$key
))""",
    "tensorflow": """\
import tensorflow as tf
import multigrad as xg

gradients = [tf.linspace(-2.0, 2.0, 9)]
print(xg.apply_to_gradients(
    gradients, $rule$params
))""",
    "keras": """\
import keras
import multigrad.keras

optimizer = multigrad.keras.apply_to_gradients(
    keras.optimizers.Adam(), $rule$params
)""",
}


def write_snippets(
    name: str, params: Mapping[str, Any], *, on_gradients: bool, is_random: bool
) -> dict[str, str]:
    """Return the code for each framework; the params are written where there are some."""
    given = ", ".join(f'"{key}": {value!r}' for key, value in params.items())
    words = {
        "$rule": f'"{name}"',
        "$params": f", {{{given}}}" if given else "",
        "$key": ", key=0" if is_random else "",
    }
    found = {}
    for framework, text in (ON_GRADIENTS if on_gradients else UNDER).items():
        # jax has no generator of its own: draws need a key there.
        seeded = f"with xg.use({words['$rule']}, key=0):\n"
        text = text.replace("$with    ", f"{seeded}    " if is_random else "")
        for word, meant in words.items():
            text = text.replace(word, meant)
        found[framework] = text
    return found


# A Function of the library: `$call` is written with the library's names, arrays by `$name`.
FUNCTIONS = {
    "torch": """\
import torch
import multigrad as xg

x = torch.linspace(-2, 2, 12).reshape(3, 4)
x.requires_grad_()
$arraysy = $call
y.sum().backward()
print(x.grad)""",
    "jax": """\
import jax, jax.numpy as jnp
import multigrad as xg

x = jnp.linspace(-2, 2, 12).reshape(3, 4)
$arraysprint(jax.grad(lambda x: $call.sum())(x))""",
    "tensorflow": """\
import tensorflow as tf
import multigrad as xg

x = tf.reshape(tf.linspace(-2.0, 2.0, 12), (3, 4))
x = tf.Variable(x)
$arrayswith tf.GradientTape() as tape:
    y = $inner
print(tape.gradient(y, x))""",
    "keras": """\
import keras
import multigrad as xg

class Layer(keras.layers.Layer):
    def call(self, x):
        $localreturn $deep

y = Layer()(keras.random.uniform((3, 4)))""",
}
ARRAYS = {
    "torch": "torch.tensor",
    "jax": "jnp.array",
    "tensorflow": "tf.constant",
    "keras": "keras.ops.array",
}


def write_function_snippets(
    function: Any, params: Mapping[str, Any], *, is_random: bool
) -> dict[str, str]:
    """Return the code for each framework: arguments that differ from the defaults are written."""
    written, arrays = {}, {}
    for argument in function.arguments[1:]:
        value = params[argument.name]
        if hasattr(value, "shape"):
            arrays[argument.name] = value
            written[argument.name] = argument.name
        elif argument.default is inspect.Parameter.empty or type(value) in (int, float):
            written[argument.name] = repr(value)
    given = "".join(f", {name}={text}" for name, text in written.items())
    key = ".keyed(0)" if is_random else ""
    found = {}
    for framework, text in FUNCTIONS.items():
        lines = [
            f"{name} = {ARRAYS[framework]}({np.round(value, 2).tolist()})"
            for name, value in arrays.items()
        ]
        first = f"xg.estimators.{function.name}{key}("
        inner = f"{first}\n    x{given}\n)"
        text = text.replace("$arrays", "".join(f"{line}\n" for line in lines))
        text = text.replace("$local", "".join(f"{line}\n        " for line in lines))
        text = text.replace("$call", inner)
        text = text.replace("$inner", f"{first}\n        x{given}\n    )")
        found[framework] = text.replace("$deep", f"{first}\n            x{given}\n        )")
    return found
