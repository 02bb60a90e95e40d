"""Rules of optax's names beside its transformations on one leaf, and those of torch.nn.utils."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import multigrad as xg

pytestmark = [pytest.mark.peers, pytest.mark.needs("jax", "optax", "torch")]
jax = pytest.importorskip("jax")
optax = pytest.importorskip("optax")
torch = pytest.importorskip("torch")

SHAPES = [(7,), (), (1, 5), (4, 6), (2, 3, 4), (3, 3, 2, 4)]
TRANSFORMATIONS: dict[str, list[dict[str, float]]] = {
    "scale": [{"step_size": -0.5}],
    "set_to_zero": [{}],
    "clip": [{"max_delta": 0.5}, {"max_delta": 0.0}],
    "clip_by_block_rms": [{"threshold": 0.3}, {"threshold": 5.0}],
    "adaptive_grad_clip": [{"clipping": 0.1}, {"clipping": 2.0, "eps": 0.5}],
    "normalize_by_update_norm": [{}, {"scale_factor": 3.0, "eps": 0.1}],
    "scale_by_sign": [{}],
    "centralize": [{}],
}
CASES = [(name, params) for name, several in TRANSFORMATIONS.items() for params in several]


def values(shape: tuple[int, ...]) -> tuple[Any, Any]:
    """A gradient with a zero in it, and a parameter."""
    generator = np.random.default_rng(len(shape))
    g, p = (generator.standard_normal(shape).astype(np.float32) for _ in range(2))
    return np.where(g > 1.5, np.float32(0), g), p


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("name", "params"), CASES)
def test_a_rule_of_optaxs_name_does_what_it_does_to_a_leaf(
    name: str, params: dict[str, float], shape: tuple[int, ...]
) -> None:
    g, p = map(jax.numpy.asarray, values(shape))
    transformation = getattr(optax, name)(**params)
    expected, _ = transformation.update(g, transformation.init(p), p)
    given = xg.get(f"optax.{name}")(None, g, p, **params)
    assert given.dtype == expected.dtype and given.shape == expected.shape
    np.testing.assert_allclose(given, expected, rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize("count", [0, 3])
def test_noise_has_the_deviation_of_optax(count: int) -> None:
    g = jax.numpy.zeros(200_000)
    transformation = optax.add_noise(0.3, 0.55, 0)
    state = transformation.init(g)
    for _ in range(count + 1):
        expected, state = transformation.update(g, state)
    rule = xg.get("optax.add_noise")
    given = rule(None, g, None, eta=0.3, gamma=0.55, count=float(count), key=1)
    # Four standard errors, which is 2.2 percent, and less than a step of the count.
    np.testing.assert_allclose(given.std(), expected.std(), rtol=0.02)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_clipping_is_that_of_torch(shape: tuple[int, ...]) -> None:
    g, _ = values(shape)
    for limit in (0.4, 3.0, 100.0):
        leaf = torch.zeros(shape, requires_grad=True)
        leaf.grad = torch.tensor(g)
        torch.nn.utils.clip_grad_value_([leaf], limit)
        given = xg.get("torch.clip_grad_value_")(None, torch.tensor(g), None, clip_value=limit)
        assert torch.equal(given, leaf.grad)
        assert torch.equal(
            xg.get("clip_value")(None, torch.tensor(g), None, limit=limit), leaf.grad
        )
        leaf.grad = torch.tensor(g)
        torch.nn.utils.clip_grad_norm_([leaf], limit)
        given = xg.get("clip_norm")(None, torch.tensor(g), None, max_norm=limit)
        # torch divides by the norm plus 1e-6.
        torch.testing.assert_close(given, leaf.grad, rtol=1e-4, atol=0)
