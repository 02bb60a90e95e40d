"""Where random rules draw from: `key=`, counted at forward, or each framework's own seed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import pytest

import multigrad as xg

Tensor: TypeAlias = Any
Array: TypeAlias = np.ndarray[Any, Any]

ONES = np.ones(4, np.float32)
differentiating = pytest.mark.backends("torch", "jax", "tensorflow")

# jax.random.uniform(jax.random.fold_in(jax.random.key(7), n), (4,)) of jax 0.10.2, row n.
UNIFORMS = np.array(
    [
        [0.8673704862594604, 0.5563143491744995, 0.3006770610809326, 0.33249056339263916],
        [0.6751335859298706, 0.8261764049530029, 0.39398670196533203, 0.4243201017379761],
        [0.20599794387817383, 0.25844132900238037, 0.03597891330718994, 0.9792512655258179],
    ],
    np.float32,
)
# The same of fold_in(fold_in(key(7), 0), j), row j - 1.
LATER_DRAWS = np.array(
    [
        [0.987564206123352, 0.01973593235015869, 0.04512596130371094, 0.9365448951721191],
        [0.012183904647827148, 0.7894699573516846, 0.42669677734375, 0.6820476055145264],
    ],
    np.float32,
)
# Row 0 in other dtypes, and for the key whose two words are 3 and 5.
UNIFORM_FLOAT64 = [0.6374325446060041, 0.12420905580952524, 0.4815820165019382, 0.7306651165545857]
UNIFORM_FLOAT16 = [0.99609375, 0.6240234375, 0.171875, 0.1015625]
UNIFORM_WORDS = [0.02928483486175537, 0.47962117195129395, 0.7878018617630005, 0.566399335861206]
# jax.random.normal of row 0.
NORMAL = [1.1140471696853638, 0.14163129031658173, -0.5224542021751404, -0.43304625153541565]


def gradient(backend: Any, f: Callable[[Tensor], Tensor], x: Array = ONES) -> Array:
    return backend.vjp(f, x, np.ones_like(x))[1]


@pytest.fixture
def three_draws() -> str:
    """Register a rule that draws three times and multiplies by the draw asked for."""

    @xg.register("test three draws")
    def rule(ctx: Any, grad_out: Tensor, tin: Tensor, which: int = 0) -> Tensor:
        draws = [xg.xp.rand_like(grad_out) for _ in range(3)]
        return grad_out * draws[which]

    return "test three draws"


def test_known_answers_of_a_rule_called_by_itself(backend: Any) -> None:
    rule = xg.get("full_jam")
    g = backend.array(ONES)
    np.testing.assert_array_equal(backend.numpy(rule(None, g, g, key=7)), UNIFORMS[0])
    np.testing.assert_array_equal(backend.numpy(rule(None, g, None, key=(0, 7))), UNIFORMS[0])
    np.testing.assert_array_equal(
        backend.numpy(rule(None, g, g, key=(3, 5))), np.array(UNIFORM_WORDS, np.float32)
    )
    normal = backend.numpy(xg.get("noise")(None, g, g, sigma=1.0, key=7)) - 1.0
    np.testing.assert_allclose(normal, NORMAL, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("dtype", ["float64", "float16"])
def test_known_answers_in_other_dtypes(backend: Any, dtype: str) -> None:
    expected = UNIFORM_FLOAT64 if dtype == "float64" else UNIFORM_FLOAT16
    with backend.precision(dtype):
        g = backend.array(np.ones(4, dtype))
        got = backend.numpy(xg.get("full_jam")(None, g, g, key=7))
    assert got.dtype == dtype
    np.testing.assert_array_equal(got, np.array(expected, dtype))


@differentiating
def test_nth_application_draws_from_the_nth_key_counted_at_forward(backend: Any) -> None:
    act = xg.activation("Linear")

    def in_turn(x: Tensor) -> Tensor:
        with xg.use("full_jam", key=7):
            first, second, third = act(x), act(x), act(x)
        return third * 100.0 + second * 10.0 + first  # backward goes another way round

    expected = UNIFORMS[2] * 100 + UNIFORMS[1] * 10 + UNIFORMS[0]
    np.testing.assert_allclose(gradient(backend, in_turn), expected, rtol=1e-6)


@differentiating
def test_count_begins_anew_at_each_entry_and_at_each_call_of_a_decorated_function(
    backend: Any,
) -> None:
    act = xg.activation("Linear")
    again = xg.use("full_jam", key=7)
    decorated = again(act)
    for _ in range(2):
        with again:
            np.testing.assert_array_equal(gradient(backend, act), UNIFORMS[0])
            np.testing.assert_array_equal(gradient(backend, act), UNIFORMS[1])
            np.testing.assert_array_equal(gradient(backend, decorated), UNIFORMS[0])
            with again:
                np.testing.assert_array_equal(gradient(backend, act), UNIFORMS[0])
            np.testing.assert_array_equal(gradient(backend, act), UNIFORMS[2])
        np.testing.assert_array_equal(gradient(backend, decorated), UNIFORMS[0])


@differentiating
def test_applications_of_rules_that_do_not_draw_are_not_counted(backend: Any) -> None:
    act, plain = xg.activation("Linear"), xg.activation("Linear", rule="scale")
    with xg.use("full_jam", key=7):
        np.testing.assert_array_equal(gradient(backend, plain), ONES)
        np.testing.assert_array_equal(gradient(backend, act), UNIFORMS[0])


@differentiating
@pytest.mark.parametrize("which", [0, 1, 2])
def test_jth_draw_of_an_application_folds_j_in(backend: Any, three_draws: str, which: int) -> None:
    expected = [UNIFORMS[0], *LATER_DRAWS][which]
    with xg.use(three_draws, {"which": which}, key=7):
        got = gradient(backend, xg.activation("Linear"))
    np.testing.assert_array_equal(got, expected)


@differentiating
def test_composed_rule_is_one_application_whose_draws_go_on_counting(backend: Any) -> None:
    act = xg.activation("Linear")
    with xg.use(xg.compose("full_jam", "full_jam", "full_jam"), key=7):
        first, second = gradient(backend, act), gradient(backend, act)
    expected = UNIFORMS[0] * LATER_DRAWS[0] * LATER_DRAWS[1]
    np.testing.assert_allclose(first, expected, rtol=1e-6)
    with xg.use("full_jam", key=7):
        gradient(backend, act)
        np.testing.assert_array_equal(gradient(backend, act), UNIFORMS[1])
    assert not np.array_equal(first, second)


@differentiating
def test_key_of_use_seeds_the_own_random_rule_of_a_layer(backend: Any) -> None:
    own, framed = xg.activation("Linear", rule="full_jam"), xg.activation("Linear")
    with xg.use("full_jam", key=7):
        np.testing.assert_array_equal(gradient(backend, own), UNIFORMS[0])
        np.testing.assert_array_equal(gradient(backend, framed), UNIFORMS[1])
    with xg.use("scale", key=7):
        np.testing.assert_array_equal(gradient(backend, own), UNIFORMS[0])


def test_gradients_of_a_tree_are_one_application_each(backend: Any) -> None:
    g = backend.array(ONES)
    got = xg.apply_to_gradients({"a": g, "b": [g, None, g]}, "full_jam", key=7)
    leaves = [got["a"], got["b"][0], got["b"][2]]
    np.testing.assert_array_equal([backend.numpy(leaf) for leaf in leaves], UNIFORMS)
    assert got["b"][1] is None
    with xg.use("full_jam", key=7, scope="params"):
        for row in UNIFORMS:
            np.testing.assert_array_equal(backend.numpy(xg.apply_to_gradients([g])[0]), row)


@differentiating
@pytest.mark.parametrize("key", [7, None])
def test_repeated_pullback_repeats_its_draws_and_forward_does_not(
    backend: Any, key: int | None
) -> None:
    if key is None and backend.name == "jax":
        pytest.skip("jax demands a key")
    act, x = xg.activation("Linear"), backend.array(ONES)
    with xg.use("full_jam", key=key):
        pulls = [xg.vjp(act, x)[1] for _ in range(2)]
    draws = [[backend.numpy(pull(x)[0]) for _ in range(2)] for pull in pulls]
    for first, again in draws:
        np.testing.assert_array_equal(first, again)
    if key is None:
        assert not np.array_equal(draws[0], draws[1])
    else:
        np.testing.assert_array_equal([first for first, _ in draws], UNIFORMS[:2])


@pytest.mark.needs("jax")
def test_jax_keys_of_every_form_are_the_same_key() -> None:
    import jax

    act = xg.activation("Linear")
    words = jax.random.key_data(jax.random.key(7))
    for key in (jax.random.key(7), jax.random.PRNGKey(7), words, np.asarray(words), (0, 7)):
        with xg.use("full_jam", key=key):
            np.testing.assert_array_equal(jax.grad(lambda x: act(x).sum())(ONES), UNIFORMS[0])


def foreign_key(framework: str) -> Any:
    """Return the key 7 as an object of a framework."""
    if framework == "numpy":
        return np.array([0, 7], np.uint32)
    if framework == "torch":
        import torch

        return torch.tensor([0, 7])
    if framework == "jax":
        import jax

        return jax.random.key(7)
    import tensorflow as tf

    return tf.constant([0, 7], tf.uint32)


@pytest.mark.backends("numpy", "torch", "jax", "tensorflow")
@pytest.mark.parametrize(
    "framework",
    [
        "numpy",
        *(pytest.param(n, marks=pytest.mark.needs(n)) for n in ("torch", "jax", "tensorflow")),
    ],
)
def test_a_key_of_any_framework_is_the_same_key_in_every_other(
    backend: Any, framework: str
) -> None:
    key, g = foreign_key(framework), backend.array(ONES)
    with xg.use("full_jam", key=key, scope="params"):
        first, second = (backend.numpy(xg.apply_to_gradients([g])[0]) for _ in range(2))
    np.testing.assert_array_equal(first, UNIFORMS[0])
    np.testing.assert_array_equal(second, UNIFORMS[1])

    @xg.custom_gradient
    def jam(x: Tensor) -> Any:
        return x * xg.xp.rand_like(x), lambda upstream: upstream

    np.testing.assert_array_equal(backend.numpy(jam.keyed(key)(g)), UNIFORMS[0])
    np.testing.assert_array_equal(backend.numpy(xg.get("full_jam")(None, g, g, key=key)), first)


@pytest.mark.parametrize(
    "key", [True, -1, 1.5, "7", (1, 2, 3), (0, 1.0), (0, -1), (0, 2**32), object()]
)
def test_what_is_no_key_is_refused_at_use(key: Any) -> None:
    with pytest.raises(xg.RuleError, match=r"key|uint32|word") as caught, xg.use("noise", key=key):
        pass
    assert isinstance(caught.value, ValueError)


def seed(name: str, number: int = 3) -> None:
    """Seed a framework's own generator as its users do."""
    if name == "numpy":
        np.random.seed(number)
    elif name == "torch":
        import torch

        torch.manual_seed(number)
    else:
        import tensorflow as tf

        tf.random.set_seed(number)


@pytest.mark.backends("numpy", "torch", "tensorflow")
def test_without_a_key_the_frameworks_own_seed_reproduces_the_draws(backend: Any) -> None:
    g = backend.array(ONES)

    def draw() -> Array:
        return backend.numpy(xg.get("full_jam")(None, g, g))

    seed(backend.name)
    first, second = draw(), draw()
    seed(backend.name)
    np.testing.assert_array_equal([draw(), draw()], [first, second])
    assert not np.array_equal(first, second)
    seed(backend.name, 4)
    assert not np.array_equal(draw(), first)
    if backend.name != "numpy":
        act = xg.activation("Linear")
        grads = []
        for _ in range(2):
            seed(backend.name)
            with xg.use("full_jam"):
                grads.append([gradient(backend, act), gradient(backend, act)])
        np.testing.assert_array_equal(grads[0], grads[1])
        assert not np.array_equal(grads[0][0], grads[0][1])


@pytest.mark.needs("jax")
@pytest.mark.parametrize("compile_it", [False, True])
def test_jax_demands_a_key_and_says_how_to_give_one(compile_it: bool) -> None:
    import jax

    grad = jax.grad(lambda x: xg.activation("Linear")(x).sum())
    with xg.use("full_jam"), pytest.raises(xg.RuleError, match=r"key=jax\.random\.key"):
        (jax.jit(grad) if compile_it else grad)(ONES)


def test_keyed_use_does_not_change_a_rule_that_does_not_draw(backend: Any) -> None:
    g = backend.array(ONES)
    scaled = xg.get("scale")(None, g, g, s=2.0, key=3)
    np.testing.assert_array_equal(backend.numpy(scaled), 2 * ONES)
