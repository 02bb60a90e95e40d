"""Rules that read weights on Keras layers, and composites, against their definition by the layer's
own transpose: relevance x * pull(r / z).
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import multigrad as xg
from multigrad.errors import RuleTypeError, RuleValueError
from multigrad.models import attribution as lrp

from ...harness.models.models_keras import pull, relevance

keras: Any = pytest.importorskip("keras")

xk: Any = pytest.importorskip("multigrad.keras")

pytestmark = pytest.mark.needs("keras")
RNG = np.random.default_rng(3)
SMALL = 1e-9
IMAGES = RNG.normal(size=(2, 7, 6, 4)).astype(np.float32)
STEPS = RNG.normal(size=(2, 7, 4)).astype(np.float32)
FLAT = RNG.normal(size=(3, 4)).astype(np.float32)


def filled(model: Any) -> Any:
    """Give a model with weights that are not zero anywhere."""
    model.set_weights([RNG.normal(size=w.shape).astype(np.float32) for w in model.weights])
    return model


LAYERS: dict[str, tuple[str, dict[str, Any], Any]] = {
    "dense": ("Dense", {"units": 3}, FLAT),
    "dense without bias": ("Dense", {"units": 3, "use_bias": False}, FLAT),
    "dense over steps": ("Dense", {"units": 3}, STEPS),
    "convolution": ("Conv2D", {"filters": 3, "kernel_size": 3}, IMAGES),
    "same": ("Conv2D", {"filters": 3, "kernel_size": (3, 2), "padding": "same"}, IMAGES),
    "strides": (
        "Conv2D",
        {"filters": 3, "kernel_size": 3, "padding": "same", "strides": 2},
        IMAGES,
    ),
    "groups": ("Conv2D", {"filters": 6, "kernel_size": 2, "groups": 2}, IMAGES),
    "causal": (
        "Conv1D",
        {"filters": 3, "kernel_size": 2, "padding": "causal", "dilation_rate": 2},
        STEPS,
    ),
    "depthwise": (
        "DepthwiseConv2D",
        {"kernel_size": 3, "depth_multiplier": 2, "padding": "same"},
        IMAGES,
    ),
    "transposed": ("Conv2DTranspose", {"filters": 3, "kernel_size": 3, "strides": 2}, IMAGES),
    "transposed same": (
        "Conv2DTranspose",
        {"filters": 3, "kernel_size": 3, "strides": 2, "padding": "same"},
        IMAGES,
    ),
    "average": ("AveragePooling2D", {"pool_size": 2}, IMAGES),
    "average same": (
        "AveragePooling2D",
        {"pool_size": (3, 2), "strides": 2, "padding": "same"},
        IMAGES,
    ),
    "global average": ("GlobalAveragePooling2D", {}, IMAGES),
    "global average kept": ("GlobalAveragePooling1D", {"keepdims": True}, STEPS),
}


@pytest.mark.parametrize("name", LAYERS)
def test_each_layer_is_read_as_it_computes(name: str) -> None:
    kind, options, x = LAYERS[name]
    layer = getattr(keras.layers, kind)(**options, name="it")
    model = filled(keras.Sequential([keras.Input(x.shape[1:]), layer]))
    y, expected = pull(model, x, lambda z: relevance(z) / z)
    rule = lrp.epsilon(SMALL) if model.weights else lrp.norm(SMALL)
    with xk.attach(model, {"it": rule}):
        same, heat = pull(model, x, relevance)
    np.testing.assert_array_equal(same, y)
    scale = np.abs(x * expected).max()
    np.testing.assert_allclose(heat / scale, x * expected / scale, rtol=2e-5, atol=2e-6)


def test_an_average_that_keras_pads_in_its_own_way_is_refused_there() -> None:
    pool = keras.layers.AveragePooling2D(2, strides=1, padding="same", name="it")
    model = keras.Sequential([keras.Input((7, 6, 4)), pool])
    _, expected = pull(model, IMAGES, lambda z: relevance(z) / z)
    with xk.attach(model, {"it": lrp.norm(SMALL)}):
        if keras.config.backend() == "torch":
            with pytest.raises(RuleTypeError, match="repeats the last elements"):
                model(IMAGES)
            return
        heat = pull(model, IMAGES, relevance)[1]
    scale = np.abs(IMAGES * expected).max()
    np.testing.assert_allclose(heat / scale, IMAGES * expected / scale, rtol=2e-5, atol=2e-6)


def test_an_addition_of_several_is_shared_out() -> None:
    inputs = keras.Input((4,))
    parts = [inputs, inputs * 3.0, inputs * 0.5]
    model = keras.Model(inputs, keras.layers.Add(name="it")(parts))
    with xk.attach(model, {"it": lrp.norm(SMALL)}):
        _, heat = pull(model, FLAT, relevance)
    # shares 1, 3 and 0.5 of 4.5, through factors 1, 3 and 0.5
    np.testing.assert_allclose(heat, relevance(FLAT) * (1 + 9 + 0.25) / 4.5, rtol=1e-5)


def test_an_activation_keeps_its_own_gradient_beside_a_rule_for_its_layer() -> None:
    dense = keras.layers.Dense(3, activation="relu", name="it")
    model = filled(keras.Sequential([keras.Input((4,)), dense]))
    kernel, bias = model.get_weights()
    z = FLAT @ kernel + bias
    with xk.attach(model, {"it": lrp.epsilon(SMALL)}):
        y, heat = pull(model, FLAT, relevance)
    np.testing.assert_allclose(y, np.maximum(z, 0), rtol=1e-5, atol=1e-6)
    expected = FLAT * ((relevance(z) * (z > 0) / z) @ kernel.T)
    np.testing.assert_allclose(heat, expected, rtol=1e-4, atol=1e-5)


def test_guided_backprop_of_a_whole_application_acts_on_each_relu() -> None:
    keras.utils.set_random_seed(0)
    model = keras.applications.MobileNet(
        input_shape=(32, 32, 3), alpha=0.25, weights=None, classes=4, classifier_activation=None
    )
    images = RNG.normal(size=(1, 32, 32, 3)).astype(np.float32)
    y, own = pull(model, images, np.ones_like)
    heats = []
    for rules in ({"relu": "guided"}, xg.composites.guided_backprop()):
        with xk.attach(model, rules):
            same, heat = pull(model, images, np.ones_like)
        np.testing.assert_array_equal(same, y)
        heats.append(heat)
    np.testing.assert_array_equal(heats[0], heats[1])
    assert np.abs(heats[0] - own).max() > 0


def test_what_no_rule_can_read_is_refused() -> None:
    class Standardized(keras.layers.Conv2D):
        def convolution_op(self, inputs: Any, kernel: Any) -> Any:
            return super().convolution_op(inputs, kernel - keras.ops.mean(kernel))

    layers = [keras.layers.LayerNormalization(name="norm"), Standardized(2, 2, name="own")]
    model = keras.Sequential([keras.Input((7, 6, 4)), *layers])
    for name in ("norm", "own"):
        with pytest.raises(RuleTypeError, match=f"'{name}'.*'epsilon.*leave it out"):
            xk.attach(model, {name: lrp.epsilon()})
    pooling = keras.layers.AveragePooling2D(2, name="pool")
    with pytest.raises(RuleTypeError, match=r"'pool'.*'zplus.*what fits is.*norm\(\)"):
        xk.attach(pooling, {"": lrp.zplus()})
    with pytest.raises(RuleTypeError, match="'relu' is an operation"):
        xk.attach(model, {"relu": lrp.epsilon()})
    dense = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2, name="last")])
    box, words = {"last": lrp.zbox(np.zeros(5, np.float32), 1.0)}, r"'low' has shape \(5,\)"
    with xk.attach(dense, box), pytest.raises(RuleValueError, match=words):
        dense(FLAT)
    parts = [keras.layers.Conv2D(2, 3), keras.layers.BatchNormalization()]
    normalized = keras.Sequential([keras.Input((7, 6, 4)), *parts])
    with (
        xk.attach(normalized, xg.composites.epsilon_plus(canonize=True)),
        pytest.raises(RuleValueError, match="training=False"),
    ):
        pull(lambda x: normalized(x, training=True), IMAGES, np.ones_like)
    assert not any("call" in vars(layer) for layer in (model, *model.layers))


def test_a_name_says_more_than_a_kind() -> None:
    def build(act: str) -> Any:
        first = keras.layers.Dense(4, activation=act, name="first")
        return keras.Sequential([keras.Input((4,)), first, keras.layers.ReLU(name="act")])

    composite = xg.composites.Composite("mine", {"activation": "pass"}, names={"act": None})
    model, linear = filled(build("relu")), build("linear")
    linear.set_weights(model.get_weights())
    with xk.attach(model, composite):
        heat = pull(model, FLAT, relevance)[1]
    # relu after relu: the first hands on, the named one keeps its gradient
    kernel, bias = model.get_weights()
    z = FLAT @ kernel + bias
    np.testing.assert_allclose(heat, (relevance(z) * (z > 0)) @ kernel.T, rtol=1e-5, atol=1e-6)


class Gap(keras.Model):
    """A head whose product is no layer, behind one whose layer no rule is for."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = keras.layers.LayerNormalization(name="norm")
        self.body = keras.layers.Dense(4, activation="relu", name="body")
        self.fc = keras.layers.Dense(3, name="fc")

    def build(self, shape: Any) -> None:
        for layer in (self.norm, self.body, self.fc):
            layer.build((None, 4))

    def call(self, x: Any) -> Any:
        return keras.ops.matmul(self.body(self.norm(x)), self.fc.kernel)


def test_what_multiplies_relevance_without_a_rule_is_named_in_a_warning_and_the_table() -> None:
    x = keras.Input((4,))
    residual = keras.Model(x, keras.layers.Dense(2, name="last")(keras.layers.ReLU()(x) + x))
    words = r"no rule for add\w* \(add\).*canonize=True"
    with (
        xk.attach(residual, xg.composites.epsilon_plus()) as handle,
        pytest.warns(xg.errors.ActsNowhereWarning, match=words),
    ):
        residual(FLAT)
    assert ("(plain gradient)", "add") in [(row.rule, row.selector) for row in handle.rows]
    with xk.attach(residual, xg.composites.epsilon_plus(canonize=True)) as handle:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            residual(FLAT)
        assert "(plain gradient)" not in repr(handle)

    model = Gap()
    model(FLAT)
    words = r"no rule for \(model\) \(matmul\), norm \(\w+.*\): the plain"
    with (
        xk.attach(model, xg.composites.epsilon_plus()) as handle,
        pytest.warns(xg.errors.ActsNowhereWarning, match=words),
    ):
        model(FLAT)
    rows = {row.name: row.rule for row in handle.rows}
    assert "not called" in rows["fc"]
    assert "not called" not in rows["body"]
    assert rows["relu"] == "pass"
    rules = {"body": xg.attribution.epsilon()}
    with (
        xk.attach(model, rules) as handle,
        pytest.warns(xg.errors.ActsNowhereWarning, match=words),
    ):
        model(FLAT)
    assert {row.name: row.rule for row in handle.rows}["norm"] == "(plain gradient)"
    # within a layer under a rule nothing passes but the rule's gradient
    block = keras.Sequential([keras.layers.Dense(4, "softmax")], name="block")
    whole = keras.Sequential([keras.Input((4,)), block, keras.layers.Dense(2, name="last")])
    with xk.attach(whole, {"block": "pass", "last": xg.attribution.epsilon()}) as handle:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            whole(FLAT)
        assert len(handle) == 2

    head = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2, "softmax", name="head")])
    with (
        xk.attach(head, xg.composites.excitation_backprop()),
        pytest.warns(xg.errors.ActsNowhereWarning, match=r"no rule for head \(softmax\)"),
    ):
        head(FLAT)
    for interpolation in ("bilinear", "nearest"):
        up = keras.layers.UpSampling2D(interpolation=interpolation, name="up")
        larger = keras.Sequential([keras.Input((2, 2, 1)), keras.layers.Conv2D(1, 1), up])
        with xk.attach(larger, xg.composites.epsilon_plus()) as handle:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                larger(np.ones((1, 2, 2, 1), np.float32))
            assert ("resize" in repr(handle)) == (interpolation == "bilinear")


def test_a_composite_that_acts_nowhere_is_refused_as_a_selector_is() -> None:
    dense = keras.layers.Dense(3, activation="gelu")
    model = keras.Sequential([keras.Input((4,)), dense])
    with (
        xk.attach(model, xg.composites.guided_backprop()),
        pytest.raises(RuleValueError, match=r"no rule for any layer.*for relu, and.*gelu"),
    ):
        model(FLAT)
    dense.activation = keras.activations.relu
    with xk.attach(model, xg.composites.guided_backprop()) as handle:
        model(FLAT)
    assert [row.name for row in handle.rows] == ["relu"]
