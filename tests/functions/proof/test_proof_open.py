"""What a library leaves open is no difference: the signs of vectors, the order of equal elements,
the dtype of a gradient that is cast, memory that a backward writes into.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import multigrad as xg
from multigrad.core.backend.discovery import load_backend
from multigrad.core.trace.xp import all as xp
from multigrad.engine.capture.dialect import find_dialect
from multigrad.errors import DisprovedError, NativeRuleWarning, NotProvenWarning

from ...harness.commands import invoke
from ...harness.torch_class import torch_class

R = np.random.default_rng(0).normal(size=(3, 5)).astype(np.float32)
S = R @ R.T
TIES = np.tile(np.array([3, 1, 1, 2, 2, 2, 0], np.float32), 8)


@pytest.fixture(autouse=True)
def proven(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MULTIGRAD_PROVE", "all")


def without_a_word(run: Callable[[], Any]) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("error", NativeRuleWarning)
        warnings.simplefilter("error", NotProvenWarning)
        return run()


def refusal(function: Any, x: Any) -> str:
    """Return the words with which a graph is refused."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NativeRuleWarning)
        with pytest.raises(DisprovedError) as caught:
            function(x)
    return str(caught.value)


def class_of(forward: Callable[..., Any], backward: Callable[..., Any]) -> Any:
    """Return a class whose backward gets the cotangents after the input."""

    @torch_class(lambda ctx, *cotangents: backward(ctx.saved_tensors[0], *cotangents))
    def Written(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return forward(x)

    return Written


def of_vectors() -> dict[str, tuple[Any, Any, Any]]:
    """Return forwards that give vectors, backwards that use them, and matrices."""
    import torch

    eigh, svd = torch.linalg.eigh, torch.linalg.svd

    def singular(x: Any) -> Any:
        return tuple(svd(x, full_matrices=False))

    return {
        "eigenvectors": (lambda x: eigh(x)[1], lambda x, g: eigh(x)[1] @ g, S),
        "both": (lambda x: tuple(eigh(x)), lambda x, w, v: eigh(x)[1] * w @ v, S),
        "one of them": (lambda x: eigh(x)[1][:, -1], lambda x, g: torch.outer(g, eigh(x)[1][0]), S),
        "equal values": (lambda x: eigh(x)[1], lambda x, g: eigh(x)[1] @ g, np.eye(3)),
        "right": (lambda x: singular(x)[2], lambda x, g: singular(x)[0] @ g, R),
        "left": (lambda x: singular(x)[0], lambda x, g: g @ torch.diag(singular(x)[1]) @ x, R),
        "a batch": (lambda x: eigh(x)[1], lambda x, g: eigh(x)[1] @ g, np.stack([S, S + 1])),
        "a sign that counts": (
            lambda x: torch.relu(eigh(x)[1][:, 0]),
            lambda x, g: torch.outer(g, eigh(x)[1][:, 0]),
            S,
        ),
    }


VECTORS = "eigenvectors; both; one of them; equal values; right; left; a batch; a sign that counts"


@pytest.mark.needs("torch")
@pytest.mark.parametrize("name", VECTORS.split("; "))
def test_vectors_have_the_signs_that_their_library_chooses(name: str) -> None:
    import torch

    forward, backward, array = of_vectors()[name]
    written = class_of(forward, backward)
    function = xg.from_autograd_function(written)

    def run(call: Any) -> list[Any]:
        x = torch.tensor(np.float32(array), requires_grad=True)
        outputs = call(x)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        return [*outputs, *torch.autograd.grad([y.sum() for y in outputs], x)]

    for found, expected in zip(
        without_a_word(lambda: run(function)), run(written.apply), strict=True
    ):
        torch.testing.assert_close(found, expected)
    without_a_word(lambda: function(np.float32(array)))  # elsewhere, too


@pytest.mark.needs("tensorflow")
def test_vectors_of_tensorflow_have_its_signs() -> None:
    import tensorflow as tf

    @tf.custom_gradient
    def vectors(x: Any) -> Any:
        w, v = tf.linalg.eigh(x)
        return v, lambda g: v @ tf.linalg.diag(w) @ tf.transpose(g)

    function = xg.from_tf_custom_gradient(vectors)
    found = without_a_word(lambda: function(tf.constant(S)))
    np.testing.assert_allclose(found, vectors(tf.constant(S)), rtol=1e-5)
    v = without_a_word(lambda: function(S))
    np.testing.assert_allclose(S @ v, v * np.linalg.eigvalsh(S), atol=1e-4)
    # Of a sample without full rank, rounding makes the last row.
    factor = xg.function(lambda x: tf.linalg.qr(tf.transpose(x)).r, native=False)
    r = without_a_word(lambda: factor(tf.constant(R)))
    np.testing.assert_allclose(r, np.linalg.qr(R.T)[1], atol=1e-5)


@pytest.mark.needs("tensorflow")
def test_a_known_fault_of_a_kernel_is_told_as_one() -> None:
    import tensorflow as tf

    words = refusal(xg.function(tf.math.erf), tf.constant([np.inf, 0.5], tf.float64))
    assert "known of tf.math.erf of tensorflow in float64: NaN where the square of x" in words


def test_a_library_with_other_signs_in_two_functions_is_right_in_both() -> None:
    linalg = pytest.importorskip("scipy.linalg")
    x = np.random.default_rng(1).normal(size=(12, 12))
    x = x + x.T
    function = xg.function(lambda x: linalg.eigh(x), lambda g, x: x * 0, native=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotProvenWarning)
        w, v = function(x)
    np.testing.assert_allclose(x @ v, v * w, atol=1e-12)


@pytest.mark.needs("torch")
def test_a_vector_whose_sign_is_turned_in_one_place_alone_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import torch

    monkeypatch.setenv("MULTIGRAD_PROVE", "1")
    load_backend("torch")
    aliases: Any = find_dialect("torch").names.aliases  # type: ignore[union-attr]
    monkeypatch.setitem(aliases, torch.relu, lambda x: xp.relu(-x))

    def forward(x: Any) -> Any:
        v = torch.linalg.eigh(x)[1]
        return torch.relu(v[:, 0]) + v[:, 0]

    function = xg.from_autograd_function(class_of(forward, lambda x, g: x))
    assert "differs from its graph" in refusal(function, S)


@pytest.mark.needs("torch")
@pytest.mark.parametrize("name", ["topk", "kthvalue", "median"])
def test_which_of_equal_elements_comes_first_is_left_open(name: str) -> None:
    import torch

    calls: dict[str, Callable[[Any], Any]] = {
        "topk": lambda x: torch.topk(x, 5),
        "kthvalue": lambda x: torch.kthvalue(x, 20),
        "median": lambda x: torch.median(x, 0),
    }

    def backward(x: Any, g: Any) -> Any:
        places = calls[name](x).indices.reshape(-1)
        return torch.zeros_like(x).scatter(0, places, g.reshape(-1))

    written = class_of(lambda x: calls[name](x).values, backward)
    function = xg.from_autograd_function(written)
    x = torch.tensor(TIES, requires_grad=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error", NativeRuleWarning)
        warnings.simplefilter("ignore", NotProvenWarning)
        y = function(x)
        function(TIES)
    torch.testing.assert_close(y, written.apply(x))
    (slope,) = torch.autograd.grad(y.sum(), x)
    assert slope.sum() == y.numel()
    assert set(x[slope > 0].tolist()) == set(y.reshape(-1).tolist())


def test_the_order_of_equal_elements_in_numpy_is_left_open() -> None:
    function = xg.function(lambda x: np.argsort(x) * 1.0, lambda g, x: g, native=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error", NativeRuleWarning)
        warnings.simplefilter("ignore", NotProvenWarning)
        order = function(TIES).astype(int)
    np.testing.assert_array_equal(TIES[order], np.sort(TIES))


@pytest.mark.needs("torch")
def test_an_order_that_is_wrong_beside_equal_elements_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import torch

    load_backend("torch")
    aliases: Any = find_dialect("torch").names.aliases  # type: ignore[union-attr]
    monkeypatch.setitem(aliases, torch.relu, lambda x: xp.abs(x))
    written = class_of(lambda x: torch.relu(torch.topk(x - 2, 5, largest=False)[0]), lambda x, g: x)
    assert "please report it" in refusal(xg.from_autograd_function(written), TIES)


@pytest.mark.needs("jax")
@pytest.mark.parametrize("own, wide", [("bfloat16", "float32"), ("float32", "bfloat16")])
def test_a_gradient_of_jax_is_cast_to_the_dtype_of_its_input(own: str, wide: str) -> None:
    import jax
    import jax.numpy as jnp

    @jax.custom_vjp
    def doubled(x: Any) -> Any:
        return x * 2

    doubled.defvjp(lambda x: (x * 2, x), lambda x, g: (g.astype(wide) * jnp.asarray(2.125, wide),))
    function, x = xg.from_custom_vjp(doubled), jnp.ones(3, own)
    slope = without_a_word(lambda: jax.grad(lambda x: function(x).astype("float32").sum())(x))
    assert slope.dtype == own
    np.testing.assert_array_equal(slope.astype("float32"), 2.125)


@pytest.mark.needs("tensorflow")
def test_a_gradient_of_tensorflow_is_cast_to_the_dtype_of_its_input() -> None:
    import tensorflow as tf

    @tf.custom_gradient
    def doubled(x: Any) -> Any:
        return x * 2, lambda g: tf.cast(g, tf.float64) * 2.25

    x = tf.ones(3)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = without_a_word(lambda: xg.from_tf_custom_gradient(doubled)(x))
    slope = tape.gradient(y, x)
    assert slope.dtype == tf.float32
    np.testing.assert_array_equal(slope, 2.25)


@pytest.mark.needs("torch")
@pytest.mark.parametrize("name", ["int32", "bool", "float64", "bfloat16"])
def test_a_gradient_of_torch_is_cast_to_the_dtype_of_its_input(name: str) -> None:
    import torch

    written = class_of(lambda x: x * 2, lambda x, g: (x > 0).to(getattr(torch, name)))
    function = xg.from_autograd_function(written)
    x = torch.linspace(-1, 1, 4, requires_grad=True)
    without_a_word(lambda: function(x * 1.5).sum().backward())
    np.testing.assert_array_equal(x.grad, [0, 0, 1.5, 1.5])
    y, pull = without_a_word(lambda: xg.vjp(function, x.detach().numpy()))
    (slope,) = pull(np.ones_like(y))
    assert slope.dtype == np.float32
    np.testing.assert_array_equal(slope, [0, 0, 1, 1])


@pytest.mark.needs("torch")
def test_a_backward_may_write_into_its_cotangent() -> None:
    import torch

    def backward(x: Any, g: Any) -> Any:
        g[x > 1] = 0
        g[x < -1] = 0
        return g

    function = xg.from_autograd_function(class_of(lambda x: x.clamp(-1, 1), backward))
    x = torch.linspace(-2, 2, 6, requires_grad=True)
    without_a_word(lambda: function(x).backward(torch.arange(6.0)))
    np.testing.assert_array_equal(x.grad, [0, 0, 2, 3, 0, 0])


@pytest.mark.needs("torch")
def test_a_wrong_write_is_told_with_its_line_and_the_cotangent_that_came(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import torch

    load_backend("torch")
    aliases: Any = find_dialect("torch").names.aliases  # type: ignore[union-attr]
    monkeypatch.setitem(aliases, torch.exp, xp.abs)

    def backward(x: Any, g: Any) -> Any:
        g.mul_(2)
        g[:] = g * torch.exp(x)
        return g * 1

    function = xg.from_autograd_function(class_of(lambda x: x.clamp(-1, 1), backward))
    words = refusal(function, np.linspace(-2, 2, 6, dtype=np.float32))
    for part in (
        "differs from its graph", "the gradient of x[0] is ", " as written and ", "[0] = 0.5",
        "They first differ at line", "g[:] = g * torch.exp(x)", "please report it",
    ):  # fmt: skip
        assert part in words, words
    assert "kink" not in words
    shifted = xg.function(lambda x, k: torch.exp(x) + k, capture=xg.Capture(native=False))
    with pytest.raises(DisprovedError, match=r" for x\[0\] = \S+, k = [0-9]+,"):
        shifted(torch.linspace(-2, 2, 6), torch.tensor(7))


@pytest.mark.needs("torch")
def test_floats_that_no_integer_holds_are_nobodys_fault() -> None:
    written = class_of(lambda x: (x * 1e12).int().float(), lambda x, g: g)
    words = refusal(xg.from_autograd_function(written), R)
    assert "limit the floats first" in words
    assert "please report" not in words


# A proof ends: code that does not end on numbers that it made up is stopped, and said to be.


def root_in_jax() -> Any:
    import jax
    import jax.numpy as jnp

    @jax.custom_vjp
    def root(a: Any) -> Any:
        return jax.lax.while_loop(
            lambda s: jnp.max(jnp.abs(s * s - a)) > 1e-4,
            lambda s: 0.5 * (s + a / s),
            jnp.ones_like(a),
        )

    def forward(a: Any) -> Any:
        s = root(a)
        return s, s

    root.defvjp(forward, lambda s, g: (g / (2 * s),))
    return root


@pytest.mark.needs("jax")
def test_a_compiled_loop_is_not_begun_on_numbers_on_which_it_does_not_end() -> None:
    import jax.numpy as jnp

    root = xg.from_custom_vjp(root_in_jax())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_allclose(root(jnp.array([0.25, 4.0])), [0.5, 2.0], rtol=1e-4)
    root = xg.from_custom_vjp(root_in_jax())
    with pytest.warns(NotProvenWarning, match="a loop has not ended after 2,000 turns"):
        np.testing.assert_allclose(root(jnp.full((600,), 4.0)), np.full(600, 2.0), rtol=1e-4)


MODULE = """
import torch


class Root(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a):
        s = torch.ones_like(a)
        while not (s * s - a).abs().max() < 1e-4:
            s = 0.5 * (s + a / s)
        ctx.save_for_backward(s)
        return s

    @staticmethod
    def backward(ctx, grad_out):
        (s,) = ctx.saved_tensors
        return grad_out / (2 * s)


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a):
        return a * 2

    @staticmethod
    def backward(ctx, grad_out):
        return grad_out * 2
"""


@pytest.mark.needs("torch")
def test_convert_says_what_does_not_end_on_guessed_inputs_and_goes_on(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "newtons_roots.py").write_text(MODULE, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    result = invoke("convert", "newtons_roots")
    (row,) = (line for line in result.output.splitlines() if ":Root" in line)
    assert "'forward' has not ended after 100,000 steps" in row
    assert "equal" in next(line for line in result.output.splitlines() if ":Twice" in line)
