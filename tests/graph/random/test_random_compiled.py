"""The random draws in compiled and mapped code of every framework; see `test_random_kernels.py`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from multigrad.engine import random as core
from multigrad.errors import RuleError

from .test_random_kernels import FLOAT32, KEY, assert_bit_equal, count_ulps, each_dtype

# --- jax: jit, vmap, configuration ---


def make_drawer(kernels: Any) -> Any:
    """Make a function of a key and a tensor that uses every kernel."""

    def draw_all(key: Any, x: Any) -> tuple[Any, Any, Any]:
        return kernels.uniform_like(key, x), kernels.normal_like(key, x), kernels.fold_in(key, 3)

    return draw_all


@pytest.mark.backends("jax")
def test_jax_draws_the_same_under_jit_and_from_every_form_of_key(kernels: Any) -> None:
    import jax

    def draw_both(key: Any, x: Any) -> Any:
        words = kernels.fold_in(kernels.key_pair(key), 2)
        return kernels.uniform_like(words, x), kernels.normal_like(words, x)

    x = jax.numpy.zeros((3, 5))
    key = jax.random.fold_in(jax.random.key(7), 2)
    expected = jax.random.uniform(key, x.shape), jax.random.normal(key, x.shape)
    for seed in (jax.random.key(7), jax.random.PRNGKey(7)):
        for function in (draw_both, jax.jit(draw_both)):
            for drawn, like in zip(function(seed, x), expected, strict=True):
                assert_bit_equal(np.asarray(drawn), np.asarray(like))


@pytest.mark.backends("jax")
def test_jax_configuration_does_not_change_the_draw(kernels: Any) -> None:
    import jax

    with jax.threefry_partitionable(False), jax.default_prng_impl("rbg"):
        for function in (kernels.uniform_like, jax.jit(kernels.uniform_like)):
            drawn = function(np.array(KEY, np.uint32), jax.numpy.zeros(5))
            assert_bit_equal(np.asarray(drawn), core.uniform(KEY, (5,), FLOAT32))


@pytest.mark.backends("jax")
def test_a_jax_key_of_another_generator_is_refused_by_name(kernels: Any) -> None:
    import jax

    with pytest.raises(ValueError, match=r"rbg key.*impl='threefry2x32'"):
        kernels.key_pair(jax.random.key(0, impl="rbg"))


@pytest.mark.backends("jax")
def test_jax_maps_over_tensors_and_over_keys(kernels: Any) -> None:
    import jax

    keys, rows = make_keys()
    x = jax.numpy.zeros(rows.shape)
    same = jax.vmap(lambda row: kernels.uniform_like(keys[0], row))(x)
    assert_bit_equal(np.asarray(same), np.tile(rows[0], (3, 1)))
    each = jax.vmap(kernels.uniform_like)(np.array(keys, np.uint32), x)
    assert_bit_equal(np.asarray(each), rows)


def make_keys() -> tuple[list[tuple[int, int]], np.ndarray]:
    """Make three keys, and the row of five uniforms that each draws."""
    keys = [core.fold_in(KEY, n) for n in range(3)]
    return keys, np.stack([core.uniform(key, (5,), FLOAT32) for key in keys])


# --- torch: threads, the compiler, torch.func, tracing ---


@pytest.mark.backends("torch")
@each_dtype
def test_torch_draws_the_same_on_few_threads_and_on_many(
    backend: Any, kernels: Any, dtype: Any
) -> None:
    import torch

    x = backend.array(np.zeros(600_001, dtype))  # three blocks of torch's own
    threads = torch.get_num_threads()
    drawn = []
    try:
        for count in (1, 4):
            torch.set_num_threads(count)
            drawn += [(kernels.uniform_like(KEY, x), kernels.normal_like(KEY, x))]
    finally:
        torch.set_num_threads(threads)
    (uniform, normal), (uniform_of_many, normal_of_many) = drawn
    assert torch.equal(uniform, uniform_of_many) and torch.equal(normal, normal_of_many)


@pytest.mark.backends("torch")
@pytest.mark.usefixtures("torch_compiles")
def test_torch_compiles_draws_whole_and_draws_the_same(kernels: Any) -> None:
    import torch

    draw_all = make_drawer(kernels)
    compiled = torch.compile(draw_all, fullgraph=True)
    for key in (torch.tensor([0, 7]), torch.tensor([1, 8])):
        for shape in ((4,), (3, 5)):
            x = torch.zeros(shape)
            for value, expected in zip(compiled(key, x), draw_all(key, x), strict=True):
                assert torch.equal(value, expected)


@pytest.mark.backends("torch")
@pytest.mark.usefixtures("torch_compiles")
def test_torch_compiles_a_key_of_ints(kernels: Any) -> None:
    import torch

    compiled = torch.compile(kernels.uniform_like, fullgraph=True)
    assert_bit_equal(compiled(KEY, torch.zeros(5)).numpy(), core.uniform(KEY, (5,), FLOAT32))


@pytest.mark.backends("torch")
@pytest.mark.usefixtures("torch_compiles")
def test_torch_compiled_code_draws_a_key_per_call_and_repeats_with_the_seed(kernels: Any) -> None:
    import torch

    def draw_twice(x: Any) -> Any:
        return torch.stack([kernels.uniform_like(kernels.draw_key(), x) for _ in range(2)])

    def draw_seeded(function: Any) -> Any:
        torch.manual_seed(3)
        return torch.cat([function(torch.zeros(4)) for _ in range(2)])

    compiled = torch.compile(draw_twice, fullgraph=True)
    drawn = draw_seeded(compiled)
    assert len(drawn.unique(dim=0)) == 4
    assert torch.equal(draw_seeded(compiled), drawn)
    assert torch.equal(draw_seeded(draw_twice), drawn)


@pytest.mark.backends("torch")
@pytest.mark.usefixtures("torch_compiles")
def test_torch_compiled_backward_sees_the_key_that_forward_drew(kernels: Any) -> None:
    import torch

    class Scale(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            key = kernels.draw_key()
            ctx.save_for_backward(key)
            return x * kernels.uniform_like(key, x)

        @staticmethod
        def backward(ctx: Any, *grad_outs: Any) -> Any:
            (key,) = ctx.saved_tensors
            return grad_outs[0] * kernels.uniform_like(key, grad_outs[0])

    x = torch.ones(6, requires_grad=True)
    y = torch.compile(Scale.apply, fullgraph=True)(x)
    y.sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, y.detach())


@pytest.mark.backends("torch")
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_torch_maps_over_tensors_and_over_keys(
    kernels: Any, compiled: bool, request: pytest.FixtureRequest
) -> None:
    import torch

    if compiled:
        request.getfixturevalue("torch_compiles")

    def draw_with(key: Any) -> Any:
        return torch.func.vmap(lambda row: kernels.uniform_like(key, row))

    def compile_if_asked(function: Any) -> Any:
        if not compiled:
            return function
        return torch.compile(function, fullgraph=True, backend="aot_eager")

    keys, rows = make_keys()
    x = torch.zeros(rows.shape)
    for key in (keys[0], torch.tensor(keys[0])):
        same = compile_if_asked(draw_with(key))(x)
        assert_bit_equal(same.numpy(), np.tile(rows[0], (3, 1)))
    each = compile_if_asked(torch.func.vmap(make_drawer(kernels)))(torch.tensor(keys), x)
    assert_bit_equal(each[0].numpy(), rows)
    normals = torch.stack([kernels.normal_like(key, x[0]) for key in keys])
    torch.testing.assert_close(each[1], normals)
    assert [tuple(key) for key in each[2].tolist()] == [core.fold_in(key, 3) for key in keys]


@pytest.mark.backends("torch")
def test_torch_vmap_follows_its_randomness_when_a_key_is_drawn(kernels: Any) -> None:
    import torch

    def draw_rows(randomness: str) -> Any:
        function = torch.func.vmap(
            lambda row: kernels.uniform_like(kernels.draw_key(), row), randomness=randomness
        )
        return function(torch.zeros(3, 5))

    assert len(draw_rows("same").unique(dim=0)) == 1
    assert len(draw_rows("different").unique(dim=0)) == 3
    with pytest.raises(RuleError, match=r"inside torch\.func\.vmap: pass key="):
        draw_rows("error")


@pytest.mark.backends("torch")
def test_torch_draws_carry_no_gradient_and_take_part_in_transforms(kernels: Any) -> None:
    import torch

    x = torch.ones(5, dtype=torch.float64, requires_grad=True)
    drawn = kernels.normal_like(KEY, x)
    assert not drawn.requires_grad

    def square(x: Any) -> Any:
        return (x * x * kernels.normal_like(torch.tensor(KEY), x)).sum()

    hessian = torch.func.hessian(square)(x.detach())
    torch.testing.assert_close(hessian, torch.diag(2 * drawn))


@pytest.mark.backends("torch")
def test_torch_traces_keep_the_key_an_input(kernels: Any) -> None:
    import torch
    from torch.fx.experimental.proxy_tensor import make_fx

    x = torch.zeros(5)
    traced = make_fx(kernels.uniform_like)(torch.tensor([0, 8]), x)
    assert_bit_equal(traced(torch.tensor(KEY), x).numpy(), core.uniform(KEY, (5,), FLOAT32))


@pytest.mark.backends("torch")
@pytest.mark.parametrize("name", ["uniform", "normal"])
def test_torch_operators_pass_the_checks_of_torch(kernels: Any, name: str) -> None:
    import torch
    import torch._dynamo  # they are registered with it

    description = ([3, 2], torch.float32, torch.device("cpu"))
    operator = getattr(torch.ops.multigrad, name).default
    torch.library.opcheck(operator, (torch.tensor(KEY), *description))


# --- tensorflow: graphs, XLA, unknown shapes ---


@pytest.mark.backends("tensorflow")
@each_dtype
@pytest.mark.parametrize("jit_compile", [False, True], ids=["graph", "xla"])
def test_tensorflow_functions_draw_what_eager_code_draws(
    kernels: Any, dtype: Any, jit_compile: bool
) -> None:
    import tensorflow as tf

    function = tf.function(make_drawer(kernels), jit_compile=jit_compile)
    uniform, normal, key = function(tf.constant(KEY, tf.uint32), tf.zeros([300, 5], dtype))
    assert_bit_equal(uniform.numpy(), core.uniform(KEY, (300, 5), dtype))
    distances = count_ulps(normal.numpy(), core.normal(KEY, (300, 5), dtype))
    assert distances.max() <= (3 if dtype.itemsize >= 4 else 1)
    assert tuple(key.numpy().tolist()) == core.fold_in(KEY, 3)


@pytest.mark.backends("tensorflow")
def test_tensorflow_draws_where_the_shape_is_not_known(kernels: Any) -> None:
    import tensorflow as tf

    for spec in (tf.TensorSpec([None, 5]), tf.TensorSpec(None)):
        function = tf.function(lambda x: kernels.uniform_like(KEY, x), input_signature=[spec])
        assert function.get_concrete_function().output_shapes.rank == spec.shape.rank
        for size in (2, 3):
            drawn = function(tf.zeros([size, 5])).numpy()
            assert_bit_equal(drawn, core.uniform(KEY, (size, 5), FLOAT32))


def draw_keys_in_graph(kernels: Any, **options: Any) -> np.ndarray:
    """Call a new `tf.function` twice that draws two keys, and give the row of each."""
    import tensorflow as tf

    @tf.function(**options)
    def draw_twice(x: Any) -> Any:
        return tf.stack([kernels.uniform_like(kernels.draw_key(), x) for _ in range(2)])

    return np.concatenate([draw_twice(tf.zeros([4])).numpy() for _ in range(2)])


@pytest.mark.backends("tensorflow")
@pytest.mark.parametrize("jit_compile", [False, True], ids=["graph", "xla"])
def test_tensorflow_functions_draw_a_key_per_call(kernels: Any, jit_compile: bool) -> None:
    rows = draw_keys_in_graph(kernels, jit_compile=jit_compile)
    assert len(np.unique(rows, axis=0)) == 4


@pytest.mark.backends("tensorflow")
def test_tensorflow_functions_repeat_their_keys_with_the_seed(kernels: Any) -> None:
    import tensorflow as tf

    tf.random.set_seed(3)
    rows = draw_keys_in_graph(kernels)
    tf.random.set_seed(3)
    np.testing.assert_array_equal(draw_keys_in_graph(kernels), rows)


@pytest.mark.backends("tensorflow")
def test_tensorflow_maps_over_tensors_and_over_keys(kernels: Any) -> None:
    import tensorflow as tf

    keys, rows = make_keys()
    x = tf.zeros(rows.shape)
    same = tf.vectorized_map(lambda row: kernels.uniform_like(keys[0], row), x)
    assert_bit_equal(same.numpy(), np.tile(rows[0], (3, 1)))
    each = tf.vectorized_map(
        lambda key: kernels.uniform_like(key, x[0]), tf.constant(keys, tf.uint32)
    )
    assert_bit_equal(each.numpy(), rows)
