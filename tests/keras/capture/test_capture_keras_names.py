"""Names of Keras with options, and on tensors of more axes, mean what Keras's own functions
compute, by position and by the names of their parameters. The plain ones stand below.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import multigrad as xg

from ...dtypes.names import Compared, assert_as_the_librarys, compare, compare_call, ways_of
from ...dtypes.table import Library
from ...golden import digests
from ...golden.graphs import captured_texts
from ...support import sampling

keras: Any = pytest.importorskip("keras")
pytestmark = pytest.mark.needs("keras")

Call = Callable[..., Any]


def words(text: str) -> list[str]:
    return text.split()


LOGICAL = words("logical_and logical_or logical_xor")
BITWISE = words(
    "bitwise_and bitwise_left_shift bitwise_or bitwise_right_shift bitwise_xor left_shift "
    "right_shift"
)


# What each is called with: `f` is Keras's function, `o` is keras.ops, x and g are (3, 4).
def positive(x: Any, o: Any) -> Any:
    """A matrix that has every factor and inverse."""
    return o.matmul(x, o.transpose(x)) + 3 * np.eye(3, dtype=np.float32)


# What the comparison of every name below does not call them with.
SAMPLES: dict[str, list[Call]] = {
    **{name: [lambda f, x, g, o: f(x > 0, g > 0)] for name in LOGICAL},
    **{name: [lambda f, x, g, o: f(whole(o, x), whole(o, g))] for name in BITWISE},
    **{
        name: [lambda f, x, g, o: f(x, axis=-1)]
        for name in words("all average count_nonzero logsumexp median nanvar ptp std sum")
    },
    "append": [lambda f, x, g, o: f(x, g), lambda f, x, g, o: f(x, g, 1)],
    "array_split": [lambda f, x, g, o: f(x, 2), lambda f, x, g, o: f(x, 3, 1)],
    "batch_normalization": [
        lambda f, x, g, o: f(x, g[0], o.square(g[1]), 1),
        lambda f, x, g, o: f(x, g[0], o.square(g[1]), -1, x[0], g[2], 0.01),
    ],
    "binary_crossentropy": [
        lambda f, x, g, o: f(o.sigmoid(g), o.sigmoid(x)),
        lambda f, x, g, o: f(o.sigmoid(g), x, from_logits=True),
    ],
    "bitwise_invert": [lambda f, x, g, o: f(whole(o, x))],
    "bitwise_not": [lambda f, x, g, o: f(whole(o, x))],
    "cast": [lambda f, x, g, o: f(x, "int32"), lambda f, x, g, o: f(x > 0, "float32")],
    "categorical_crossentropy": [
        lambda f, x, g, o: f(o.softmax(g), o.softmax(x)),
        lambda f, x, g, o: f(o.softmax(g), x, from_logits=True),
        lambda f, x, g, o: f(o.softmax(g, 0), x, True, 0),
    ],
    "cholesky_inverse": [lambda f, x, g, o: f(o.tril(positive(x, o)))],
    "concatenate": [lambda f, x, g, o: f((x, g), axis=1)],
    "cross": [lambda f, x, g, o: f(x[:2, :3], g[:2, :3], axis=-1)],
    "diag": [lambda f, x, g, o: f(x, 1)],
    "diagflat": [lambda f, x, g, o: f(x), lambda f, x, g, o: f(x[0], -1)],
    "diagonal": [lambda f, x, g, o: f(x, -1)],
    "diff": [lambda f, x, g, o: f(x), lambda f, x, g, o: f(x, 2, 0)],
    "dot": [lambda f, x, g, o: f(x, o.transpose(g))],
    "dstack": [lambda f, x, g, o: f([x, g]), lambda f, x, g, o: f([x[0], g[0]])],
    "eigh": [lambda f, x, g, o: f(positive(x, o))[0]],
    "expand_dims": [lambda f, x, g, o: f(x, 1), lambda f, x, g, o: f(x, (0, 2))],
    "get_item": [lambda f, x, g, o: f(x, (slice(0, 2), 1))],
    "hstack": [lambda f, x, g, o: f([x, g])],
    "layer_normalization": [
        lambda f, x, g, o: f(x),
        lambda f, x, g, o: f(x, g[0], g[1], epsilon=0.01),
    ],
    "logical_not": [lambda f, x, g, o: f(x > 0)],
    "max": [lambda f, x, g, o: f(x, 0, True, 1.0)],
    "meshgrid": [
        lambda f, x, g, o: f(x[0], g[:, 1]),
        lambda f, x, g, o: f(x[0], g[:, 1], indexing="ij"),
    ],
    "min": [lambda f, x, g, o: f(x, 0, True, -1.0)],
    "moments": [lambda f, x, g, o: f(x, [0]), lambda f, x, g, o: f(x, [1], keepdims=True)],
    "norm": [lambda f, x, g, o: f(x, axis=1), lambda f, x, g, o: f(x, 1, 0, True)],
    "normalize": [lambda f, x, g, o: f(x), lambda f, x, g, o: f(x, 0, 1, 0.5)],
    "one_hot": [lambda f, x, g, o: f(whole(o, x), 4)],
    "pad": [
        lambda f, x, g, o: f(x, ((1, 0), (0, 2))),
        lambda f, x, g, o: f(x, ((1, 1), (0, 0)), constant_values=2.0),
    ],
    "percentile": [lambda f, x, g, o: f(x, 30.0), lambda f, x, g, o: f(x, 50.0, 1)],
    "power": [lambda f, x, g, o: f(o.abs(x) + 0.1, g)],
    "qr": [lambda f, x, g, o: f(o.transpose(x))[1] ** 2],
    "quantile": [lambda f, x, g, o: f(x, 0.3), lambda f, x, g, o: f(x, 0.5, 1)],
    "repeat": [lambda f, x, g, o: f(x, 3, 1)],
    "reshape": [lambda f, x, g, o: f(x, (2, -1)), lambda f, x, g, o: f(x, o.shape(g))],
    "roll": [lambda f, x, g, o: f(x, 2, 1)],
    "rot90": [lambda f, x, g, o: f(x), lambda f, x, g, o: f(x, 3)],
    "select": [lambda f, x, g, o: f([x > 0, g > 0], [x, g], 0.5)],
    "slice": [lambda f, x, g, o: f(x, (1, 0), (2, 3))],
    "solve_triangular": [
        lambda f, x, g, o: f(positive(x, o), g),
        lambda f, x, g, o: f(positive(x, o), g[:, 0], True),
    ],
    "split": [lambda f, x, g, o: f(x, 3), lambda f, x, g, o: f(x, [1, 3], 1)],
    "stack": [lambda f, x, g, o: f([x, g]), lambda f, x, g, o: f([x, g], 2)],
    "svd": [lambda f, x, g, o: f(x, compute_uv=False), lambda f, x, g, o: f(positive(x, o))[1]],
    "take": [lambda f, x, g, o: f(x, [2, 0]), lambda f, x, g, o: f(x, [2, 0], 1)],
    "tensordot": [lambda f, x, g, o: f(x, o.transpose(g), 1)],
    "trace": [lambda f, x, g, o: f(x, 1)],
    "trapezoid": [
        lambda f, x, g, o: f(x),
        lambda f, x, g, o: f(x, g),
        lambda f, x, g, o: f(x, None, 0.5, 0),
        lambda f, x, g, o: f(x > g, x),
    ],
    "vdot": [lambda f, x, g, o: f(o.ravel(x), o.ravel(g))],
    "vstack": [lambda f, x, g, o: f([x, g])],
    "where": [lambda f, x, g, o: f(x, g, 0.5)],
}
ACTIVATIONS: dict[str, list[Call]] = {
    **{
        name: [lambda f, x, g, o: f(x)]
        for name in words("exponential sparse_plus sparse_sigmoid squareplus")
    },
    "relu": [
        lambda f, x, g, o: f(x, 0.2, 1.5, 0.5),
        lambda f, x, g, o: f(x, 0.0, 6),
        lambda f, x, g, o: f(x, 0.0, None, 1.0),
    ],
}
# By probabilities, or as they are.
LOSSES: dict[str, list[Call]] = {
    "binary_crossentropy": [
        lambda f, x, g, o: f(o.sigmoid(x), g, True),
        lambda f, x, g, o: f(o.sigmoid(x), o.sigmoid(g), False, 0.1, 0),
    ],
    "binary_focal_crossentropy": [
        lambda f, x, g, o: f(o.sigmoid(x), g, True, 0.3, 1.5, True, 0.1),
    ],
    "categorical_crossentropy": [lambda f, x, g, o: f(o.softmax(x), g, True, 0.1)],
    "categorical_focal_crossentropy": [
        lambda f, x, g, o: f(o.softmax(x), o.softmax(g)),
        lambda f, x, g, o: f(o.softmax(x), g, 0.3, 1.5, True, 0.1),
    ],
    "cosine_similarity": [lambda f, x, g, o: f(x, g, 0)],
    "hinge": [lambda f, x, g, o: f(o.cast(x > 0, "float32"), g)],
    "huber": [lambda f, x, g, o: f(x, g, 0.5)],
    "mean_squared_error": [lambda f, x, g, o: f(x, g[:, :1])],
    "poisson": [lambda f, x, g, o: f(o.sigmoid(x), o.sigmoid(g))],
}


def whole(o: Any, x: Any) -> Any:
    """Integers from 0 to 3."""
    return o.cast(o.minimum(o.floor(o.abs(x)), 3), "int32")


def inputs() -> tuple[Any, Any]:
    x = np.linspace(-2.3, 2.9, 12, dtype=np.float32).reshape(3, 4)
    x[1] = [0.0, 0.5, 1.0, -1.0]
    return x, np.linspace(1.9, -1.3, 12, dtype=np.float32).reshape(3, 4)


def keyworded(function: Any) -> Call:
    """The same call with every argument under Keras's own name for it."""
    signature = inspect.signature(function)
    free = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)

    def call(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs).arguments
        return function(**given)

    is_free = any(p.kind is free[0] for p in signature.parameters.values())
    return function if is_free else call


OF_KERAS = {
    "ops": SAMPLES,
    "activations": ACTIVATIONS,
    "losses": LOSSES,
}


@pytest.mark.parametrize(
    ("room", "name"), [(room, name) for room, rows in OF_KERAS.items() for name in sorted(rows)]
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_name_with_options_means_what_keras_computes(
    room: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MULTIGRAD_PROVE", "0")  # the comparison with Keras is here
    function, outcome = getattr(getattr(keras, room), name), Compared()
    for sample in OF_KERAS[room][name]:
        for f in (function, keyworded(function)):
            call = partial(sample, f, o=keras.ops)
            compare_call(Library("keras"), name, call, inputs(), outcome)
    assert not outcome.differing and not outcome.refused


# What Keras's names become is as the digests have it, and means what Keras computes; see
# `tests/lowering/test_lowered_code.py` and `tests/project/test_names_of_tables.py`.


@pytest.mark.always
@pytest.mark.skipif(keras.backend.backend() != "torch", reason="the digests are of Keras on torch")
def test_every_name_of_keras_becomes_the_graph_that_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MULTIGRAD_PROVE", "0")
    known = dict(sampling.sample(digests.read("graphs", "keras").items(), 1 / 8))
    assert not digests.differing(known, captured_texts("keras", list(known)))


def test_a_name_of_keras_means_what_keras_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MULTIGRAD_PROVE", "0")  # the comparison with Keras is here
    outcome = compare("keras", ways_of("keras", 1 if sampling.WHOLE else 8))
    assert not outcome.differing
    assert outcome.counts["equal"] > 5 * len(outcome.refused), outcome.refused


@pytest.mark.parametrize("limit", [6, 1.5])
def test_relu_up_to_a_limit_has_keras_s_gradient_at_zero(limit: float) -> None:
    x = keras.ops.convert_to_tensor(np.float32([-1, 0, 1, 7]))
    call = lambda x: keras.activations.relu(x, max_value=limit)
    captured, own = (
        xg.vjp(f, x)[1](keras.ops.ones_like(x))[0] for f in (xg.function(call, native=False), call)
    )
    assert keras.ops.all(captured == own)


# Functions of Keras that no row knows are captured by the trace of the backend that it runs on.


X = np.array([[1.5, -0.25, 0.7], [0.5, 2.0, -1.1]], np.float32)

CALLS: dict[str, Callable[[Any], Any]] = {
    "sparsemax": lambda x: keras.ops.sparsemax(x),
    "trapezoid": lambda x: keras.ops.trapezoid(x, axis=0),
    "dot_product_attention": lambda x: keras.ops.dot_product_attention(*[x[None, :, None]] * 3),
    "relu": lambda x: keras.activations.relu(x, 0.2, 1.8, 0.6),
    "sparse_categorical_crossentropy": lambda x: keras.losses.sparse_categorical_crossentropy(
        np.array([0, 2]), x, from_logits=True
    ),
    "rgb_to_grayscale": lambda x: keras.ops.image.rgb_to_grayscale(x[None, None]),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_function_without_a_row_has_its_numbers_and_gradient(name: str) -> None:
    function = xg.function(CALLS[name], native=False)
    assert_as_the_librarys("keras", f"{name}()", CALLS[name], [X], function)
    assert f"by keras's own trace of {name}" in str(xg.show(function))


def test_what_the_backend_cannot_trace_is_refused_with_the_reason() -> None:
    function = xg.function(lambda x: keras.ops.bincount(keras.ops.cast(x, "int32")), native=False)
    with pytest.raises(xg.TraceError, match=r"bincount, which is not captured.*\("):
        function(X)
