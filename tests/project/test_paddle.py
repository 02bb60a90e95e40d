"""PaddlePaddle as its users meet it: rules, Functions, its autograd, its compiler, its dialect."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import multigrad as xg

from ..users.test_examples import read_numbers, run_example

pytestmark = pytest.mark.needs("paddle")
X = np.array([[-1.5, -0.4, 0.2], [0.7, 1.2, 3.0]])


def tensor(values: Any = X, dtype: str = "float32") -> Any:
    import paddle

    return paddle.to_tensor(np.asarray(values), dtype=dtype, stop_gradient=False)


def gradient(function: Any, x: Any) -> Any:
    """Return the gradient of the sum by a backward pass."""
    x.clear_gradient()
    function(x).sum().backward()
    return x.grad.numpy()


def test_the_gradient_of_a_rule_is_that_of_numpy() -> None:
    act = xg.activation("Heaviside", "triangular")
    expected = xg.vjp(act, X)[1](np.ones_like(X))[0]
    np.testing.assert_array_equal(gradient(act, tensor(dtype="float64")), expected)


def test_a_rule_in_force_acts_and_is_the_one_at_forward() -> None:
    act, x = xg.activation("ReLU"), tensor()
    with xg.use("triangular"):
        y = act(x)
    with xg.use("guided"):
        y.sum().backward()
    expected = xg.vjp(xg.activation("ReLU", "triangular"), X)[1](np.ones_like(X))[0]
    np.testing.assert_allclose(x.grad.numpy(), expected, rtol=1e-6)


def test_no_gradient_is_taken_where_none_is_asked_for() -> None:
    import paddle

    act = xg.activation("ReLU", "triangular")
    assert act(tensor().detach()).stop_gradient
    with paddle.no_grad():
        assert act(tensor()).stop_gradient


def test_the_second_derivative_is_that_of_the_rule() -> None:
    import paddle

    x = tensor([-0.5, 0.3, 0.8], "float64")
    (first,) = paddle.grad(xg.activation("ReLU", "arctan")(x).sum(), x, create_graph=True)
    (second,) = paddle.grad(first.sum(), x)
    step = 1e-6
    sides = [
        gradient(xg.activation("ReLU", "arctan"), tensor(x.numpy() + s, "float64"))
        for s in (step, -step)
    ]
    np.testing.assert_allclose(second.numpy(), (sides[0] - sides[1]) / (2 * step), atol=1e-8)


def test_what_backward_reads_may_not_be_written_to() -> None:
    import paddle

    x = tensor()
    y = xg.activation("ReLU", "triangular")(x)
    with paddle.no_grad():
        x.add_(paddle.ones_like(x))
    with pytest.raises(OSError, match="written to after forward"):
        y.sum().backward()


@pytest.mark.parametrize("shape", [(), (0, 3), (2, 0)])
def test_scalars_and_empty_tensors_keep_their_shape(shape: tuple[int, ...]) -> None:
    x = tensor(np.full(shape, 0.25))
    assert gradient(xg.activation("ReLU", "triangular"), x).shape == shape


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_sixteen_bits_are_computed_in_float32_on_a_processor(dtype: str) -> None:
    act, x = xg.activation("GELU", "sigmoid_surrogate"), tensor(dtype=dtype)
    y = act(x)
    assert y.dtype == x.dtype
    wide = act(x.astype("float32")).astype(dtype)
    np.testing.assert_array_equal(y.numpy(), wide.numpy())


def test_keyed_draws_have_the_bits_of_every_framework() -> None:
    act = xg.activation("ReLU")
    with xg.use("full_jam", key=7):
        expected = xg.vjp(act, X)[1](np.ones_like(X))[0]
    with xg.use("full_jam", key=7):
        np.testing.assert_array_equal(gradient(act, tensor(dtype="float64")), expected)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_off_the_processor_paddle_draws_what_numpy_draws_on_it(dtype: str) -> None:
    import paddle

    from multigrad_paddle.kernels import random

    x, count = tensor(dtype=dtype), paddle.arange(X.size)
    for words in ((3, 7), paddle.to_tensor([3, 7])):
        for like, off in (
            (random.uniform_like, random.draw_uniform),
            (random.normal_like, random.draw_normal),
        ):
            drawn = paddle.reshape(off(random.words_of(words), count, x), x.shape)
            np.testing.assert_array_equal(drawn.numpy(), like((3, 7), x).numpy())


def test_a_key_that_is_a_tensor_is_folded_as_two_ints_are() -> None:
    import paddle

    from multigrad_paddle.kernels import random

    expected = list(xg.backend.random.fold_in((3, 7), 5))
    key, count = paddle.to_tensor([3, 7]), paddle.to_tensor(5)
    for folded in (
        random.fold_in(key, 5),
        random.fold_in(key, count),
        random.fold_in((3, 7), count),
    ):
        assert folded.tolist() == expected


def test_without_a_key_the_seed_of_paddle_repeats_the_draws() -> None:
    import paddle

    def jammed() -> Any:
        with xg.use("full_jam"):
            return gradient(xg.activation("ReLU"), tensor())

    paddle.seed(3)
    first, other = jammed(), jammed()
    paddle.seed(3)
    np.testing.assert_array_equal(jammed(), first)
    assert not np.array_equal(first, other)


def test_rules_act_on_gradients_of_parameters() -> None:
    import paddle

    clipped = xg.apply_to_gradients({"w": paddle.full([4], 5.0)}, "clip_norm")
    np.testing.assert_allclose(clipped["w"].numpy(), 0.5)


def test_a_pylayer_is_a_function_for_every_framework() -> None:
    import paddle

    class Leaky(paddle.autograd.PyLayer):
        @staticmethod
        def forward(ctx: Any, x: Any, low: float, w: Any) -> Any:
            ctx.save_for_backward(x, w)
            ctx.low = low
            return paddle.clip(x, min=low) * w

        @staticmethod
        def backward(ctx: Any, upstream: Any) -> Any:
            x, w = ctx.saved_tensor()
            return paddle.where(x > ctx.low, upstream, 0.1 * upstream) * w, upstream * x

    function = xg.from_autograd_function(Leaky)
    y, pull = xg.vjp(function, X, 0.5, X + 1)
    np.testing.assert_array_equal(y, np.maximum(X, 0.5) * (X + 1))
    grad_x, _, grad_w = pull(np.ones_like(X))
    np.testing.assert_array_equal(grad_x, np.where(X > 0.5, 1.0, 0.1) * (X + 1))
    np.testing.assert_array_equal(grad_w, X)
    assert xg.parity(function, X, 0.5, X + 1, backends=["numpy", "paddle"]).ok


def test_a_pylayer_that_lacks_a_gradient_says_how_many_it_returned() -> None:
    import paddle

    class Short(paddle.autograd.PyLayer):
        @staticmethod
        def forward(ctx: Any, x: Any, y: Any) -> Any:
            return x * y

        @staticmethod
        def backward(ctx: Any, upstream: Any) -> Any:
            return upstream

    with pytest.raises(xg.GradientError, match="returned 1 gradient for 2 tensors"):
        xg.vjp(xg.from_autograd_function(Short), X, X)


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_region_that_runs_again_has_the_rule_of_its_first_run(reentrant: bool) -> None:
    from paddle.distributed.fleet.utils import recompute

    act, x = xg.activation("ReLU"), tensor()

    def region(x: Any) -> Any:
        return act(x * 1.0)

    with xg.use("triangular"):
        y = recompute(region, x, use_reentrant=reentrant)
        expected = gradient(region, tensor())
    y.sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), expected)


@pytest.mark.parametrize("key", [None, 3])
@pytest.mark.parametrize("reentrant", [True, False])
def test_a_region_that_runs_again_has_the_draws_of_its_first_run(reentrant: bool, key: Any) -> None:
    import paddle
    from paddle.distributed.fleet.utils import recompute

    @xg.custom_gradient
    def noisy(x: Any) -> Any:
        noise = xg.xp.rand_like(x)
        return x * noise, lambda upstream: upstream * noise

    act = xg.activation("ReLU")

    def plain(function: Any, x: Any) -> Any:
        return function(x)

    def run(again: Any) -> list[Any]:
        within = again if reentrant else plain  # Paddle has one pair of saved_tensors_hooks

        def inner(x: Any) -> Any:
            return act(noisy(x)) * x

        def outer(x: Any) -> Any:
            return noisy(within(inner, noisy(x)))

        paddle.seed(3)
        x = tensor()
        with xg.use("full_jam", key=key):
            y = again(outer, noisy(act(x))) + act(x)
        y.sum().backward()
        return [y.numpy(), x.grad.numpy()]

    def recomputed(function: Any, x: Any) -> Any:
        return recompute(function, x, use_reentrant=reentrant)

    for ours, expected in zip(run(recomputed), run(plain), strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-6)


def test_a_region_that_runs_again_has_the_numbers_of_its_first_run() -> None:
    from paddle.distributed.fleet.utils import recompute

    act, x, width = xg.activation("ReLU"), tensor(), xg.schedule.linear(1.0, 0.5, steps=1)
    with xg.use("triangular", params={"width": width}):
        y = recompute(act, x * 1.0)
        expected = gradient(act, tensor())
    width.step()
    y.sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), expected)


@pytest.mark.parametrize("compiled", ["xg.jit", "to_static"])
def test_compiled_code_follows_the_rule_in_force(compiled: str) -> None:
    import paddle

    act = xg.activation("ReLU")

    def step(x: Any) -> Any:
        return act(x * 2.0) ** 2

    fast = xg.jit(step, "paddle") if compiled == "xg.jit" else paddle.jit.to_static(step)
    x = tensor()
    for rule in ("triangular", "guided", "triangular"):
        with xg.use(rule):
            np.testing.assert_array_equal(gradient(fast, x), gradient(step, x))
    np.testing.assert_array_equal(gradient(fast, x), gradient(step, x))


def test_the_compiler_reads_no_file_of_ours() -> None:
    # Over the rounds of Threefry its reader takes time without end.
    from paddle.jit.sot.opcode_translator import skip_files

    import multigrad_paddle

    files = [
        path for room in (xg, multigrad_paddle) for path in Path(room.__path__[0]).rglob("*.py")
    ]
    is_read = [path for path in files if not skip_files.skip_file_name_re.match(str(path))]
    assert len(files) > 300
    assert not is_read


def test_one_whole_graph_would_be_stale_and_is_refused() -> None:
    import paddle

    act = xg.activation("ReLU")

    def step(x: Any) -> Any:
        return act(x)

    with xg.use("triangular"), pytest.raises(xg.StaleTraceError, match=r"activation\('ReLU'\) in"):
        paddle.jit.to_static(step, full_graph=True)(tensor())


def test_kernels_that_round_wrong_are_not_used_as_they_are() -> None:
    """paddle.equal(0.0, 1e-9), exp(-inf), sqrt(inf), relu(nan), -0.0 * 2.0 of paddle 3.3."""

    def odd(x: Any) -> Any:
        xp = xg.xp
        parts = [xp.equal(x, 0.0) + 0.0 * xp.exp(-xp.abs(x)), xp.exp(x), xp.sqrt(x), xp.relu(x)]
        return parts[0], parts[1], parts[2], parts[3], 1.0 / (x * 2.0)

    function = xg.function(odd, lambda g, x: None)
    values = np.array([-0.0, 1e-9, np.inf, np.nan], np.float32)
    with np.errstate(all="ignore"):
        expected = function(values)
    for ours, right in zip(function(tensor(values)), expected, strict=True):
        np.testing.assert_allclose(ours.numpy(), right, rtol=1e-6)
    assert float(xg.activation("SiLU")(tensor(-1000.0))) == 0.0


# --- its dialect ----------------------------------------------------------------------------------
def functions(paddle: Any) -> dict[str, Any]:
    """Return code as people write it, in functions and methods."""
    F = paddle.nn.functional
    return {
        "functions": lambda x: paddle.clip(paddle.abs(x), max=1.0) * F.sigmoid(2 * x),
        "named arguments": lambda x: paddle.add(x=x, y=paddle.multiply(x, paddle.tanh(x))),
        "methods": lambda x: (x.abs() + 1).log().scale(2.0, bias=1.0).clip(min=0.1),
        "reductions": lambda x: x - paddle.mean(x, axis=-1, keepdim=True) / x.std(),
        "norm": lambda x: x / paddle.maximum(paddle.norm(x), paddle.to_tensor(1.0)),
        "softmax": lambda x: F.softmax(x, axis=0) + F.log_softmax(x),
        "activations": lambda x: F.leaky_relu(x, 0.2) + F.gelu(x) + F.elu(x, 0.5) + F.silu(x),
        "shapes": lambda x: x.transpose([1, 0]).reshape([-1]).reshape(x.shape).unsqueeze(0)[0],
        "matmul": lambda x: paddle.matmul(x, x, transpose_y=True) @ x,
        "where": lambda x: paddle.where(x > 0, x, paddle.zeros_like(x)) + paddle.full_like(x, 2.0),
        "cast": lambda x: paddle.cast(x > 0.3, x.dtype) * x.astype("float32").cast(x.dtype),
        "joined": lambda x: paddle.concat([x, paddle.stack([x[0], x[1]])], axis=0)[:2],
        "sorted": lambda x: paddle.sort(x, axis=1, descending=True) + paddle.cumsum(x, axis=0),
        "no gradient": lambda x: x.detach() * x + paddle.sign(x),
    }


NAMES = (
    "functions", "named arguments", "methods", "reductions", "norm", "softmax", "activations",
    "shapes", "matmul", "where", "cast", "joined", "sorted", "no gradient",
)  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_code_in_the_dialect_of_paddle_runs_everywhere(name: str) -> None:
    import paddle

    body = functions(paddle)[name]
    assert tuple(functions(paddle)) == NAMES
    rule = xg.register("in_paddle", override=True, native=False)(
        lambda ctx, grad_out, tin: grad_out * body(tin)
    )
    x = X.astype(np.float32)
    expected = body(tensor(x)).numpy()
    ours = rule(None, np.ones_like(x), x)
    np.testing.assert_allclose(ours, expected, rtol=2e-6, atol=2e-6)


def test_a_branch_on_a_tensor_names_the_line() -> None:
    @xg.register("branching_in_paddle", override=True, native=False)
    def branching(ctx: Any, grad_out: Any, tin: Any) -> Any:
        import paddle

        return grad_out if paddle.mean(tin) > 0 else -grad_out

    with pytest.raises(xg.TraceError, match=r"test_paddle\.py"):
        branching(None, X, X)


def test_the_example_trains_what_has_no_gradient_of_its_own(tmp_path: Path) -> None:
    output = run_example("added/train_in_paddle.py", tmp_path)
    without, with_rule = (read_numbers(line)[0] for line in output.splitlines()[-2:])
    assert with_rule > 0.8 > without + 0.1


def test_the_page_is_what_the_tables_say_now() -> None:
    from pages.backend_docs import render_backend

    written = (Path(__file__).parents[2] / "docs" / "paddle.md").read_text(encoding="utf-8")
    assert written == render_backend("paddle", written), (
        "type: python tools/write_pages.py --backend paddle"
    )


# --- beside others --------------------------------------------------------------------------------
@pytest.mark.needs("torch")
def test_a_torch_class_runs_on_tensors_of_paddle() -> None:
    import torch

    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        def backward(ctx: Any, grad_out: Any) -> Any:
            (x,) = ctx.saved_tensors
            return grad_out * torch.clamp(3 * x**2, max=5.0)

    cube = xg.from_autograd_function(Cube)
    np.testing.assert_allclose(gradient(cube, tensor()), np.minimum(3 * X**2, 5.0), rtol=1e-6)
