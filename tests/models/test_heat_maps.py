"""One composite on the same network in every framework: the heat map is that of the rules applied
layer by layer, by hand, on NumPy.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

import multigrad as xg
from multigrad.errors import ActsNowhereWarning
from multigrad.models import attribution as lrp

RNG = np.random.default_rng(17)
CHANNELS, SIZE, CLASSES = 4, 9, 3
STATISTICS = ("mean", "variance", "scale", "shift")
EPSILON = 1e-3  # of the normalizations
ONE = {"strides": (2, 2), "padding": ((0, 0),) * 2, "dilations": (1, 1), "groups": 1}
TWO = {**ONE, "strides": (1, 1), "padding": ((1, 1),) * 2}
HALF = {"sizes": (2, 2), "strides": (2, 2), "padding": ((0, 0),) * 2, "counts_padding": True}


def array(*shape: int) -> Any:
    return RNG.normal(size=shape).astype(np.float32)


def normalization() -> dict[str, Any]:
    found = {name: 0.3 * array(CHANNELS) for name in STATISTICS}
    return {**found, "variance": 1 + found["variance"], "scale": 1 + found["scale"]}


# A residual network: two convolutions with normalizations, a pooling between them, an addition, a
# mean, a dense layer.
WEIGHTS: dict[str, Any] = {
    "one": array(CHANNELS, 2, 3, 3),
    "norm_one": normalization(),
    "two": array(CHANNELS, CHANNELS, 3, 3),
    "bias_two": array(CHANNELS),
    "norm_two": normalization(),
    "dense": array(CHANNELS, CLASSES),
    "bias": array(CLASSES),
}
X = np.clip(array(2, 2, SIZE, SIZE), -2, 2)
COMPOSITES = {
    "epsilon_plus": xg.composites.epsilon_plus(canonize=True),
    "epsilon_gamma_box": xg.composites.epsilon_gamma_box(-2.0, 2.0, canonize=True),
    "epsilon_alpha2_beta1_flat": xg.composites.epsilon_alpha2_beta1_flat(canonize=True),
    "guided_backprop": xg.composites.guided_backprop(),
    "deconvnet": xg.composites.deconvnet(),
}
ALWAYS = ("epsilon_plus", "guided_backprop")
OF_RELU = {"guided_backprop": "guided", "deconvnet": "deconvnet"}
RULES = {
    "epsilon_plus": (lrp.zplus(), lrp.zplus()),
    "epsilon_gamma_box": (lrp.zbox(-2.0, 2.0), lrp.gamma()),
    "epsilon_alpha2_beta1_flat": (lrp.flat(), lrp.alpha_beta()),
}


def merged(weight: str, bias: Any, norm: str) -> tuple[Any, Any]:
    statistics = [WEIGHTS[norm][name] for name in STATISTICS]
    return lrp.merge_batch_norm(WEIGHTS[weight], bias, *statistics, epsilon=EPSILON)


def by_hand(name: str) -> Any:
    """The heat map of class 1, from NumPy's own layers."""
    first, inner = RULES.get(name, (lrp.epsilon(0.0),) * 2)
    kind = inner.over("convolution", **TWO)
    relu = xg.get(OF_RELU.get(name, "pass"))
    one, back_one = xg.vjp(first.over("convolution", **ONE), X, *merged("one", None, "norm_one"))
    halved = lrp.norm().over("average_pooling", **HALF)
    h, back_half = xg.vjp(halved, np.maximum(one, 0))
    two, back_two = xg.vjp(kind, h, *merged("two", WEIGHTS["bias_two"], "norm_two"))
    total, back_total = xg.vjp(lrp.norm().over("addition"), two, h)
    k = np.maximum(total, 0)
    pool = lrp.norm().over("adaptive_average_pooling", counts=(1, 1))
    pooled, back_pooled = xg.vjp(pool, k)
    linear = lrp.epsilon().over("linear")
    out, back = xg.vjp(linear, pooled[:, :, 0, 0], WEIGHTS["dense"], WEIGHTS["bias"])
    given = np.zeros_like(out)
    given[:, 1] = 1
    if name in OF_RELU:  # linear layers keep their own gradient
        g = np.broadcast_to((given @ WEIGHTS["dense"].T)[:, :, None, None] / k[0, 0].size, k.shape)
        g = relu(None, g.astype(np.float32), total)
        g = g + own(h, merged("two", None, "norm_two")[0], g, 1, **TWO)
        g = np.kron(g, np.full((2, 2), 0.25, np.float32))
        return own(X, merged("one", None, "norm_one")[0], relu(None, g, one), 0, **ONE)
    g = relu(None, back_pooled(back(given)[0][:, :, None, None])[0], total)
    of_two, of_h = back_total(g)[:2]
    return back_one(relu(None, back_half(of_h + back_two(of_two)[0])[0], one))[0]


def own(x: Any, weight: Any, g: Any, border: int, strides: Any, **_: Any) -> Any:
    """The gradient of a convolution of x with a border of zeros."""
    widths = ((0, 0), (0, 0), (border, border), (border, border))
    conv = xg.function(lambda x, w: xg.xp.conv(xg.xp.pad(x, widths), w, strides))
    return xg.vjp(conv, x, weight)[1](g)[0]


def on_torch(composite: Any) -> Any:
    import torch
    from torch import nn
    from torch.nn import functional as F

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            # in another order than they are called
            self.dense = nn.Linear(CHANNELS, CLASSES)
            self.two = nn.Conv2d(CHANNELS, CHANNELS, 3, padding="same")
            self.norm_one = nn.BatchNorm2d(CHANNELS, eps=EPSILON)
            self.one = nn.Conv2d(2, CHANNELS, 3, stride=2, bias=False)
            self.norm_two = nn.BatchNorm2d(CHANNELS, eps=EPSILON)

        def forward(self, x: Any) -> Any:
            h = F.avg_pool2d(F.relu(self.norm_one(self.one(x))), 2)
            y = self.norm_two(self.two(h))
            y += h
            return self.dense(torch.relu_(y).mean((2, 3)))

    network = Network().eval()
    state = {
        "one.weight": WEIGHTS["one"],
        "two.weight": WEIGHTS["two"],
        "two.bias": WEIGHTS["bias_two"],
        "dense.weight": WEIGHTS["dense"].T,
        "dense.bias": WEIGHTS["bias"],
    }
    words = dict(zip(STATISTICS, ("running_mean", "running_var", "weight", "bias"), strict=True))
    for norm in ("norm_one", "norm_two"):
        state |= {f"{norm}.{words[name]}": WEIGHTS[norm][name] for name in STATISTICS}
    tensors = {name: torch.tensor(value) for name, value in state.items()}
    network.load_state_dict(tensors, strict=False)
    state = {name: value.clone() for name, value in network.state_dict().items()}
    x = torch.tensor(X, requires_grad=True)

    def explain() -> tuple[Any, Any]:
        out = network(x)
        return out, torch.autograd.grad(out[:, 1].sum(), x)[0]

    plain = explain()
    with xg.attach(network, composite) as handle:
        out, heat = explain()
        assert torch.equal(out, plain[0])
        with torch.no_grad():  # where no rule acts: the table stays
            network(x)
        check_rows(handle, composite)
    assert all(map(torch.equal, explain(), plain))
    assert all(torch.equal(network.state_dict()[name], value) for name, value in state.items())
    return heat.numpy()


def check_rows(handle: Any, composite: Any) -> None:
    rules = {row.name: row.rule for row in handle.rows}
    first, inner = RULES.get(composite.name, (None, None))
    assert (
        not composite.canonize
        or rules.items()
        >= {
            "one": str(first),
            "norm_one": f"{first} (merged with one)",
            "two": str(inner),
            "norm_two": f"{inner} (merged with two)",
        }.items()
    )


def last(weight: Any) -> Any:
    """The weight of a convolution with channels last."""
    return weight.transpose(2, 3, 1, 0)


def channels_last(x: Any) -> Any:
    return np.ascontiguousarray(x.transpose(0, 2, 3, 1))


def on_keras(is_functional: bool, composite: Any) -> Any:
    import keras

    import multigrad.keras as xk

    layers, epsilon = keras.layers, {"epsilon": EPSILON}

    class Network(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            # in another order than they are called
            self.dense = layers.Dense(CLASSES, name="dense")
            self.two = layers.Conv2D(CHANNELS, 3, padding="same", name="two")
            self.norm_one = layers.BatchNormalization(**epsilon, name="norm_one")
            self.one = layers.Conv2D(CHANNELS, 3, strides=2, use_bias=False, name="one")
            self.norm_two = layers.BatchNormalization(**epsilon, name="norm_two")
            self.relu, self.halved = layers.ReLU(), layers.AveragePooling2D(2)
            self.sum, self.pool = layers.Add(), layers.GlobalAveragePooling2D()

        def call(self, x: Any) -> Any:
            h = self.halved(self.relu(self.norm_one(self.one(x))))
            y = self.sum([self.norm_two(self.two(h)), h])
            return self.dense(self.pool(keras.ops.relu(y)))

    network, inputs = Network(), keras.Input((SIZE, SIZE, 2))
    outputs = network.call(inputs)
    network = keras.Model(inputs, outputs) if is_functional else network
    network(channels_last(X))
    weights = {
        "one": [last(WEIGHTS["one"])],
        "two": [last(WEIGHTS["two"]), WEIGHTS["bias_two"]],
        "dense": [WEIGHTS["dense"], WEIGHTS["bias"]],
        **{
            norm: [WEIGHTS[norm][name] for name in ("scale", "shift", "mean", "variance")]
            for norm in ("norm_one", "norm_two")
        },
    }
    for name, values in weights.items():
        network.get_layer(name).set_weights(values)
    x, before = keras.ops.convert_to_tensor(channels_last(X)), network.get_weights()
    plain = keras.ops.convert_to_numpy(network(x, training=False))
    with xk.attach(network, composite) as handle:
        out, pull = xg.vjp(lambda x: network(x, training=False), x)
        np.testing.assert_array_equal(keras.ops.convert_to_numpy(out), plain)
        given = np.zeros(out.shape, np.float32)
        given[:, 1] = 1
        (heat,) = pull(keras.ops.convert_to_tensor(given))
        check_rows(handle, composite)
    for ours, own in zip(network.get_weights(), before, strict=True):
        np.testing.assert_array_equal(ours, own)
    return keras.ops.convert_to_numpy(heat).transpose(0, 3, 1, 2)


# Of flax's convolution that has no bias, and of its normalizations.
STEPS: dict[str, Any] = {"strides": 2, "padding": "VALID", "use_bias": False}
FROZEN: dict[str, Any] = {"use_running_average": True, "epsilon": EPSILON}


def of_nnx() -> Any:
    from flax import nnx

    class Network(nnx.Module):
        def __init__(self, rngs: Any) -> None:
            self.one = nnx.Conv(2, CHANNELS, (3, 3), **STEPS, rngs=rngs)
            self.norm_one = nnx.BatchNorm(CHANNELS, **FROZEN, rngs=rngs)
            self.two = nnx.Conv(CHANNELS, CHANNELS, (3, 3), rngs=rngs)
            self.norm_two = nnx.BatchNorm(CHANNELS, **FROZEN, rngs=rngs)
            self.dense = nnx.Linear(CHANNELS, CLASSES, rngs=rngs)

        @nnx.jit
        def __call__(self, x: Any) -> Any:
            h = nnx.avg_pool(nnx.relu(self.norm_one(self.one(x))), (2, 2), (2, 2))
            h = nnx.relu(self.norm_two(self.two(h)) + h)
            return self.dense(h.mean((1, 2)))

    network, variables = Network(nnx.Rngs(0)), of_flax()
    for values in variables.values():
        for layer, numbers in values.items():
            for name, value in numbers.items():
                getattr(getattr(network, layer), name)[...] = value
    return network


def of_linen() -> Any:
    from flax import linen

    class Network(linen.Module):
        @linen.compact
        def __call__(self, x: Any) -> Any:
            h = linen.Conv(CHANNELS, (3, 3), **STEPS, name="one")(x)
            h = linen.relu(linen.BatchNorm(**FROZEN, name="norm_one")(h))
            h = linen.avg_pool(h, (2, 2), (2, 2))
            y = linen.Conv(CHANNELS, (3, 3), name="two")(h)
            y = linen.relu(linen.BatchNorm(**FROZEN, name="norm_two")(y) + h)
            return linen.remat(linen.Dense)(CLASSES, name="dense")(y.mean((1, 2)))

    variables = of_flax()
    return lambda x: Network().apply(variables, x)


def of_flax() -> dict[str, dict[str, dict[str, Any]]]:
    """The weights as linen has them, whose names are nnx's too."""
    norms = {norm: WEIGHTS[norm] for norm in ("norm_one", "norm_two")}
    return {
        "params": {
            "one": {"kernel": last(WEIGHTS["one"])},
            "two": {"kernel": last(WEIGHTS["two"]), "bias": WEIGHTS["bias_two"]},
            "dense": {"kernel": WEIGHTS["dense"], "bias": WEIGHTS["bias"]},
            **{name: {"scale": own["scale"], "bias": own["shift"]} for name, own in norms.items()},
        },
        "batch_stats": {
            name: {"mean": own["mean"], "var": own["variance"]} for name, own in norms.items()
        },
    }


def on_flax(make: Callable[[], Any], composite: Any) -> Any:
    import jax

    model, x = make(), jax.numpy.asarray(channels_last(X))
    under = xg.override(model, composite)
    expected = model(x)
    near = 4 * np.finfo(np.float32).eps * float(abs(expected).max())
    np.testing.assert_allclose(under(x), expected, rtol=0, atol=near)
    heat = jax.jit(jax.grad(lambda x: under(x)[:, 1].sum()))(x)
    return np.asarray(heat).transpose(0, 3, 1, 2)


ON: dict[str, Callable[[Any], Any]] = {
    "torch": on_torch,
    "keras": partial(on_keras, True),
    "keras.Model": partial(on_keras, False),
    "nnx": partial(on_flax, of_nnx),
    "linen": partial(on_flax, of_linen),
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.always] if name in ALWAYS else [])
        for name in COMPOSITES
    ],
)
@pytest.mark.parametrize(
    "framework",
    [
        pytest.param("torch", marks=pytest.mark.needs("torch")),
        *(
            pytest.param(name, marks=pytest.mark.needs("keras"))
            for name in ("keras", "keras.Model")
        ),
        *(pytest.param(name, marks=pytest.mark.needs("jax", "flax")) for name in ("nnx", "linen")),
    ],
)
def test_the_heat_map_is_that_of_the_rules_layer_by_layer(framework: str, name: str) -> None:
    result, expected = ON[framework](COMPOSITES[name]), by_hand(name)
    np.testing.assert_allclose(result, expected, rtol=0, atol=1e-4 * np.abs(expected).max())


def read_twice_on_torch(composite: Any, how: str = "eager") -> Any:
    import torch
    from torch import nn

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.early = nn.Linear(3, CHANNELS), nn.BatchNorm1d(3, eps=0.0)
            self.norm = nn.BatchNorm1d(CHANNELS, eps=EPSILON)

        def forward(self, x: Any) -> Any:
            z = self.one(self.early(x))
            return torch.cat([self.norm(z), z], 1)

    network, norm = Network().eval(), WEIGHTS["norm_one"]
    words = dict(zip(STATISTICS, ("running_mean", "running_var", "weight", "bias"), strict=True))
    state = {f"norm.{words[name]}": value for name, value in norm.items()}
    state |= {"one.weight": WEIGHTS["dense"], "one.bias": WEIGHTS["bias_two"]}
    network.load_state_dict({k: torch.tensor(v) for k, v in state.items()}, strict=False)
    x = torch.tensor(X[0, 0, :, :3], requires_grad=True)
    with xg.attach(network, composite) as handle:
        if how == "func":
            return torch.func.grad(lambda x: network(x).sum())(x.detach()).detach()
        run = torch.compile(network, backend="aot_eager") if how == "compiled" else network
        (heat,) = torch.autograd.grad(run(x).sum(), x)
    assert how != "eager" or {row.rule for row in handle.rows if row.name in ("early", "norm")} == {
        "pass"
    }
    return heat


def read_twice_on_keras(composite: Any, is_functional: bool = True) -> Any:
    import keras

    class Network(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.one = keras.layers.Dense(CHANNELS, name="one")
            self.norm = keras.layers.BatchNormalization(epsilon=EPSILON, name="norm")
            self.both = keras.layers.Concatenate()

        def call(self, x: Any) -> Any:
            z = self.one(x)
            return self.both([self.norm(z), z])

    network, inputs, norm = Network(), keras.Input((3,)), WEIGHTS["norm_one"]
    network(inputs)
    if is_functional:
        network = keras.Model(inputs, network.call(inputs))
    network.get_layer("one").set_weights([WEIGHTS["dense"].T, WEIGHTS["bias_two"]])
    values = [norm[name] for name in ("scale", "shift", "mean", "variance")]
    network.get_layer("norm").set_weights(values)
    with xg.attach(network, composite) as handle:
        x = keras.ops.convert_to_tensor(X[0, 0, :, :3])
        y, pull = xg.vjp(lambda x: network(x, training=False), x)
        (heat,) = pull(keras.ops.ones_like(y))
    assert {row.rule for row in handle.rows if row.name == "norm"} == {"pass"}
    return keras.ops.convert_to_numpy(heat)


def read_twice_on_jax(composite: Any) -> Any:
    import jax
    import jax.numpy as jnp

    mean, variance, scale, shift = [jnp.asarray(WEIGHTS["norm_one"][n]) for n in STATISTICS]

    def network(x: Any) -> Any:
        z = x @ WEIGHTS["dense"].T + WEIGHTS["bias_two"]
        y = (z - mean) * (scale / jnp.sqrt(variance + EPSILON)) + shift
        return jnp.concatenate([y, z], 1)

    under = xg.override(network, composite)
    with pytest.warns(ActsNowhereWarning, match="no rule for mul"):
        return jax.grad(lambda x: under(x).sum())(X[0, 0, :, :3])


@pytest.mark.parametrize(
    "explain",
    [
        pytest.param(read_twice_on_torch, marks=pytest.mark.needs("torch")),
        *(
            pytest.param(partial(read_twice_on_torch, how=how), marks=pytest.mark.needs("torch"))
            for how in ("func", "compiled")
        ),
        pytest.param(read_twice_on_keras, marks=pytest.mark.needs("keras")),
        pytest.param(
            partial(read_twice_on_keras, is_functional=False), marks=pytest.mark.needs("keras")
        ),
        pytest.param(read_twice_on_jax, marks=pytest.mark.needs("jax")),
    ],
)
def test_a_normalization_whose_input_something_else_reads_is_not_merged(explain: Any) -> None:
    composite = xg.composites.epsilon_plus(canonize=True)
    x, weight, bias = X[0, 0, :, :3], WEIGHTS["dense"].T, WEIGHTS["bias_two"]
    z, pull = xg.vjp(lrp.epsilon().over("linear", layout="in_out"), x, weight, bias)
    # the normalization's rule is pass; in jax its steps are none there, and a warning names them
    factor = WEIGHTS["norm_one"]["scale"] / np.sqrt(WEIGHTS["norm_one"]["variance"] + EPSILON)
    own = factor if explain is read_twice_on_jax else 1.0
    expected = pull(np.broadcast_to(1 + own, z.shape).astype(np.float32))[0]
    if explain not in (read_twice_on_keras, read_twice_on_jax):
        # known only when a gradient comes back; torch's compiler has an error of its own around it
        with pytest.raises(Exception, match=r"output of 'one' is read by 'norm'.*names="):
            explain(composite)
        composite = replace(composite, names={"norm": "pass"})
    np.testing.assert_allclose(explain(composite), expected, rtol=1e-4, atol=1e-5)


def norm_after_two_on_torch() -> Any:
    import torch

    norm = torch.nn.BatchNorm1d(3)
    parts = {"one": torch.nn.Linear(3, 3), "a": norm, "two": torch.nn.Linear(3, 3), "b": norm}
    return torch.nn.Sequential(OrderedDict(parts)).eval(), torch.tensor(
        X[0, 0, :, :3]
    ).requires_grad_()


def norm_after_two_on_keras() -> Any:
    import keras

    x, norm = keras.Input((3,)), keras.layers.BatchNormalization(name="norm")
    h = norm(keras.layers.Dense(3, name="one")(x))
    return keras.Model(x, norm(keras.layers.Dense(3, name="two")(h))), X[0, 0, :, :3]


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(norm_after_two_on_torch, marks=pytest.mark.needs("torch")),
        pytest.param(norm_after_two_on_keras, marks=pytest.mark.needs("keras")),
    ],
)
def test_the_table_names_every_layer_that_one_normalization_is_merged_with(make: Any) -> None:
    network, x = make()
    with xg.attach(network, xg.composites.epsilon_plus(canonize=True)) as handle:
        network(x)
    assert "(merged with one)" in str(handle) and "(merged with two)" in str(handle)


@pytest.mark.needs("jax")
def test_weights_of_a_function_of_jax_may_be_numpys_arrays() -> None:
    import jax

    x, weight, bias = array(2, 3), array(3, 4), array(4)
    under = xg.override(lambda x: x @ weight + bias, xg.composites.epsilon_plus())
    result = jax.grad(lambda x: under(x).sum())(x)
    out, pull = xg.vjp(lrp.epsilon().over("linear"), x, weight, bias)
    np.testing.assert_allclose(result, pull(np.ones_like(out))[0], rtol=1e-4, atol=1e-5)
