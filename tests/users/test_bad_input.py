"""Wrong words, wrong tensors: what was given, what was expected, what to type; never a raw error
from inside.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import multigrad as xg
from multigrad import xp

X = np.array([-1.0, 0.5, 2.0], np.float32)
ACTIVATIONS = [
    "Linear", "ReLU", "ReLU6", "LeakyReLU", "ELU", "Tanh", "Logistic", "SiLU", "GELU", "Softplus",
    "Heaviside",
]  # fmt: skip


# --- words ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activation_is_found_in_any_case(name: str) -> None:
    wanted = xg.activation(name)(X)
    for spelled in (name.lower(), name.upper(), name.swapcase()):
        np.testing.assert_array_equal(xg.activation(spelled)(X), wanted)


@pytest.mark.parametrize(
    "make",
    [
        lambda name: xg.activation(name),
        lambda name: xg.lower("triangular", "numpy", forward=name),
        lambda name: xg.source("triangular", "numpy", forward=name),
        lambda name: xg.get("triangular").under(name),
    ],
    ids=["activation", "lower", "source", "under"],
)
@pytest.mark.parametrize(
    ("name", "hint"), [("Relu7", "did you mean 'ReLU'"), ("softpuls", "did you mean 'Softplus'")]
)
def test_unknown_activation(make: Callable[[str], Any], name: str, hint: str) -> None:
    with pytest.raises(xg.RuleError) as raised:
        make(name)
    assert f"no activation '{name}'; {hint}" in str(raised.value)
    assert all(known in str(raised.value) for known in ACTIVATIONS)
    assert isinstance(raised.value, ValueError)


@pytest.mark.needs("torch")
def test_torch_module_says_the_same() -> None:
    with pytest.raises(xg.RuleError, match="no activation 'Relu7'; did you mean 'ReLU'"):
        xg.Activation("Relu7")
    with pytest.raises(xg.RuleError, match="no rule named 'triangluar'; did you mean 'triangular'"):
        xg.Activation("ReLU", rule="triangluar")
    with pytest.raises(xg.RuleError, match="no param 'widht'; did you mean 'width'"):
        xg.Activation("ReLU", rule="triangular", params={"widht": 1.0})
    with pytest.raises(xg.RuleError, match="need a rule"):
        xg.Activation("ReLU", params={"width": 1.0})


@pytest.mark.parametrize(
    ("scope", "message"),
    [
        ("activation", "no scope 'activation'; did you mean 'activations'"),
        (("params", "al"), "no scope 'al'; did you mean 'all'"),
        ((), "the scope is empty"),
        ("", "no scope ''"),
        (3, "no scope 3"),
        (None, "no scope None"),
    ],
)
def test_unknown_scope(scope: Any, message: str) -> None:
    with pytest.raises(xg.RuleError) as raised:
        xg.use("triangular", scope=scope)
    assert message in str(raised.value)
    assert "(scopes: activations, params, all)" in str(raised.value)
    assert isinstance(raised.value, ValueError)


@pytest.mark.parametrize(
    "ask",
    [
        lambda rule: xg.use(rule).__enter__(),
        lambda rule: xg.activation("ReLU", rule),
        lambda rule: xg.apply_to_gradients([X], rule),
        lambda rule: xg.lower(rule, "numpy"),
        lambda rule: xg.source(rule, "numpy"),
        lambda rule: xg.show(rule),
        lambda rule: xg.compose(rule),
        lambda rule: xg.get(rule),
    ],
    ids=["use", "activation", "apply_to_gradients", "lower", "source", "show", "compose", "get"],
)
@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("triangluar", "no rule named 'triangluar'; did you mean 'triangular'"),
        ("", "no rule named ''"),
        ("optax.clip_by_global_norm", "'clip_norm' limits the norm of each; for the norm of all"),
        (3, "a rule is a name, a Rule or a function, got int 3"),
        ([], "a rule is a name, a Rule or a function, got list"),
    ],
)
def test_unknown_rule(ask: Callable[[Any], Any], rule: Any, message: str) -> None:
    with pytest.raises(xg.RuleError) as raised:
        ask(rule)
    assert message in str(raised.value)


def test_failed_use_leaves_no_rule_in_force() -> None:
    activation = xg.activation("ReLU")
    with xg.use("scale", {"s": 2.0}, scope="params"):
        with pytest.raises(xg.RuleError):
            xg.use("no such rule").__enter__()
        np.testing.assert_array_equal(xg.apply_to_gradients(X), X * 2)
    np.testing.assert_array_equal(xg.apply_to_gradients(X), X)
    np.testing.assert_array_equal(activation(X), np.maximum(X, 0))


@pytest.mark.parametrize(
    ("key", "message"),
    [
        (True, "key must be an int, a jax key or two uint32, got True"),
        ("7", "key must be an int, a jax key or two uint32, got str '7'"),
        (1.5, "key must be an int, a jax key or two uint32, got float 1.5"),
        ((1, 2, 3), "a key of two words needs two uint32"),
        ((1, -2), "a key of two words needs two uint32"),
        (-1, "key"),
    ],
)
def test_wrong_key(key: Any, message: str) -> None:
    with pytest.raises(xg.RuleError) as raised:
        xg.use("noise", key=key).__enter__()
    assert message in str(raised.value)


@pytest.mark.parametrize(
    "ask",
    [
        lambda name: xg.lower("triangular", name),
        lambda name: xg.source("triangular", name),
        lambda name: xg.jit(np.tanh, name)(X),
    ],
    ids=["lower", "source", "jit"],
)
def test_unknown_backend(ask: Callable[[Any], Any]) -> None:
    with pytest.raises(xg.BackendNotFound, match=r"no backend named 3 \(backends: numpy"):
        ask(3)
    with pytest.raises(xg.BackendNotFound) as raised:
        ask("numpi")
    assert "no backend named 'numpi'; did you mean 'numpy'? (backends: numpy" in str(raised.value)
    assert isinstance(raised.value, ImportError)


def test_a_function_of_tensors_is_no_rule_and_told_what_makes_it_one(tmp_path: Any) -> None:
    with pytest.raises(xg.RuleError, match=r"takes \(x, width\), .*; xg.convert takes functions"):
        xg.save(lambda x, width: x, tmp_path / "saved.json")


# --- tensors --------------------------------------------------------------------------------------

FOREIGN = [[1.0, 2.0], (1.0,), "x", 3.0, None, object(), {"a": 1}]


@pytest.mark.parametrize("value", FOREIGN, ids=lambda value: type(value).__name__)
def test_value_that_is_no_tensor(value: Any) -> None:
    activation = xg.activation("ReLU")
    message = f"no backend takes a .*{type(value).__name__}; expected a NumPy array or a tensor of"
    with pytest.raises(xg.BackendNotFound, match=message):
        activation(value)
    with xg.use("triangular"), pytest.raises(xg.BackendNotFound, match=message):
        activation(value)
    if not isinstance(value, float):  # a number, which a rule's Function takes
        with pytest.raises(xg.BackendNotFound, match=message):
            xg.get("triangular").under("ReLU")(value)


def test_a_function_of_the_step_as_an_argument_is_told_what_makes_it_a_schedule() -> None:
    with pytest.raises(xg.BackendNotFound, match=r"a function of the step is xg.schedule.of\(f\)"):
        xg.get("triangular").under("ReLU")(X, lambda step: 1.0)


@pytest.mark.parametrize("value", [[1.0, 2.0], "x", object()], ids=["list", "str", "object"])
def test_rule_on_values_that_are_no_tensors(value: Any) -> None:
    for grad_out in (value, X):
        with pytest.raises(xg.BackendNotFound, match="no backend takes a"):
            xg.get("triangular")(None, grad_out, value)
    with pytest.raises(xg.BackendNotFound, match=r"apply_to_gradients found a leaf.*str"):
        xg.apply_to_gradients({"kernel": X, "name": "dense"}, "scale")
    with pytest.raises(xg.MultigradError, match="rule 'scale' got None for grad_out; expected"):
        xg.get("scale")(None, None, X)


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint8", "bool", "complex64"])
def test_rule_acts_on_floats_only(dtype: str, backend: Any) -> None:
    with backend.precision(np.float64):
        x = backend.array(np.array([0, 1, 1]).astype(dtype))
        name = str(backend.numpy(x).dtype)
        message = (
            f"rule 'triangular' got a tensor of dtype {name}; expected one of .*float32.*cast it"
        )
        with xg.use("triangular"), pytest.raises(xg.GradientError, match=message):
            xg.activation("ReLU")(x)
        with pytest.raises(xg.GradientError, match=message):
            xg.get("triangular")(None, x, x)
        with pytest.raises(xg.GradientError, match=message):
            xg.apply_to_gradients([x], "triangular")


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_rule_acts_on_every_float(dtype: str, backend: Any) -> None:
    with backend.precision(np.float64):
        x = backend.array(np.array([0.25, -0.5, 2.0]).astype(dtype))
        given = backend.numpy(xg.get("triangular")(None, x, x))
    assert given.dtype == dtype
    np.testing.assert_allclose(given, [0.1875, -0.25, 0.0], rtol=1e-3)


def test_gradient_of_another_shape_than_tin(backend: Any) -> None:
    message = r"rule 'triangular' got a gradient of shape {} for an input of shape \(3,\)"
    for given, shape in ((X[:2], r"\(2,\)"), (X[None], r"\(1, 3\)"), (X[0], r"\(\)")):
        with pytest.raises(xg.GradientError, match=message.format(shape)):
            xg.get("triangular")(None, backend.array(given), backend.array(X))


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_complex_input_names_the_way_out(dtype: str, backend: Any) -> None:
    with backend.precision(np.float64):
        z = backend.array(np.array([1 + 2j, 0.5]).astype(dtype))
        # Of some, MLX has only the narrower.
        message = r"got a tensor of dtype complex\d+.*cast it first, or apply the rule to the real"
        act = xg.activation("ReLU", "scale")
        for call in (act,) if backend.name == "numpy" else (act, xg.jit(act, backend.name)):
            with pytest.raises(xg.GradientError, match=message):
                call(z)
        with pytest.raises(xg.GradientError, match=message):
            xg.get("scale")(None, z, None)
        with pytest.raises(xg.GradientError, match=message):
            xg.apply_to_gradients({"kernel": z}, "scale")


@pytest.mark.needs("torch")
def test_torch_module_on_integers_and_complex_numbers() -> None:
    import torch

    module = xg.Activation("ReLU", "triangular")
    for dtype in (torch.int64, torch.complex64, torch.bool):
        name = str(dtype).removeprefix("torch.")
        with pytest.raises(
            xg.GradientError, match=f"rule 'triangular' got a tensor of dtype {name}.*cast"
        ):
            module(torch.ones(3, dtype=dtype))


# --- two frameworks, two devices ------------------------------------------------------------------


@pytest.mark.backends("torch", "jax", "tensorflow")
@pytest.mark.needs("torch", "jax")
def test_param_of_another_framework(backend: Any) -> None:
    import jax.numpy as jnp
    import torch

    width = jnp.float32(2.0) if backend.name != "jax" else torch.tensor(2.0)
    owner = "jax" if backend.name != "jax" else "torch"
    x = backend.array(X)
    message = (
        f"rule 'triangular' got param 'width' as a tensor of {owner} for a tensor of "
        rf"{backend.name}; pass float\(width\)"
    )
    act = xg.activation("ReLU", "triangular", {"width": width})
    with pytest.raises(xg.MultigradError, match=message):
        act(x)
    with xg.use("triangular", {"width": width}), pytest.raises(xg.MultigradError, match=message):
        xg.activation("ReLU")(x)
    with pytest.raises(xg.MultigradError, match=message):
        xg.get("triangular")(None, x, x, width=width)


@pytest.mark.needs("torch")
def test_tensors_on_two_devices_in_one_call() -> None:
    import torch

    x = torch.from_numpy(X)
    away = x.to("meta")
    message = "rule 'triangular' got a gradient on meta and its input on cpu; move one of them"
    with pytest.raises(xg.MultigradError, match=message):
        xg.get("triangular")(None, away, x)
    message = "rule 'triangular' got a gradient on cpu and its input on meta"
    with pytest.raises(xg.MultigradError, match=message):
        xg.get("triangular")(None, x, away)


@pytest.mark.needs("torch")
def test_param_on_another_device() -> None:
    import torch

    x = torch.from_numpy(X)
    width = torch.tensor(2.0, device="meta")
    message = r"rule 'triangular' got param 'width' on meta and the input on cpu; .*\.to\('cpu'\)"
    with pytest.raises(xg.MultigradError, match=message):
        xg.get("triangular")(None, x, x, width=width)
    for act in (
        xg.activation("ReLU", "triangular", {"width": width}),
        xg.Activation("ReLU", "triangular", {"width": width}),
    ):
        with pytest.raises(xg.MultigradError, match=message):
            act(x)
    with pytest.raises(xg.MultigradError, match="rule 'scale' got param 's' on meta"):
        xg.apply_to_gradients([x], "scale", {"s": width})


@pytest.mark.needs("torch")
def test_tensors_on_one_other_device_are_taken() -> None:
    import torch

    away = torch.from_numpy(X).to("meta").requires_grad_()
    xg.activation("ReLU", "scale", {"s": 2.0})(away).sum().backward()
    assert away.grad is not None and away.grad.device.type == "meta"
    assert xg.get("scale")(None, away.detach(), None, s=2.0).shape == X.shape


# --- what a backend lacks -------------------------------------------------------------------------


def windowed(ctx: Any, grad_out: Any, tin: Any, width: float = 1.0) -> Any:
    return grad_out * xg.xp.erf(tin / width)  # here


def windowed_in_half(ctx: Any, grad_out: Any, tin: Any) -> Any:
    half = xg.xp.erf(xg.xp.cast(tin, "float16"))
    return grad_out * xg.xp.cast(half, grad_out.dtype)


@pytest.fixture
def lacks_erf_in_half(backend: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Give a backend without erf for float16; each test has its own rule, since code is kept."""
    from multigrad.core import ops
    from multigrad.core.backend.discovery import load_backend

    native = load_backend(backend.name)
    monkeypatch.setitem(native.kernels.unsupported, ops.ERF, {"float16": "no CPU kernel"})
    return backend


def test_op_that_a_backend_lacks_for_a_dtype(lacks_erf_in_half: Any) -> None:
    backend = lacks_erf_in_half
    rule = xg.register("windowed")(windowed)
    line = windowed.__code__.co_firstlineno + 1
    message = (
        rf"rule 'windowed' \(test_bad_input.py:{line}\) uses erf, which {backend.name} lacks for "
        r"float16: no CPU kernel\. Cast to another float dtype before it"
    )
    act = xg.activation("ReLU", rule)
    half, single = (backend.array(X.astype(dtype)) for dtype in (np.float16, np.float32))
    for call in (lambda x: act(x), lambda x: rule(None, x, x), lambda x: rule(None, x, x, width=2)):
        with pytest.raises(xg.UnsupportedOp, match=message):
            call(half)
        call(single)
    with xg.use(rule), pytest.raises(xg.UnsupportedOp, match=message):
        xg.activation("Heaviside")(half)


def test_op_that_a_backend_lacks_for_the_dtype_that_a_rule_casts_to(lacks_erf_in_half: Any) -> None:
    backend = lacks_erf_in_half
    rule = xg.register("half")(windowed_in_half)
    x = backend.array(X)
    with pytest.raises(xg.UnsupportedOp, match=r"rule 'half' .*uses erf.*lacks for float16"):
        rule(None, x, x)
    with pytest.raises(xg.UnsupportedOp, match=r"rule 'half' .*uses erf.*lacks for float16"):
        xg.activation("ReLU", rule)(x)


# A word that does not exist is told with the nearest that does, wherever it is given.


X_HINTS = np.linspace(-1.0, 1.0, 5)
TRIANGULAR = xg.get("triangular")


@xg.function
def sloped(x: Any, slope: float = 25.0) -> Any:
    return x * slope


def enter(*args: Any) -> None:
    with xg.use(*args):
        pass


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: xg.use("triangular", width=2.0), 'params={"width": 2.0}'),
        (lambda: xg.use("triangular", widht=2.0), 'did you mean params={"width": 2.0}'),
        (lambda: xg.use("triangular", alpha=2.0), "params={\"width\": 2.0}, of rule 'triangular'"),
        (lambda: xg.use("clip_norm", qqq=2.0), "rule 'clip_norm' has no such param (it takes eps"),
        (lambda: enter("triangular", {"alpha": 2.0}), "no param 'alpha' (it takes width)"),
        (lambda: xg.use("triangular", scop="all"), "did you mean 'scope'"),
        (lambda: enter(None), "use needs a rule: a name, a Rule or a function, got None"),
        (lambda: xg.activation("ReLU", rule="arctan", alpha=3.0), 'params={"alpha": 3.0}'),
        (lambda: xg.apply_to_gradients(X_HINTS, "scale", s=2.0), 'params={"s": 2.0}'),
        (lambda: xg.use("arctan", alpha=3.0), "rule 'arctan': write params={\"alpha\": 3.0}"),
        (lambda: xg.use("arctan", parms={}), "did you mean 'params'"),
        (lambda: xg.activation("hardtanh"), "xg.activation(xg.xp.hard_tanh)"),
        (lambda: xg.activation("Sigmoids"), "did you mean 'Sigmoid'"),
        (lambda: xg.activation("atan"), "write xg.activation('Heaviside', 'snntorch.atan')"),
        (lambda: xg.activation("fast_sigmoid"), "write xg.activation('Heaviside', 'fast_sigmoid')"),
        (lambda: TRIANGULAR(X_HINTS), "write xg.activation('Heaviside', 'triangular')"),
        (lambda: enter(("triangular", {"width": 2.0})), "xg.get('triangular').with_params(width="),
        (lambda: xg.lower("scale", "tf"), "did you mean 'tensorflow'?"),
        (lambda: xg.use(type("Sign", (), {})), "xg.convert takes the class of a custom gradient"),
        (lambda: xg.get(type("Sign", (), {})), "xg.convert takes the class of a custom gradient"),
        (lambda: xg.get("clipped_ste"), "did you mean 'clipped_straight_through'?"),
        (lambda: enter(["clip_norm", "scale"]), "for several in series write xg.compose(...)"),
        (lambda: xg.activation("Heaviside", "triangular", widht=2.0), 'params={"width": 2.0}'),
        (lambda: xg.activation("Heaviside", width=2.0), "beside the rule"),
        (lambda: TRIANGULAR.with_params(widht=2.0), "did you mean 'width'"),
        (lambda: TRIANGULAR(None, X_HINTS, X_HINTS, widht=2.0), "did you mean 'width'"),
        (lambda: TRIANGULAR.under("Heaviside").bind({"widht": 2.0}), "did you mean 'width'"),
        (lambda: xg.apply_to_gradients(X_HINTS, "clip_norm", maxnorm=1.0), '{"max_norm": 1.0}'),
        (lambda: xg.check("triangular", X_HINTS, backend="numpi"), "did you mean 'numpy'"),
        (lambda: xg.parity("triangular", X_HINTS, backends="numpi"), "did you mean 'numpy'"),
        (lambda: xg.function(abs, dialect="nump"), "did you mean 'numpy'"),
        (
            lambda: xg.function("relu"),
            "got str 'relu'; import what it names, or write xg.activation(name)",
        ),
        (lambda: xg.function(TRIANGULAR), "xg.get('triangular').under(\"ReLU\")"),
        (lambda: xg.custom_gradient(TRIANGULAR), "xg.get('triangular').under(\"ReLU\")"),
        (lambda: xg.vjp("relu", X_HINTS), "expected a function, got str 'relu'"),
        (lambda: xg.estimators.ste_sign(X_HINTS, clp=1.0), "takes no 'clp'; did you mean 'clip'"),
        (lambda: xg.estimators.ste_sign(X_HINTS, x=X_HINTS), "got x twice"),
        (lambda: xg.estimators.lsq(X_HINTS, stp=0.1), "takes no 'stp'; did you mean 'step'"),
        (lambda: sloped(X_HINTS, slop=3), "'sloped' takes no 'slop'; did you mean 'slope'"),
        (lambda: sloped.bind({"slop": 3}), "'sloped' takes no 'slop'; did you mean 'slope'"),
        (lambda: xg.quantize(object(), bit=4), "quantize takes no 'bit'; did you mean 'bits'?"),
        (lambda: xg.attribution.epsilon(eps=0.1), "epsilon takes no 'eps'; did you mean 'epsilon'"),
        (
            lambda: xg.schedule.linear(1.0, 0.0, step=3),
            "linear takes no 'step'; did you mean 'steps'",
        ),
        (
            lambda: xg.schedule.linear(1.0),
            "linear: missing a required argument: 'end' (arguments: ",
        ),
        (lambda: sloped(slope=3), "'sloped': missing a required argument: 'x' (arguments: x, "),
    ],
)
def test_the_error_says_the_word_that_was_meant(call: Any, words: str) -> None:
    with pytest.raises((xg.RuleError, xg.BackendNotFound), match=re.escape(words)):
        call()


# --- draws of bare tensors ------------------------------------------------------------------------

DRAWS = [
    "bernoulli_like", "exponential_like", "gumbel_like", "rademacher_like", "rand_like",
    "randn_like",
]  # fmt: skip


@pytest.mark.parametrize("name", DRAWS)
def test_a_draw_without_a_key_says_what_to_give(backend: Any, name: str) -> None:
    with pytest.raises(xg.RuleError, match=f"xp.{name} of a tensor needs a key: give key="):
        getattr(xp, name)(backend.array(np.zeros(3, np.float32)))


def test_a_draw_takes_every_form_of_a_key(backend: Any) -> None:
    x = np.zeros(3, np.float32)
    drawn = [
        backend.numpy(xp.rand_like(backend.array(x), key=key))
        for key in (7, (0, 7), np.array([0, 7], np.uint32))
    ]
    for other in drawn:
        np.testing.assert_array_equal(other, xp.rand_like(x, key=7))
    for key in ("seven", 1.5, True, (1, 2, 3)):
        with pytest.raises(xg.RuleError, match="two uint32"):
            xp.rand_like(backend.array(x), key=key)


def test_a_fixed_key_in_a_rule_is_refused_with_what_to_write() -> None:
    fixed = xg.function(lambda x: x + xp.rand_like(x, key=7), native=False)
    with pytest.raises(xg.TraceError, match="with a fixed key, so that each call would draw the"):
        fixed(X_HINTS)
