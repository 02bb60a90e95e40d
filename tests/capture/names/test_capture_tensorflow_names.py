"""Names of TensorFlow with options, and those that no pattern of `tests/dtypes/names.py` reaches:
called by the names of their parameters, they mean what TensorFlow's own functions do.

A captured name that is compared nowhere fails `test_every_captured_name_is_compared`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from operator import attrgetter
from typing import Any

import numpy as np
import pytest

from ...dtypes import names
from ...dtypes.table import names_of

tf: Any = pytest.importorskip("tensorflow")

pytestmark = pytest.mark.needs("tensorflow")

Arguments = Callable[[Any, Any], tuple[Any, ...]]


def of_x(x: Any, y: Any) -> tuple[Any, ...]:
    return (x,)


def of_positive(x: Any, y: Any) -> tuple[Any, ...]:
    return (1 + x * x,)


def of_both(x: Any, y: Any) -> tuple[Any, ...]:
    return (x, y)


def of_pair(x: Any, y: Any) -> tuple[Any, ...]:
    return ([x, y],)


def of_integers(x: Any, y: Any) -> tuple[Any, ...]:
    return (tf.cast(x * 5, tf.int32), tf.cast(y * y, tf.int32))


def of_shape(x: Any, y: Any) -> tuple[Any, ...]:
    return (tf.shape(x),)


def of_positive_matrix(x: Any, y: Any) -> tuple[Any, ...]:
    return (tf.matmul(x, x, transpose_b=True) + np.eye(3, dtype=np.float32),)


def of_system(x: Any, y: Any) -> tuple[Any, ...]:
    return (*of_positive_matrix(x, y), y)


def named(each: str, arguments: Arguments) -> dict[str, Arguments]:
    return dict.fromkeys(each.split(), arguments)


# Arguments made of tin and grad_out; all others keep TensorFlow's defaults.
ROWS: dict[str, Arguments] = {
    **named(
        "linalg.diag linalg.diag_part linalg.normalize linalg.trace math.angle math.erf "
        "math.reciprocal_no_nan is_tensor nn.crelu nn.gelu nn.l2_normalize nn.leaky_relu "
        "nn.zero_fraction rank shape unstack",
        of_x,
    ),
    **named(
        "linalg.eigvalsh linalg.expm linalg.inv linalg.logdet linalg.lu linalg.pinv linalg.slogdet",
        of_positive_matrix,
    ),
    **named("linalg.cholesky_solve linalg.solve", of_system),
    "linalg.set_diag": lambda x, y: (x, y[:, 0]),
    "linalg.lu_solve": lambda x, y: (of_system(x, y)[0], np.array([0, 2, 1]), of_system(x, y)[1]),
    "linalg.tensor_diag": lambda x, y: (x[0],),
    "linalg.tensor_diag_part": lambda x, y: (x[:3, :3],),
    "linalg.matvec": lambda x, y: (x, y[0]),
    "meshgrid": lambda x, y: (x[0], y[:, 1]),
    "nn.weighted_moments": lambda x, y: (x, [0], 1 + y * y),
    "nn.weighted_cross_entropy_with_logits": lambda x, y: (y, x, 2.0),
    "nn.log_poisson_loss": lambda x, y: (y * y, x),
    "nn.sigmoid_cross_entropy_with_logits": of_both,
    "nn.softmax_cross_entropy_with_logits": of_both,
    "nn.batch_normalization": lambda x, y: (x, y, y * y, x, y, 0.1),
    "math.digamma": of_positive,
    "math.erfcinv": lambda x, y: (1 + x / 4,),
    **named("math.accumulate_n identity_n linalg.global_norm", of_pair),
    **named(
        "bitwise.bitwise_and bitwise.bitwise_or bitwise.bitwise_xor bitwise.left_shift "
        "bitwise.right_shift",
        of_integers,
    ),
    "bitwise.invert": lambda x, y: of_integers(x, y)[:1],
    **named("ones zeros", of_shape),
    "broadcast_to": lambda x, y: (x[:1], of_shape(x, y)[0]),
    "cast": lambda x, y: (x, "int32"),
    "saturate_cast": lambda x, y: (x * 1e12, "int32"),
    "clip_by_global_norm": lambda x, y: ([x, y], 2.0),
    "clip_by_value": lambda x, y: (x, 0.5, -0.5),
    "concat": lambda x, y: ([x, y], 0),
    "eye": lambda x, y: (of_shape(x, y)[0][1],),
    "range": lambda x, y: (of_shape(x, y)[0][1],),
    "fill": lambda x, y: (of_shape(x, y)[0], 0.5),
    "linspace": lambda x, y: (0.0, 1.0, of_shape(x, y)[0][1]),
    "gather": lambda x, y: (x, [2, 0]),
    "linalg.band_part": lambda x, y: (x, 1, 0),
    "math.polyval": lambda x, y: ([y, 2 * x, y], x),
    "pad": lambda x, y: (x, [[1, 0], [0, 2]]),
    "reshape": lambda x, y: (x, [4, -1]),
    "reverse": lambda x, y: (x, [0]),
    "slice": lambda x, y: (x, [1, 0], [-1, 2]),
    "split": lambda x, y: (x, [1, -1]),
    "tensordot": lambda x, y: (x, y, 2),
}
# What draws, branches or repeats, gives places or complex numbers: compared in its own file.
ELSEWHERE = """
    as_dtype nn.dropout random.normal random.uniform image.resize complex signal.fft signal.ifft
    signal.rfft signal.irfft signal.fft2d signal.ifft2d signal.rfft2d signal.irfft2d
    cond compat.v1.cond compat.v1.while_loop foldl foldr gradients map_fn scan switch_case
    while_loop one_hot scatter_nd tensor_scatter_nd_add tensor_scatter_nd_update
    quantization.fake_quant_with_min_max_vars_gradient
    quantization.fake_quant_with_min_max_vars_per_channel_gradient
"""


def part_by_tensors(x: Any, y: Any) -> tuple[Any, ...]:
    return x, tf.constant([1, 0]), tf.constant([-1, 2])


# Arguments beside the defaults.
OPTIONS: list[tuple[str, Arguments, dict[str, Any]]] = [
    ("reduce_sum", of_x, {"axis": [0], "keepdims": True}),
    ("reduce_max", of_x, {"axis": np.array([-1])}),
    ("math.reduce_std", of_x, {"axis": 0}),
    ("math.count_nonzero", of_x, {"axis": 0, "keepdims": True}),
    ("norm", of_x, {"ord": 1}),
    ("norm", of_x, {"ord": np.inf, "axis": 1, "keepdims": True}),
    ("norm", of_x, {"ord": "fro", "axis": [0, 1]}),
    ("linalg.normalize", of_x, {"ord": 1, "axis": 0}),
    ("nn.l2_normalize", of_x, {"axis": [1], "epsilon": 0.5}),
    ("clip_by_norm", of_x, {"clip_norm": 0.5, "axes": 1}),
    ("math.cumulative_logsumexp", of_x, {"axis": 1, "reverse": True}),
    ("cumsum", of_x, {"axis": 1, "exclusive": True}),
    ("cumsum", of_x, {"axis": -2, "exclusive": True, "reverse": True}),
    ("math.cumprod", of_x, {"axis": 1, "reverse": True}),
    ("math.cumprod", of_x, {"exclusive": True, "reverse": True}),
    ("sort", of_x, {"axis": 0, "direction": "DESCENDING"}),
    ("matmul", of_both, {"transpose_a": True}),
    ("matmul", of_both, {"adjoint_b": True}),
    ("linalg.matvec", lambda x, y: (x, y[:, 0]), {"transpose_a": True}),
    ("linalg.band_part", lambda x, y: (x, -1, 1), {}),
    ("nn.leaky_relu", of_x, {"alpha": 0.25}),
    ("nn.gelu", of_x, {"approximate": True}),
    ("nn.silu", of_x, {"beta": 2.0}),
    ("nn.softmax", of_x, {"axis": 0}),
    ("nn.crelu", of_x, {"axis": 0}),
    ("nn.moments", of_x, {"axes": [0, 1], "keepdims": True}),
    ("nn.batch_normalization", lambda x, y: (x, y, y * y, None, None, 0.1), {}),
    ("pad", lambda x, y: (x, [[1, 0], [0, 2]]), {"constant_values": 2}),
    ("pad", lambda x, y: (x, [[1, 0], [0, 2]]), {"mode": "REFLECT"}),
    ("pad", lambda x, y: (x, [[1, 0], [0, 2]]), {"mode": "SYMMETRIC"}),
    ("linalg.diag", lambda x, y: (x[0],), {"k": 1}),
    ("linalg.diag_part", of_x, {"k": -1}),
    ("meshgrid", lambda x, y: (x[0], y[:, 1]), {"indexing": "ij"}),
    ("tensordot", lambda x, y: (x, y, [[0], [0]]), {}),
    ("nn.weighted_moments", lambda x, y: (x, [1], 1 + y * y), {"keepdims": True}),
    ("nn.log_poisson_loss", lambda x, y: (y * y * 3, x), {"compute_full_loss": True}),
    ("split", of_x, {"num_or_size_splits": 2, "axis": 1}),
    ("unstack", of_x, {"axis": 1}),
    ("stack", of_pair, {"axis": -1}),
    ("gather", lambda x, y: (x, 1), {"axis": 1}),
    ("transpose", of_x, {"perm": [1, 0]}),
    ("repeat", of_x, {"repeats": 3, "axis": 1}),
    ("zeros_like", of_x, {"dtype": "bool"}),
    ("slice", part_by_tensors, {}),
    ("clip_by_value", lambda x, y: (x, -0.5, 0.5), {}),
    ("clip_by_value", lambda x, y: (x, y, 0.5), {}),
    ("clip_by_global_norm", lambda x, y: ([x, None], 2.0, 8 * y[0, 0]), {}),
    ("math.polygamma", lambda x, y: (0.0, 1 + x * x), {}),
    ("reduce_prod", of_shape, {}),
    ("reduce_max", of_shape, {}),
]


def find(name: str) -> Callable[..., Any]:
    return attrgetter(name)(tf)


def labeled_call(function: Callable[..., Any], arguments: Arguments) -> Callable[..., Any]:
    """Return the rule that calls a function by TensorFlow's own words, with a label where it takes
    one.
    """
    parameters = inspect.signature(function).parameters
    words = [word for word in parameters if word != "layout"]
    labels = {"name": "labeled"} if "name" in words else {}
    # The operands of einsum have no names.
    is_spread = any(each.kind is each.VAR_POSITIONAL for each in parameters.values())

    def labeled(ctx: Any, grad_out: Any, tin: Any) -> Any:
        if is_spread:
            return as_gradient(function(*arguments(tin, grad_out)), grad_out)
        given = dict(zip(words, arguments(tin, grad_out), strict=False))
        return as_gradient(function(**given, **labels), grad_out)

    return labeled


def as_gradient(result: Any, like: Any) -> Any:
    """Return a result of any kind as a tensor like the gradient, by a sum in which each element
    counts.
    """
    if isinstance(result, list | tuple):
        total = like * 0
        for i, each in enumerate(result):
            total = total if each is None else total + (i + 1) * as_gradient(each, like)
        return total
    if isinstance(result, bool):
        return like * float(result)
    flat = tf.reshape(tf.cast(result, like.dtype) * tf.ones([1], like.dtype), [-1])
    return like * 0 + tf.reduce_sum(tf.sqrt(tf.cumsum(tf.ones_like(flat))) * flat)


def inputs(dtype: Any = np.float64) -> tuple[Any, Any]:
    tin = np.linspace(-2.3, 2.9, 12).reshape(3, 4).astype(dtype)
    grad_out = np.linspace(1.9, -1.3, 12).reshape(3, 4).astype(dtype)
    grad_out[0, 1] = tin[0, 1]
    tin[1] = [0.0, -0.0, 1.0, -0.5]
    return tin, grad_out


def compare(rule: Callable[..., Any], captured: Any, *, edges: bool = False) -> None:
    """Check that a rule gives TensorFlow's own numbers: in double precision, at the edges in
    single.
    """
    tin, grad_out = inputs(np.float32 if edges else np.float64)
    if edges:
        tin[2] = [np.nan, np.inf, -np.inf, 2.5]
        grad_out[2, 3] = 0.0
    wanted = rule(None, tf.constant(grad_out), tf.constant(tin)).numpy()
    with np.errstate(all="ignore"):
        given = captured(rule)(None, grad_out, tin)
    # TensorFlow's double kernels of gelu, leaky_relu and linspace hold constants in single
    # precision.
    rtol, atol = (5e-6, 1e-6) if edges else (1e-7, 1e-12)
    np.testing.assert_allclose(given, wanted, rtol=rtol, atol=atol)


@pytest.mark.parametrize("name", ROWS)
def test_name_with_its_defaults_means_what_tensorflows_does(name: str, captured: Any) -> None:
    function, arguments = find(name), ROWS[name]

    compare(labeled_call(function, arguments), captured)


@pytest.mark.parametrize("number", range(len(OPTIONS)))
def test_name_with_options_means_what_tensorflows_does(number: int, captured: Any) -> None:
    name, arguments, options = OPTIONS[number]
    function = find(name)

    def rule(ctx: Any, grad_out: Any, tin: Any) -> Any:
        return as_gradient(function(*arguments(tin, grad_out), **options), grad_out)

    compare(rule, captured)


# TensorFlow's own results on infinities and NaN, element by element, in single precision.
ELEMENTWISE = (
    "math.angle", "math.digamma", "math.erf", "math.erfcinv", "math.reciprocal_no_nan", "nn.gelu",
    "nn.leaky_relu", "nn.sigmoid_cross_entropy_with_logits",
)  # fmt: skip


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_name_means_what_tensorflows_does_at_the_edges(name: str, captured: Any) -> None:
    function, arguments = find(name), ROWS[name]

    def rule(ctx: Any, grad_out: Any, tin: Any) -> Any:
        return tf.cast(function(*arguments(tin, grad_out)), grad_out.dtype)

    compare(rule, captured, edges=True)


def test_raw_operations_mean_what_tensorflows_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MULTIGRAD_PROVE", "0")  # the comparison with TensorFlow is here
    raw = {function.__name__.lower(): by_words(function) for function in raw_operations()}
    outcome = names.compare("tensorflow", names.first_ways("tensorflow", raw), raw)
    assert not outcome.differing
    assert len(outcome.names) > 50


def by_words(function: Any) -> Callable[..., Any]:
    words = names.named_parameters(function)
    return lambda *given: function(**dict(zip(words, given, strict=False)))


def raw_operations() -> list[Any]:
    functions = (getattr(tf.raw_ops, name) for name in dir(tf.raw_ops))
    return [function for function in functions if callable(function) and function in aliases()]


def aliases() -> Any:
    from multigrad_tensorflow.dialect.table import ALIASES

    return ALIASES


def test_every_captured_name_is_compared() -> None:
    functions = names_of("tensorflow")
    reached = {functions[name] for name, _ in names.ways_of("tensorflow")}
    rows = {find(name) for name in (*ROWS, *ELSEWHERE.split())}
    recorded = {function for function, does in aliases().items() if does is not function}
    assert not recorded - rows - reached - {*raw_operations()}
