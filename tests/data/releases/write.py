"""What each release wrote: documents, pickles, locks and Keras models, and what it computed with
them.

`python -m tests.data.releases.write` writes a folder for the version that is installed, and needs
NumPy, torch, JAX and TensorFlow; with the word `keras` it writes its models, once on each Keras
backend. A folder is written once, when its version is released. Every later version must read it,
so nothing is removed from the tables below; what they gain, later folders have.

All inputs are binary fractions, so that but for logistic curves, roots and their like nothing
rounds.
"""

from __future__ import annotations

import functools
import importlib.util
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

import multigrad as xg

Tensor = Any
HERE = Path(__file__).parent
X = np.arange(-6, 6, dtype=np.float32).reshape(3, 4) / 4
G = np.arange(12, dtype=np.float32)[::-1].reshape(3, 4) / 8 - 0.5
W = np.arange(12, dtype=np.float32).reshape(4, 3) / 8 - 1
MATRIX = np.eye(4, dtype=np.float32) - 0.25
ROW = np.arange(4, dtype=np.float32) - 2
N = np.arange(12, dtype=np.int32).reshape(3, 4)
KEY = 7
RULES = (
    "window", "band", "weighted", "by_rank", "by_dtype", "by_value", "two_draws", "needs",
    "in_numpy", "halved",
)  # fmt: skip
FUNCTIONS = (
    "squared", "nested", "dropped", "clipped", "kept", "derived", "summed", "steep", "picked",
    "of_another",
)  # fmt: skip
# How each Function is called, by the name of its document.
CALLS: dict[str, list[tuple[tuple[Any, ...], dict[str, Any]]]] = {
    "squared": [((X,), {}), ((X.astype(np.float64),), {})],
    "nested": [
        ((X, {"w": G, "n": N}), {"power": 3, "mode": "mean"}),
        ((X, {"w": G, "n": N}), {"power": 2, "mode": "sum"}),
    ],
    "dropped": [((X,), {})],
    "clipped": [((X, ROW, 0.5), {}), ((X, ROW), {"limit": 0.25})],
    "kept": [((X,), {})],
    "derived": [((X, W), {})],
    "summed": [((X, W), {}), ((ROW, W), {})],
    "steep": [((X, 2.0), {}), ((X, 0.5), {})],
    "picked": [((X, N), {})],
    "of_another": [((X,), {})],
    "autograd": [((X, 0.5), {}), ((X, 0.25, "half"), {})],
    "custom_vjp": [((X, {"scale": G, "shift": ROW}), {})],
    "custom_jvp": [((X,), {})],
    "tf_custom_gradient": [((X, G), {})],
    "around_an_activation": [((X,), {})],
    "keyed": [((X,), {})],
    "nameless": [((X,), {})],
}
CALLS["loaded_function"] = CALLS["nested"]
CALLS["chain"] = CALLS["ste_round"] = CALLS["packed"] = CALLS["squared"]
# Which params each rule is called with besides none.
PARAMS: dict[str, list[dict[str, Any]]] = {
    "window": [{"width": 0.5}],
    "window_bound": [{}],
    "needs": [{"slope": 2.0}],
    "triangular": [{"width": 2.0}],
    "scale": [{"s": 0.5}],
    "in_numpy": [{"shift": 0.75}],
}
INPUTS = {
    "single": (G, X),
    "double": (G.astype(np.float64), X.astype(np.float64)),
    "row": (G[0], X[0]),
}


# --- numbers -------------------------------------------------------------------------------------


def load_mine() -> ModuleType:
    """Return the module of a user; it can be imported from now on."""
    name = "written_by_users"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, HERE / f"{name}.py")
        assert spec is not None and spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


def arrays_of(value: Any) -> Iterator[Any]:
    """Yield what nested outputs hold, as arrays."""
    if isinstance(value, dict):
        value = [value[name] for name in sorted(value)]
    if isinstance(value, tuple | list):
        for each in value:
            yield from arrays_of(each)
    elif not isinstance(value, str | None):
        yield np.asarray(value)


def cotangent_of(outputs: Any) -> Any:
    """Return halves in the places of float tensors, nested like the outputs."""
    if isinstance(outputs, dict):
        return {name: cotangent_of(each) for name, each in outputs.items()}
    if isinstance(outputs, tuple | list):
        return type(outputs)(map(cotangent_of, outputs))
    is_float = "float" in str(getattr(outputs, "dtype", ""))
    return np.full_like(outputs, 0.5) if is_float else None


def compute(obj: Any, name: str) -> dict[str, Any]:
    """Return the numbers that an object gives on NumPy arrays."""
    if isinstance(obj, xg.Function):
        return compute_function(obj, name)
    if isinstance(obj, xg.Rule):
        return compute_rule(obj, name)
    if isinstance(obj, xg.schedule.Schedule):
        values = []
        for _ in range(12):
            values.append(obj.value)
            obj.step()
        return {"values": np.array(values)}
    if isinstance(obj, xg.composites.Composite):
        layers = obj.choose([("0", "convolution"), ("1", "linear")])
        return {f"{i}/{k}": v for i, one in enumerate(layers) for k, v in compute(one, "").items()}
    if hasattr(obj, "over"):
        outputs, pullback = xg.vjp(obj.over("linear"), X, W, ROW[:3])
        return dict(enumerate_arrays((outputs, pullback(np.full_like(outputs, 0.5)))))
    if "torch" in type(obj).__module__:
        import torch

        outputs, pullback = xg.vjp(obj, torch.tensor(X))
        return {"output": outputs.numpy(), "gradient": pullback(torch.tensor(G))[0].numpy()}
    outputs, pullback = xg.vjp(obj, X)
    return {"output": outputs, "gradient": pullback(G)[0]}


def enumerate_arrays(nested: Any) -> Iterator[tuple[str, Any]]:
    """Yield what nested outputs hold, as arrays, with their numbers."""
    yield from ((str(i), array) for i, array in enumerate(arrays_of(nested)))


def compute_named(rule: xg.Rule) -> Any:
    """Return the gradient that a rule of the library gives with its defaults."""
    return rule(None, G, X, key=KEY)


def compute_rule(rule: xg.Rule, name: str) -> dict[str, Any]:
    needed = [] if name == "needs" else [{}]
    found = {}
    for i, params in enumerate([*needed, *PARAMS.get(name, [])]):
        for kind, (grad_out, tin) in INPUTS.items():
            found[f"{i}/{kind}"] = rule(None, grad_out, tin, key=KEY, **params)
    return found


def compute_function(function: xg.Function, name: str) -> dict[str, Any]:
    found = {}
    keyed = function if function.is_keyed else function.keyed(KEY)
    for i, (args, kwargs) in enumerate(CALLS[name]):
        call = functools.partial(keyed, **kwargs) if kwargs else keyed
        outputs, pullback = xg.vjp(call, *args)
        numbers = enumerate_arrays((outputs, pullback(cotangent_of(outputs))))
        found |= {f"{i}/{j}": array for j, array in numbers}
    return found


# --- what is written -----------------------------------------------------------------------------


def shipped_rules() -> dict[str, Any]:
    return {name: xg.get(name) for name in xg.rules() if "." not in name}


def rule_of(function: Any) -> xg.Rule:
    """Return the Rule of a function that is registered nowhere."""
    return xg.get(xg.compose(function).parts[0])


def rules_of_mine() -> dict[str, Any]:
    """Rules of a user's own."""
    mine = load_mine()
    window, band = rule_of(mine.window), rule_of(mine.band)
    composed = xg.compose("clip_norm", xg.compose(mine.two_draws, "noise"), mine.two_draws)
    promised = xg.register("promised", first_order=True)(mine.halved)
    xg.unregister("promised")
    return {
        **{name: rule_of(getattr(mine, name)) for name in RULES},
        "window_bound": window.with_params(width=np.float32(0.5), hard=False, mode="none"),
        "window_of_tensor": window.with_params(width=np.array(0.75)),
        "band_bound": band.with_params(edges=(-0.0, float("inf")), top=0.25),
        "composed": composed.with_params(sigma=0.5),
        "nested_composition": xg.compose(composed, xg.compose("scale", mine.weighted)),
        "promised": promised,
        "of_a_function": rule_of(mine.of_a_function),
    }


def rules() -> dict[str, Any]:
    """Rules of a user's own, written with each library."""
    import jax.numpy as jnp
    import torch

    def in_torch(ctx, grad_out, tin, width: float = 0.5):
        inside = (tin.abs() < width).to(grad_out.dtype)
        return grad_out.mul(inside).add(tin.clamp(min=-1.0), alpha=0.5)

    def in_jax(ctx, grad_out, tin):
        return jnp.where(grad_out > 0, grad_out, 0.25 * grad_out)

    def drawn_in_torch(ctx, grad_out, tin):
        return grad_out * torch.rand_like(grad_out)

    return {
        **rules_of_mine(),
        "in_torch": rule_of(in_torch),
        "in_jax": rule_of(in_jax),
        "drawn_in_torch": rule_of(drawn_in_torch),
    }


def call_all(found: dict[str, Any]) -> dict[str, Any]:
    """Return Functions that have been called in all their forms."""
    for name, function in found.items():
        for args, kwargs in CALLS[name]:
            function.keyed(KEY)(*args, **kwargs)
            function(*args, **kwargs)
    return found


def functions_of_mine() -> dict[str, Any]:
    """Functions of a user's own, called in all their forms."""
    mine = load_mine()
    act = xg.activation("Heaviside", rule="triangular", params={"width": 2.0})
    found = {name: getattr(mine, name) for name in FUNCTIONS}
    found["around_an_activation"] = xg.function(lambda x: act(x) * 2.0 + act(x - 0.5))
    return call_all(found)


def pickles() -> dict[str, Any]:
    """What is pickled otherwise than by the name of a user's module."""
    import torch

    rules, functions = rules_of_mine(), functions_of_mine()
    window, steep = rules["window_bound"], functions["steep"]
    epsilon, linear = xg.attribution.epsilon(), xg.schedule.linear(1.0, 0.0, steps=10)
    moving = xg.schedule.piecewise([2, 5], [1.0, 0.5, 0.25])
    return {
        "wide": xg.get("triangular").with_params(width=2.0),
        "kept": xg.get("rectangular").keeping("packed"),
        "window_bound": window,
        "composed": rules["composed"],
        "halved": xg.from_dict(rules["halved"].to_dict()),
        "activation": xg.activation("Heaviside", "triangular", {"width": 2.0}),
        "activation_of_rule": xg.activation("ReLU", window),
        "activation_of_code": xg.activation(functions["around_an_activation"], "triangular"),
        "around_an_activation": functions["around_an_activation"],
        "packed": xg.function(lambda x: x * x, lambda g, x: g * (x > 0)).keeping("packed"),
        "keyed": functions["dropped"].keyed(3),
        "bound": steep.bind({"slope": 2.0}),
        "ste_round": xg.estimators.ste_round,
        "chain": xg.compose(functions["squared"], xg.activation("ReLU", "triangular")),
        "linear": linear,
        "piecewise": moving,
        "epsilon": epsilon,
        "composite": xg.composites.epsilon_plus(),
        "module": torch.nn.Sequential(xg.Activation("Heaviside", "triangular", {"width": 2.0})),
    }


def functions() -> dict[str, Any]:
    """Functions of a user's own and of each framework, called in all their forms."""
    import jax
    import tensorflow as tf
    import torch

    class Clipped(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, limit, mode="whole"):
            ctx.save_for_backward(x)
            ctx.limit = limit if mode == "whole" else limit / 2
            largest = x.abs().max()
            ctx.mark_non_differentiable(largest)
            return x.clamp(-ctx.limit, ctx.limit), largest, 3

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx, grad_output, grad_largest, grad_number):
            (x,) = ctx.saved_tensors
            return grad_output * (x.abs() < ctx.limit), None, None

    @jax.custom_vjp
    def shifted(x, point):
        return x * point["scale"] + point["shift"], point["scale"]

    def shifted_fwd(x, point):
        return shifted(x, point), (x, point["scale"])

    def shifted_bwd(residuals, cotangents):
        x, scale = residuals
        g, h = cotangents
        return g * scale, {"scale": 0.5 * g * x + h, "shift": jax.numpy.sum(g, axis=0)}

    shifted.defvjp(shifted_fwd, shifted_bwd)

    @jax.custom_jvp
    def tripled(x):
        return x * abs(x)

    @tripled.defjvp
    def tripled_jvp(primals, tangents):
        return tripled(*primals), 3 * primals[0] * tangents[0]

    @tf.custom_gradient
    def bilinear(x, w):
        def grad(dy):
            return dy * w, tf.clip_by_value(dy * x, -0.25, 0.25)

        return x * w, grad

    found = {
        "autograd": xg.from_autograd_function(Clipped),
        "custom_vjp": xg.from_custom_vjp(shifted),
        "custom_jvp": xg.from_custom_vjp(tripled),
        "tf_custom_gradient": xg.from_tf_custom_gradient(bilinear),
    }
    return {**functions_of_mine(), **call_all(found)}


def keras_models() -> dict[str, Any]:
    """Keras models with layers, operations and optimizers of ours; compiled, not trained."""
    import keras

    import multigrad.keras as xk

    mine = load_mine()
    window = rule_of(mine.window)
    layers = [
        xk.Activation("ReLU"),
        xk.Activation("Heaviside", "triangular", {"width": 2.0}, name="named"),
        xk.Activation("LeakyReLU", window.with_params(width=0.5), name="of_rule"),
        xk.Activation("ReLU", window, {"width": 0.25}, name="of_rule_with_params"),
        xk.Activation("Linear", xg.compose("scale", mine.halved), name="composed"),
        xk.Activation("ReLU", xg.compose("scale", "triangular"), backend="numpy", name="elsewhere"),
        xk.Activation("ReLU", xg.get("rectangular").keeping("packed"), name="kept"),
        xk.CustomGradient(xg.estimators.ste_round, name="estimator"),
    ]
    activations = keras.Sequential([keras.Input((4,)), keras.layers.Dense(4), *layers])
    activations.compile(
        xk.apply_to_gradients(keras.optimizers.SGD(0.125), "clip_norm", {"max_norm": 0.5}), "mse"
    )
    x = keras.Input((4,))
    y = keras.layers.Dense(4)(x)
    y = xk.CustomGradient(mine.squared, name="squared")(y)
    functional = keras.Model(x, xg.function(lambda x: x * 0.5, lambda grad_out, x: grad_out)(y))
    functional.compile(
        xk.apply_to_gradients(keras.optimizers.SGD(0.125), "noise", {"sigma": 0.25}, key=3), "mse"
    )
    quantized = keras.Sequential([keras.Input((4,)), xk.QuantDense(4, bits=4)])
    quantized.compile("sgd", "mse")
    models = {"activations": activations, "functional": functional, "quantized": quantized}
    for model in models.values():
        for variable, value in zip(
            model.trainable_variables, (MATRIX, ROW / 8, 0.25), strict=False
        ):
            variable.assign(value)
    return models


def compute_keras(model: Any) -> dict[str, Any]:
    """Return what a Keras model predicts, and its weights after one step."""
    import keras

    predicted = model.predict(X, verbose=0)
    model.train_on_batch(X, G)
    trained = {
        f"{i}": keras.ops.convert_to_numpy(v.value) for i, v in enumerate(model.trainable_variables)
    }
    return {"predicted": predicted, **trained}


def save_keras(folder: Path) -> None:
    """Write the models, and what this Keras backend computes with them."""
    import keras

    folder.mkdir(exist_ok=True)
    numbers = {}
    for name, model in keras_models().items():
        if keras.config.backend() == "tensorflow":
            model.save(folder / f"{name}.keras")
        for what, array in compute_keras(model).items():
            numbers[f"{name}/{what}"] = array
    np.savez_compressed(folder / f"{keras.config.backend()}.npz", **numbers)


def save_all(folder: Path) -> None:
    """Write documents, pickles and a lock, and what NumPy computes with them."""
    numbers = {f"named/{name}": compute_named(xg.get(name)) for name in xg.rules()}
    for kind, found in {
        "shipped": shipped_rules(),
        "rules": rules(),
        "functions": functions(),
        "pickles": pickles(),
    }.items():
        (folder / kind).mkdir(parents=True)
        for name, obj in found.items():
            file = folder / kind / name
            if kind == "pickles":
                file.with_suffix(".pickle").write_bytes(pickle.dumps(obj, protocol=4))
            else:
                xg.save(obj, f"{file}.json")
            for what, array in compute(obj, name).items():
                numbers[f"{kind}/{name}/{what}"] = array
    np.savez_compressed(folder / "numbers.npz", **numbers)
    words = ("shipped/triangular.json", "functions/squared.json", "numpy:clip")
    subprocess.run([sys.executable, "-m", "multigrad", "lock", *words], check=True, cwd=folder)


if __name__ == "__main__":
    folder = HERE / xg.__version__
    save_keras(folder / "keras") if sys.argv[1:] == ["keras"] else save_all(folder)
