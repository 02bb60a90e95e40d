"""Rules on the gradients of several losses at once, by `xg.apply_to_gradients(..., tasks=True)`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import multigrad as xg
from multigrad import xp

Tensor = Any
RNG = np.random.default_rng(0)
SHAPES = {"w": (3, 4), "b": (4,), "s": ()}


def made(number: int) -> list[dict[str, Any]]:
    """Gradients that conflict in part."""
    return [
        {name: RNG.normal(size=shape).astype(np.float32) for name, shape in SHAPES.items()}
        for _ in range(number)
    ]


TASKS = made(4)
TASKS[1] = {name: leaf - TASKS[0][name] for name, leaf in TASKS[1].items()}


def flat(tree: dict[str, Any]) -> Any:
    return np.concatenate([np.ravel(tree[name]).astype(np.float64) for name in SHAPES])


def paper_pcgrad(gradients: list[Any], orders: list[list[int]]) -> Any:
    """Alg. 1, on the gradients themselves."""
    total = np.zeros_like(gradients[0])
    for i, order in enumerate(orders):
        own = gradients[i].copy()
        for j in order:
            if j != i and own @ gradients[j] < 0:
                own -= own @ gradients[j] / (gradients[j] @ gradients[j]) * gradients[j]
        total += own
    return total


def paper_gradnorm(gradients: list[Any], rates: Any, alpha: float) -> Any:
    """Where the loss of eq. 2 is zero: |w_i g_i| = mean * r_i^alpha, weights that add up to T."""
    norms = np.array([np.linalg.norm(g) for g in gradients])
    aimed = np.asarray(rates, np.float64) ** alpha
    mean = len(norms) / (aimed / norms).sum()
    weights = mean * aimed / norms
    assert np.abs(weights * norms - mean * aimed).sum() < 1e-12  # eq. 2
    return sum(w * g for w, g in zip(weights, gradients, strict=True))


def combined(backend: Any, tasks: Any, rule: Any, params: Any = None, key: Any = None) -> Any:
    trees = [{name: backend.array(leaf) for name, leaf in task.items()} for task in tasks]
    found = xg.apply_to_gradients(trees, rule, params, key=key, tasks=True)
    return {name: backend.numpy(leaf) for name, leaf in found.items()}


def assert_close(found: dict[str, Any], expected: Any) -> None:
    largest = max(np.abs(flat(task)).max() for task in TASKS)
    assert {name: leaf.shape for name, leaf in found.items()} == SHAPES
    assert all(leaf.dtype == np.float32 for leaf in found.values())
    # Each product rounds by its 17 terms, each weight by the products of four tasks.
    np.testing.assert_allclose(flat(found), expected, atol=17 * 4 * 1.2e-7 * largest, rtol=0)


@pytest.mark.parametrize("number", [1, 2, 4])
def test_conflicts_are_taken_away_as_in_the_paper(backend: Any, number: int) -> None:
    tasks = TASKS[:number]
    expected = paper_pcgrad([flat(task) for task in tasks], [[*range(number)]] * number)
    assert_close(combined(backend, tasks, "pcgrad"), expected)
    if number > 1:
        assert np.abs(expected - sum(flat(task) for task in tasks)).max() > 0.01


def test_a_random_order_is_that_of_the_key_on_every_framework(backend: Any) -> None:
    seen = set()
    for key in range(4):
        found = combined(backend, TASKS, "pcgrad", {"order": "random"}, key=key)
        draws = xp.rand_like(np.zeros((4, 4), np.float32), key=drawn_key(key))
        orders = np.argsort(draws, axis=1).tolist()
        seen.add(str(orders))
        assert_close(found, paper_pcgrad([flat(task) for task in TASKS], orders))
    assert len(seen) == 4


def drawn_key(key: int) -> Any:
    """The key of the first draw of the first application."""
    from multigrad.engine.random import fold_in, key_from_int

    return fold_in(key_from_int(key), 0)


@pytest.mark.parametrize("rates", [None, (1.2, 0.5, 0.9, 1.4)])
def test_norms_are_balanced_as_in_the_paper(backend: Any, rates: Any) -> None:
    params = {"rates": rates, "alpha": 0.5} if rates else {"alpha": 0.5}
    expected = paper_gradnorm([flat(task) for task in TASKS], rates or np.ones(4), 0.5)
    assert_close(combined(backend, TASKS, "gradnorm", params), expected)


def test_rates_may_be_a_tensor_of_the_framework(backend: Any) -> None:
    rates = np.array([1.2, 0.5, 0.9, 1.4], np.float32)
    expected = paper_gradnorm([flat(task) for task in TASKS], rates, 1.5)
    assert_close(combined(backend, TASKS, "gradnorm", {"rates": backend.array(rates)}), expected)


def test_a_rule_of_ones_own_gives_a_weight_to_each_task(backend: Any) -> None:
    def nearest_to_zero(products: Tensor) -> Tensor:
        """MGDA's, of two tasks: Sener and Koltun, 2018, alg. 2."""
        first, second, both = products[0, 0], products[1, 1], products[0, 1]
        share = xp.clip((second - both) / (first + second - 2.0 * both), 0.0, 1.0)
        return xp.stack([share, 1.0 - share])

    found = combined(backend, TASKS[:2], nearest_to_zero)
    a, b = (flat(task) for task in TASKS[:2])
    shares = np.linspace(0, 1, 100_001)[:, None]
    points = shares * a + (1 - shares) * b
    nearest = points[np.linalg.norm(points, axis=1).argmin()]
    np.testing.assert_allclose(flat(found), nearest, atol=5e-5)


def test_what_a_task_does_not_reach_and_what_is_zero_counts_as_nothing(backend: Any) -> None:
    first, second = (backend.array(np.array(g, np.float32)) for g in ([3.0, 4.0], [0.0, 0.0]))
    for rule in ("pcgrad", "gradnorm"):
        trees = [[first, None, None], [second, None, first]]
        found = xg.apply_to_gradients(trees, rule, tasks=True)
        assert found[1] is None
        assert np.isfinite(backend.numpy(found[0])).all()
    only = xg.apply_to_gradients([[first], [second]], "gradnorm", tasks=True)
    np.testing.assert_allclose(backend.numpy(only[0]), [6.0, 8.0], rtol=1e-6)
    assert xg.apply_to_gradients([[None], [None]], "pcgrad", tasks=True) == [None]


def test_nan_stays_in_its_elements_unless_a_weight_is_computed_of_it(backend: Any) -> None:
    tasks = [{"w": np.array([1.0, np.nan], np.float32)}, {"w": np.array([-1.0, 1.0], np.float32)}]
    found = combined(backend, tasks, "pcgrad")["w"]
    assert found[0] == 0.0 and np.isnan(found[1])
    assert np.isnan(combined(backend, tasks, "gradnorm")["w"]).all()


def test_one_float64_among_the_gradients_makes_the_products_float64(backend: Any) -> None:
    if backend.name == "jax":
        pytest.skip("JAX has float64 where it is switched on")
    first = [backend.array(np.array([1.0, 1e-9])), backend.array(np.array(2.0))]
    second = [backend.array(np.array([-1.0, 0.0])), backend.array(np.array(0.5))]
    found = [backend.numpy(x) for x in xg.apply_to_gradients([first, second], "pcgrad", tasks=True)]
    np.testing.assert_allclose(found[0], [0.0, 1e-9], atol=1e-15)
    numbers = [[np.float64(2.0)], [np.float64(0.5)]]  # NumPy's own, no arrays
    assert xg.apply_to_gradients(numbers, "pcgrad", tasks=True) == [2.5]
    assert found[1] == 2.5 and found[1].dtype == np.float64 and found[1].shape == ()


def test_few_bits_are_multiplied_in_float32(backend: Any) -> None:
    big = [backend.array(np.full(4, x, np.float16)) for x in (300.0, -299.0)]
    found = xg.apply_to_gradients(big, "pcgrad", tasks=True)
    values = backend.numpy(found)
    assert values.dtype == np.float16
    np.testing.assert_allclose(values, 0.0, atol=0.1)  # each is all conflict


def test_it_runs_within_the_frameworks_compiler(backend: Any) -> None:
    if backend.name == "numpy":
        pytest.skip("NumPy has no compiler")

    def run(first: Tensor, second: Tensor) -> Any:
        balanced = xg.apply_to_gradients([[first], [second]], "gradnorm", tasks=True)
        return xg.apply_to_gradients([balanced, [second]], "pcgrad", tasks=True)[0]

    given = [backend.array(task["w"]) for task in TASKS[:2]]
    options = {"backend": "aot_eager"} if backend.name == "torch" else {}
    found = xg.jit(run, backend.name, **options)(*given)
    np.testing.assert_allclose(backend.numpy(found), backend.numpy(run(*given)), rtol=1e-5)


def test_what_does_not_fit_is_refused_by_name(backend: Any) -> None:
    x, y = (backend.array(np.ones(n, np.float32)) for n in (2, 3))

    def refused(message: str, grads: Any, rule: Any, params: Any = None, **given: Any) -> None:
        with pytest.raises(xg.RuleError, match=message):
            xg.apply_to_gradients(grads, rule, params, **{"tasks": True, **given})

    refused("'pcgrad' sees the gradients of several losses at once", [x], "pcgrad", tasks=False)
    refused("no rule on several tasks is named 'pcgrd'; did you mean 'pcgrad'", [x], "pcgrd")
    refused("A rule on one gradient goes without tasks=True", [x], "clip_norm")
    refused("tasks=True needs a rule on several tasks, got None", [x], None)
    refused("a list of trees, one for each loss, .*; got dict", {"w": x}, "pcgrad")
    refused("task 1 are nested otherwise than those of task 0", [{"w": x}, {"v": x}], "pcgrad")
    refused(r"at \['w'\] have shapes \(2,\), \(3,\)", [{"w": x}, {"w": y}], "pcgrad")
    refused("has no param 'alhpa'; did you mean 'alpha'", [x, x], "gradnorm", {"alhpa": 1.0})
    refused("takes whole gradients, and was given over=", [x, x], "pcgrad", over="global")
    refused("gave weights of shape .* for 2 tasks", [x, x], lambda products: products)
    with pytest.raises(ValueError, match="there are 3 rates for 2 tasks"):
        xg.apply_to_gradients([x, x], "gradnorm", {"rates": (1.0, 2.0, 3.0)}, tasks=True)
    with pytest.raises(ValueError, match="order is 'fixed' or 'random', got 'any'"):
        xg.apply_to_gradients([x, x], "pcgrad", {"order": "any"}, tasks=True)
