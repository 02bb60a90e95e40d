"""TensorFlow's table: every captured name, called by the names of its parameters with its defaults,
means what TensorFlow's own function does. By position: `test_names_of_tables.py`.

A name without a row below fails `test_every_captured_name_has_a_row`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from operator import attrgetter
from typing import Any

import numpy as np
import pytest

tf: Any = pytest.importorskip("tensorflow")

pytestmark = pytest.mark.needs("tensorflow")

Arguments = Callable[[Any, Any], tuple[Any, ...]]


def of_x(x: Any, y: Any) -> tuple[Any, ...]:
    return (x,)


def of_positive(x: Any, y: Any) -> tuple[Any, ...]:
    return (1 + x * x,)


def of_unit(x: Any, y: Any) -> tuple[Any, ...]:
    return (x / 4,)


def of_both(x: Any, y: Any) -> tuple[Any, ...]:
    return (x, y)


def of_pair(x: Any, y: Any) -> tuple[Any, ...]:
    return ([x, y],)


def of_bools(x: Any, y: Any) -> tuple[Any, ...]:
    return (x > 0, y > 0)


def of_integers(x: Any, y: Any) -> tuple[Any, ...]:
    return (tf.cast(x * 5, tf.int32), tf.cast(y * y, tf.int32))


def of_shape(x: Any, y: Any) -> tuple[Any, ...]:
    return (tf.shape(x),)


def of_positive_matrix(x: Any, y: Any) -> tuple[Any, ...]:
    return (tf.matmul(x, x, transpose_b=True) + np.eye(3, dtype=np.float32),)


def of_system(x: Any, y: Any) -> tuple[Any, ...]:
    return (*of_positive_matrix(x, y), y)


def named(names: str, arguments: Arguments) -> dict[str, Arguments]:
    return dict.fromkeys(names.split(), arguments)


# The arguments of every captured name, made of tin and grad_out; all others keep TensorFlow's
# defaults.
ROWS: dict[str, Arguments] = {
    **named("linalg.diag linalg.diag_part", of_x),
    "linalg.set_diag": lambda x, y: (x, y[:, 0]),
    **named(
        "linalg.cholesky linalg.det linalg.expm linalg.inv linalg.logdet linalg.pinv "
        "linalg.slogdet",
        of_positive_matrix,
    ),
    **named("linalg.cholesky_solve linalg.solve linalg.triangular_solve", of_system),
    **named("linalg.eigvalsh linalg.lu", of_positive_matrix),
    "linalg.lu_solve": lambda x, y: (of_system(x, y)[0], np.array([0, 2, 1]), of_system(x, y)[1]),
    "linalg.tensor_diag": lambda x, y: (x[0],),
    "linalg.tensor_diag_part": lambda x, y: (x[:3, :3],),
    "linalg.cross": lambda x, y: (x[:, :3], y[:, :3]),
    "meshgrid": lambda x, y: (x[0], y[:, 1]),
    "nn.weighted_moments": lambda x, y: (x, [0], 1 + y * y),
    "nn.weighted_cross_entropy_with_logits": lambda x, y: (y, x, 2.0),
    "nn.log_poisson_loss": lambda x, y: (y * y, x),
    "math.nextafter": of_both,
    **named(
        "abs math.angle asinh atan math.ceil math.conj constant convert_to_tensor cos cosh "
        "math.erf math.erfc exp "
        "math.expm1 floor identity is_tensor math.is_finite math.is_inf math.is_nan "
        "math.imag math.log_sigmoid negative ones_like math.real math.reciprocal "
        "math.reciprocal_no_nan "
        "math.bessel_i0e math.bessel_i1e math.special.bessel_i0e math.special.bessel_i1e "
        "math.rint round sigmoid sign sin sinh square stop_gradient tan tanh zeros_like nn.elu "
        "nn.gelu nn.leaky_relu nn.relu nn.relu6 nn.selu nn.silu nn.softplus nn.softsign "
        "reduce_logsumexp reduce_max reduce_mean reduce_min reduce_prod reduce_sum "
        "math.reduce_euclidean_norm math.reduce_std math.reduce_variance math.count_nonzero "
        "nn.zero_fraction nn.l2_loss norm linalg.normalize nn.l2_normalize nn.softmax "
        "nn.log_softmax cumsum math.cumprod math.cumulative_logsumexp sort shape size rank "
        "squeeze transpose "
        "linalg.matrix_transpose linalg.adjoint unstack linalg.trace nn.crelu",
        of_x,
    ),
    **named("acosh math.digamma math.lgamma math.log math.log1p math.rsqrt sqrt", of_positive),
    **named("acos asin atanh math.erfinv", of_unit),
    **named(
        "add atan2 divide math.divide_no_nan equal math.floordiv math.floormod greater "
        "greater_equal less less_equal maximum minimum multiply math.multiply_no_nan not_equal "
        "realdiv math.squared_difference subtract truediv truncatediv truncatemod math.xdivy "
        "nn.sigmoid_cross_entropy_with_logits nn.softmax_cross_entropy_with_logits",
        of_both,
    ),
    **named("add_n math.accumulate_n identity_n linalg.global_norm stack", of_pair),
    **named("logical_and logical_or math.logical_xor", of_bools),
    **named(
        "bitwise.bitwise_and bitwise.bitwise_or bitwise.bitwise_xor bitwise.left_shift "
        "bitwise.right_shift",
        of_integers,
    ),
    **named("ones zeros", of_shape),
    "bitwise.invert": lambda x, y: of_integers(x, y)[:1],
    "broadcast_to": lambda x, y: (x[:1], of_shape(x, y)[0]),
    "cast": lambda x, y: (x, "int32"),
    "clip_by_global_norm": lambda x, y: ([x, y], 2.0),
    "clip_by_norm": lambda x, y: (x, 2.0),
    "clip_by_value": lambda x, y: (x, 0.5, -0.5),
    "concat": lambda x, y: ([x, y], 0),
    "einsum": lambda x, y: ("ij,kj->ki", x, y),
    "expand_dims": lambda x, y: (x, 1),
    "eye": lambda x, y: (of_shape(x, y)[0][1],),
    "fill": lambda x, y: (of_shape(x, y)[0], 0.5),
    "gather": lambda x, y: (x, [2, 0]),
    "linalg.band_part": lambda x, y: (x, 1, 0),
    "linalg.matvec": lambda x, y: (x, y[0]),
    "linspace": lambda x, y: (0.0, 1.0, of_shape(x, y)[0][1]),
    "logical_not": lambda x, y: (x > 0,),
    "math.erfcinv": lambda x, y: (1 + x / 4,),
    "math.ndtri": lambda x, y: (0.5 + x / 8,),
    "math.polygamma": lambda x, y: (1.0, 1 + x * x),
    "math.polyval": lambda x, y: ([y, 2 * x, y], x),
    "math.xlog1py": lambda x, y: (x, y * y),
    "math.xlogy": lambda x, y: (x, y * y),
    "matmul": lambda x, y: (x, x[0][:, None] * y[0]),
    "nn.batch_normalization": lambda x, y: (x, y, y * y, x, y, 0.1),
    "nn.bias_add": lambda x, y: (x, y[0]),
    "nn.moments": lambda x, y: (x, [0]),
    "pad": lambda x, y: (x, [[1, 0], [0, 2]]),
    "pow": lambda x, y: (1 + x * x, y),
    "range": lambda x, y: (of_shape(x, y)[0][1],),
    "reduce_all": lambda x, y: (x > -9,),
    "reduce_any": lambda x, y: (x > 9,),
    "repeat": lambda x, y: (x, 2),
    "reshape": lambda x, y: (x, [4, -1]),
    "reverse": lambda x, y: (x, [0]),
    "roll": lambda x, y: (x, 1, 0),
    "saturate_cast": lambda x, y: (x * 1e12, "int32"),
    "scalar_mul": lambda x, y: (0.5, x),
    "slice": lambda x, y: (x, [1, 0], [-1, 2]),
    "split": lambda x, y: (x, [1, -1]),
    "tensordot": lambda x, y: (x, y, 2),
    "tile": lambda x, y: (x, [1, 2]),
    "where": lambda x, y: (x > 0, x, y),
}
# What draws, or gives no tensor, is compared in test_capture_tensorflow.py.
QUANTIZATION = """
    quantization.fake_quant_with_min_max_args quantization.fake_quant_with_min_max_args_gradient
    quantization.fake_quant_with_min_max_vars quantization.fake_quant_with_min_max_vars_gradient
    quantization.fake_quant_with_min_max_vars_per_channel
    quantization.fake_quant_with_min_max_vars_per_channel_gradient
"""
PLACES = """
    argmax argmin argsort gather_nd one_hot scatter_nd tensor_scatter_nd_add
    tensor_scatter_nd_update math.unsorted_segment_sum
    nn.sparse_softmax_cross_entropy_with_logits
"""
ELSEWHERE = (
    "as_dtype", "math.top_k", "nn.dropout", "random.normal", "random.uniform", *PLACES.split(),
    "compat.v1.cond", "compat.v1.while_loop", "cond", "gradients", "switch_case", "while_loop",
    "foldl", "foldr", "map_fn", "scan",
    *QUANTIZATION.split(),
    # Complex numbers: `test_complex_numbers.py`; its own result is of float32.
    "complex", "signal.fft", "signal.ifft", "signal.rfft", "signal.irfft", "signal.fft2d",
    "signal.ifft2d", "signal.rfft2d", "signal.irfft2d", "image.resize",
)  # fmt: skip


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


def compare(rule: Callable[..., Any], captured: Any, *, edges: bool = False) -> None:
    """Check that a rule gives TensorFlow's own numbers: in double precision, at the edges in
    single.
    """
    dtype = np.float32 if edges else np.float64
    tin = np.linspace(-2.3, 2.9, 12).reshape(3, 4).astype(dtype)
    grad_out = np.linspace(1.9, -1.3, 12).reshape(3, 4).astype(dtype)
    grad_out[0, 1] = tin[0, 1]
    tin[1] = [0.0, -0.0, 1.0, -0.5]
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


# TensorFlow's own results on infinities and NaN, element by element.
ELEMENTWISE = [
    name
    for name in ROWS
    if ROWS[name] in (of_x, of_both, of_positive, of_unit)
    and not name.startswith(("reduce", "math.reduce", "nn.l2", "nn.soft", "nn.log_soft", "linalg"))
    and name
    not in (
        "cumsum", "is_tensor", "math.count_nonzero", "math.cumprod", "math.cumulative_logsumexp",
        "nn.crelu", "nn.zero_fraction", "norm", "rank", "shape", "size", "sort", "squeeze",
        "transpose", "unstack",
    )
]  # fmt: skip


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_name_means_what_tensorflows_does_at_the_edges(name: str, captured: Any) -> None:
    function, arguments = find(name), ROWS[name]

    def rule(ctx: Any, grad_out: Any, tin: Any) -> Any:
        return tf.cast(function(*arguments(tin, grad_out)), grad_out.dtype)

    compare(rule, captured, edges=True)


def test_raw_operations_mean_what_tensorflows_do(captured: Any) -> None:
    from multigrad_tensorflow.dialect.table import ALIASES

    meanings = {function: getattr(alias, "meaning", None) for function, alias in ALIASES.items()}
    rows = {find(name): arguments for name, arguments in reversed(ROWS.items())}
    # Of several public functions that mean the same, the first lends its arguments.
    taken = {meanings[public]: rows[public] for public in rows if public in meanings}
    raw = raw_operations()
    assert len(raw) > 50
    for function in raw:
        compare(labeled_call(function, taken[meanings[function]]), captured)


def raw_operations() -> list[Any]:
    from multigrad_tensorflow.dialect.table import ALIASES

    functions = (getattr(tf.raw_ops, name) for name in dir(tf.raw_ops))
    return [function for function in functions if callable(function) and function in ALIASES]


def test_every_captured_name_has_a_row() -> None:
    from multigrad_tensorflow.dialect.table import ALIASES

    rows = {find(name) for name in (*ROWS, *ELSEWHERE)}
    recorded = {function for function, does in ALIASES.items() if does is not function}
    assert not recorded - rows - set(raw_operations())
    assert not {find(name) for name in ELSEWHERE} - set(ALIASES)
