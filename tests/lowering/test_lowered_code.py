"""Attached code is what an expert would have written: the same compiled instructions, the same
saved tensors.
"""

from __future__ import annotations

import importlib
import re
from functools import partial
from typing import Any

import numpy as np
import pytest

import multigrad as xg
from multigrad import xp

from ..golden import digests
from ..golden.graphs import captured_texts, emitted_texts
from ..harness.ejecting import load
from ..harness.traced import taped
from ..support.sampling import sample

X = np.linspace(-2.0, 2.0, 1000, dtype=np.float32)


def instructions(compiled_text: str) -> list[str]:
    """Compiled HLO without metadata, source tables and numbering."""
    body = re.sub(r",? ?metadata=\{[^}]*\}", "", compiled_text)
    body = re.sub(r"\n(FileNames|FunctionNames|FileLocations|StackFrames)\n(.+\n)*", "\n", body)
    body = re.sub(r"HloModule [^,\n]*", "HloModule", body)
    names = {}
    return [
        re.sub(r"%?[A-Za-z_][\w.-]*\.\d+", lambda m: names.setdefault(m[0], f"v{len(names)}"), line)
        for line in body.splitlines()
        if line.strip()
    ]


def hand_written_triangular() -> Any:
    import jax
    import jax.numpy as jnp

    @jax.custom_vjp
    def spike(x: Any, width: Any) -> Any:
        return (x > 0).astype(x.dtype)

    def forward(x: Any, width: Any) -> Any:
        return spike(x, width), (x, width)

    def backward(residuals: Any, g: Any) -> Any:
        x, width = residuals
        return g * jnp.maximum(1.0 - jnp.abs(x) / jnp.maximum(width, 1e-6), 0.0), None

    spike.defvjp(forward, backward)
    return spike


def hand_written_rectangular() -> Any:
    import jax

    @jax.custom_vjp
    def relu(x: Any, a: Any, b: Any) -> Any:
        return jax.nn.relu(x)

    def forward(x: Any, a: Any, b: Any) -> Any:
        return relu(x, a, b), (x >= a) & (x <= b)

    def backward(mask: Any, g: Any) -> Any:
        return g * mask.astype(g.dtype), None, None

    relu.defvjp(forward, backward)
    return relu


CASES = {
    "triangular": ("Heaviside", hand_written_triangular, (1.0,)),
    "rectangular": ("ReLU", hand_written_rectangular, (-0.5, 0.5)),
}


@pytest.mark.parametrize("rule", CASES)
@pytest.mark.needs("jax")
def test_jax_compiles_to_the_instructions_of_a_hand_written_custom_vjp(rule: str) -> None:
    import jax

    forward, make, params = CASES[rule]
    hand = make()
    act = xg.activation(forward)

    def ours(x: Any) -> Any:
        with xg.use(rule):
            return act(x).sum()

    def theirs(x: Any) -> Any:
        return hand(x, *params).sum()

    texts = [
        jax.jit(jax.value_and_grad(f)).lower(X).compile().as_text() or "" for f in (ours, theirs)
    ]
    assert len(instructions(texts[0])) > 5
    assert instructions(texts[0]) == instructions(texts[1])


def hand_written_in_tensorflow(rule: str) -> Any:
    import tensorflow as tf

    @tf.custom_gradient
    def triangular(x: Any) -> Any:
        def backward(g: Any) -> Any:
            return g * tf.maximum(1.0 - tf.abs(x) / 1.0, 0.0)

        return tf.cast(x > 0, x.dtype), backward

    @tf.custom_gradient
    def rectangular(x: Any) -> Any:
        mask = (x >= -0.5) & (x <= 0.5)

        def backward(g: Any) -> Any:
            return g * tf.cast(mask, g.dtype)

        return tf.cast(x > 0, x.dtype), backward

    return {"triangular": triangular, "rectangular": rectangular}[rule]


@pytest.mark.parametrize("rule", ["triangular", "rectangular"])
@pytest.mark.needs("tensorflow")
def test_tensorflow_runs_the_ops_of_a_hand_written_custom_gradient(rule: str) -> None:
    import tensorflow as tf

    act = xg.activation("Heaviside")

    def ours(x: Any) -> Any:
        with xg.use(rule):
            return act(x)

    def ops_of(f: Any) -> list[str]:
        gradient = taped(lambda x: tf.reduce_sum(f(x)))
        graph = tf.function(gradient).get_concrete_function(tf.TensorSpec([None])).graph
        # Identity and Placeholder nodes are wiring; the guard is an extra captured placeholder.
        return sorted(op.type for op in graph.get_operations() if op.type not in WIRING)

    assert ops_of(ours) == ops_of(hand_written_in_tensorflow(rule))


WIRING = {"Identity", "IdentityN", "Placeholder", "NoOp"}


def test_emitted_source_is_shown_in_tracebacks() -> None:
    import inspect
    import linecache

    f = xg.lower("triangular", "numpy", forward="Heaviside")
    code = inspect.unwrap(f.backward).__code__
    assert code.co_filename.startswith("<multigrad rule triangular under Heaviside")
    assert linecache.getline(code.co_filename, code.co_firstlineno).startswith("def backward(")


# What libraries' names become and what is emitted for each rule is as the digests have it. Where a
# change means to change that, `python -m tests.golden compare` shows the texts, and `python -m
# tests.golden update` writes the digests anew.


NEEDS = {name: pytest.mark.needs(name) for name in ("torch", "jax", "tensorflow")}
DIALECTS = ["numpy", *(pytest.param(name, marks=mark) for name, mark in NEEDS.items())]


@pytest.mark.always
@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_name_of_a_library_becomes_the_graph_that_it_was(
    dialect: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MULTIGRAD_PROVE", "0")
    if dialect == "torch" and not importlib.import_module("multigrad_torch.core.versions").COMPILES:
        pytest.skip("the digests have the kinks and the names of a newer torch")
    known = dict(sample(digests.read("graphs", dialect).items(), 1 / 8))
    assert not digests.differing(known, captured_texts(dialect, list(known)))


def test_what_is_emitted_for_every_rule_is_the_source_that_it_was(backend: Any) -> None:
    if not digests.path_of("sources", backend.name).exists():
        pytest.skip(f"{backend.name} is an author's backend: its sources are its own tests' matter")
    known = digests.read("sources", backend.name)
    texts = [(key, text) for key, text in emitted_texts(backend.name) if key in known]
    assert not digests.differing(known, texts)  # a rule that is new has no digest yet


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_numpy_takes_fused_and_computes_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MULTIGRAD_FUSED", raising=False)
    x = np.linspace(-2, 2, 9)
    fused, plain = (xg.activation("Heaviside", "triangular", fused=each) for each in (True, False))
    for found, expected in zip(xg.vjp(fused, x)[1](x), xg.vjp(plain, x)[1](x), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_another_word_is_refused() -> None:
    with pytest.raises(TypeError, match=r'fused is "auto", True or False, got \'always\''):
        xg.activation("Heaviside", "triangular", fused="always")  # type: ignore[arg-type]
    with pytest.raises(xg.RuleError, match="fused=True needs a rule"):
        xg.activation("Heaviside", fused=True)
    with pytest.raises(TypeError, match="fused is"):
        xg.function(lambda x: x, lambda g, x: g, fused=1)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="fused is"):
        xg.use("triangular", fused="never").__enter__()  # type: ignore[arg-type]


@pytest.mark.parametrize("written_out", [xg.lower, partial(xg.source, standalone=True)])
def test_what_is_written_out_refuses_what_its_code_asked_otherwise(
    written_out: Any, backend: Any
) -> None:
    def forward(x: Any, limit: float, rows: Any) -> Any:
        scale = (2.0 if x.shape[0] > 5 else 1.0) * (3.0 if limit > 1 else 1.0)
        return x * scale * (len(rows.shape) + xp.sum(rows))

    function = xg.function(forward, lambda grad_out, x, limit, rows: (grad_out, None, None))
    rows = backend.array(np.ones((2, 3), np.float32))
    x = backend.array(np.ones((4, 3), np.float32))
    function(x, 0.5, rows)
    native = written_out(function, backend.name)
    call = load(native) if isinstance(native, str) else getattr(native, "apply", native)
    np.testing.assert_allclose(backend.numpy(call(x, rows, 0.5)), 8.0)
    more_rows = backend.array(np.ones((7, 3), np.float32))
    np.testing.assert_allclose(backend.numpy(call(x, more_rows, 0.5)), 23.0)
    wrong = {"shape": (more_rows, rows, 0.5), "2.0": (x, rows, 2.0), "any, any": (x, x[0], 0.5)}
    for message, arguments in wrong.items():
        with pytest.raises((xg.GradientError, RuntimeError), match=f"written out for .*{message}"):
            call(*arguments)
