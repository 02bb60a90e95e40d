"""`xg.same`: two ways to compute the loss of a small transformer, right and with planted faults."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import multigrad as xg
from multigrad import xp
from multigrad.errors import RuleTypeError

TOKENS, WIDTH, LENGTH, EXAMPLES = 7, 4, 5, 4
DTYPE = np.float32


def weights() -> dict[str, Any]:
    draw = np.random.default_rng(3)

    def normal(*shape: int) -> Any:
        return (draw.standard_normal(shape) * 0.5).astype(DTYPE)

    def layer() -> dict[str, Any]:
        made = {name: normal(WIDTH, WIDTH) for name in ("q", "k", "v", "o")}
        return made | {"up": normal(WIDTH, 6), "bias": normal(6), "down": normal(6, WIDTH)}

    tokens, places = normal(TOKENS, WIDTH), normal(LENGTH, WIDTH)
    layers = [layer(), layer()]
    return {"places": places, "tokens": tokens, "layers": layers, "out": normal(WIDTH, TOKENS)}


def batch() -> dict[str, Any]:
    draw = np.random.default_rng(4)
    mask = np.ones((EXAMPLES, LENGTH), DTYPE)
    mask[1, 3:] = mask[2, 2:] = 0
    ids, labels = (draw.integers(0, TOKENS, (EXAMPLES, LENGTH)) for _ in range(2))
    return {"ids": ids, "mask": mask, "labels": labels}


def attend(
    p: Any, x: Any, mask: Any, *, scale: float = 1.0, fused: bool = False, detached: str = ""
) -> Any:
    q, k, v = (x @ p[name] for name in ("q", "k", "v"))
    scores = q @ xp.swapaxes(k, -1, -2) * (scale / WIDTH**0.5)
    if fused:  # scaled before the product, and normalized after it
        scores = (q * (scale / WIDTH**0.5)) @ xp.swapaxes(k, -1, -2)
    scores = xp.where(mask[:, None, :] > 0, scores, -1e9)
    if fused:
        shares = xp.exp(scores - xp.stop_gradient(xp.max(scores, axis=-1, keepdims=True)))
        mixed = (shares @ v) / xp.sum(shares, axis=-1, keepdims=True)
    else:
        shares = xp.softmax(scores, axis=-1)
        mixed = (xp.stop_gradient(shares) if detached == "shares" else shares) @ v
    return mixed @ (xp.stop_gradient(p["o"]) if detached == "o" else p["o"])


def block(p: Any, x: Any, mask: Any, *, fault: str = "", fused: bool = False) -> Any:
    scale = {"half scale": 0.5, "no root": WIDTH**-0.5}.get(fault, 1.0)
    share = 0.9 if fault == "residual" else 1.0
    if fault == "causes no mask":
        mask = xp.ones_like(mask)
    detached = {"detached shares": "shares", "detached weight": "o"}.get(fault, "")
    x = x + share * attend(p, x, mask, scale=scale, fused=fused, detached=detached)
    up = x @ p["up"]
    hidden = xp.tanh(up if fault == "no bias" else up + p["bias"])
    if fault == "detached hidden":
        hidden = xp.stop_gradient(hidden)
    return x + hidden @ p["down"] * (2.0 if fault == "double" else 1.0)


def losses(p: Any, b: Any, *, faults: tuple[str, str] = ("", ""), fused: bool = False) -> Any:
    x = xp.take(p["tokens"], b["ids"], axis=0) + p["places"][: b["ids"].shape[1]]
    for layer, fault in zip(p["layers"], faults, strict=True):
        x = block(layer, x, b["mask"], fault=fault, fused=fused)
    scores = x @ p["out"]
    picked = xp.take_along_axis(scores, b["labels"][..., None], axis=-1)[..., 0]
    return xp.logsumexp(scores, axis=-1) - picked


def loss(p: Any, b: Any, **how: Any) -> Any:
    return xp.sum(losses(p, b, **how) * b["mask"]) / xp.sum(b["mask"])


def by_example(b: Any) -> list[Any]:
    return [{name: x[i : i + 1] for name, x in b.items()} for i in range(EXAMPLES)]


def padded(p: Any, b: Any) -> Any:
    return loss(p, {name: x[:3] for name, x in b.items()})


def accumulated(p: Any, b: Any) -> Any:
    return sum(loss(p, part) for part in by_example(b)) / EXAMPLES


def accumulated_rightly(p: Any, b: Any) -> Any:
    parts = [xp.sum(losses(p, part) * part["mask"]) for part in by_example(b)]
    return sum(parts[1:], parts[0]) / xp.sum(b["mask"])


def packed(p: Any, b: Any, *, masked: bool) -> Any:
    """Two examples in one row: without a mask between them, tokens see the other example."""
    joined = {name: xp.concat([x[:2], x[2:]], axis=1) for name, x in b.items()}
    doubled = {**p, "places": xp.concat([p["places"], p["places"]], axis=0)}
    if masked:
        return loss(p, b)
    return xp.sum(losses(doubled, joined) * joined["mask"]) / xp.sum(joined["mask"])


def unmasked(p: Any, b: Any) -> Any:
    return xp.mean(losses(p, b))


def over_all(p: Any, b: Any) -> Any:
    return xp.sum(losses(p, b) * b["mask"]) / (EXAMPLES * LENGTH)


def over_examples(p: Any, b: Any) -> Any:
    return xp.sum(losses(p, b) * b["mask"]) / EXAMPLES


def moved_mask(p: Any, b: Any) -> Any:
    return loss(p, {**b, "mask": xp.concat([b["mask"][:, -1:], b["mask"][:, :-1]], axis=1)})


def detached_tokens(p: Any, b: Any) -> Any:
    return loss({**p, "tokens": xp.stop_gradient(p["tokens"])}, b)


def without_places(p: Any, b: Any) -> Any:
    return loss({**p, "places": p["places"] * 0.0}, b)


def scaled_tokens(p: Any, b: Any) -> Any:
    return loss({**p, "tokens": p["tokens"] * WIDTH**0.5}, b)


def not_divided(p: Any, b: Any) -> Any:
    return loss(p, b) * 4.0


def at(layer: int, fault: str) -> Callable[[Any, Any], Any]:
    faults = (fault, "") if layer == 0 else ("", fault)
    return functools.partial(loss, faults=faults)


# The path, what the reason names, and the factor; None where there is none.
FAULTS: dict[str, tuple[Callable[[Any, Any], Any], str, float | None]] = {
    "scale of a loss": (not_divided, "", 4.0),
    "normalizer of all tokens": (over_all, "", 15 / 20),
    "normalizer of examples": (over_examples, "", 15 / 4),
    "loss without a mask": (unmasked, "batch['mask']", None),
    "attention without a mask": (at(0, "causes no mask"), "batch['mask']", None),
    "attention without a mask, above": (at(1, "causes no mask"), "batch['mask']", None),
    "mask moved by one": (moved_mask, "batch['mask']", None),
    "example left out": (padded, "batch", 0.0),
    "accumulated means": (accumulated, "batch", 0.75),
    "packed without a mask": (functools.partial(packed, masked=False), "batch", None),
    "scale of scores": (at(0, "half scale"), "layers.0.k", 0.5),
    "scale of scores, above": (at(1, "no root"), "layers.1.k", WIDTH**-0.5),
    "scale of a residual": (at(0, "residual"), "layers.0.o", 0.9),
    "scale of an embedding": (scaled_tokens, "tokens", 2.0),
    "doubled layer": (at(1, "double"), "layers.1.down", 2.0),
    "ignored bias": (at(1, "no bias"), "layers.1.bias", 0.0),
    "ignored places": (without_places, "places", 0.0),
    "detached embedding": (detached_tokens, "tokens", 0.0),
    "detached weight": (at(0, "detached weight"), "layers.0.o", 0.0),
    "detached shares": (at(1, "detached shares"), "layers.1.k", 0.0),
    "detached hidden layer": (at(0, "detached hidden"), "layers.0.bias", 0.0),
}
RIGHT = {
    "fused attention": functools.partial(loss, fused=True),
    "accumulated by tokens": accumulated_rightly,
    "packed with a mask": functools.partial(packed, masked=True),
    "another sum": lambda p, b: xp.mean(losses(p, b) * b["mask"]) * (20 / 15),
    "scaled and back": lambda p, b: loss(p, b) * 8.0 / 8.0,
    "order": "order",
    "doubled batch": lambda p, b: loss(p, {k: xp.concat([x, x], axis=0) for k, x in b.items()}),
    "ids behind the mask": lambda p, b: loss(p, {**b, "ids": b["ids"] * (b["mask"] > 0)}),
    "shifted logits": lambda p, b: loss({**p, "out": p["out"] + p["out"][:, :1] * 0.5}, b),
    "itself": loss,
}  # fmt: skip


def placed(backend: Any) -> tuple[Any, Any]:
    given = weights()

    def put(tree: Any) -> Any:
        if isinstance(tree, dict):
            return {name: put(each) for name, each in tree.items()}
        return [*map(put, tree)] if isinstance(tree, list) else backend.array(tree)

    return put(given), batch()


@pytest.mark.backends("torch")
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found_and_named(backend: Any, fault: str) -> None:
    path, culprit, factor = FAULTS[fault]
    report = xg.same(loss, path, *placed(backend))
    assert not report.ok and report.reason
    assert report.culprit == culprit, str(report)
    if factor is not None:
        assert report.factor == pytest.approx(factor, rel=1e-6, abs=1e-12), str(report)
    assert report.reason in str(report)


@pytest.mark.backends("torch")
@pytest.mark.parametrize("pair", RIGHT)
def test_two_right_ways_are_the_same(backend: Any, pair: str) -> None:
    report = xg.same(loss, RIGHT[pair], *placed(backend))
    assert report.ok and report.dtype == "float64", str(report)


@pytest.mark.backends("jax", "tensorflow")
def test_faults_are_named_in_each_framework(backend: Any) -> None:
    assert xg.same(loss, RIGHT["fused attention"], *placed(backend)).ok
    for fault in ("normalizer of all tokens", "detached weight"):
        path, culprit, factor = FAULTS[fault]
        report = xg.same(loss, path, *placed(backend))
        assert (report.home, report.culprit) == (backend.name, culprit), str(report)
        assert report.factor == pytest.approx(factor, rel=1e-5, abs=1e-6)


@pytest.mark.needs("torch")
def test_parameters_of_a_module_have_its_names_and_stay_as_they_are() -> None:
    import torch

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Dropout(0.5), torch.nn.Linear(4, 1))
    before = {name: each.detach().clone() for name, each in model.named_parameters()}
    given = torch.randn(6, 3)

    def mean(model: Any, x: Any) -> Any:
        return model(x).square().mean()

    def without_bias(model: Any, x: Any) -> Any:
        hidden = model[1](x @ model[0].weight.T)
        return model[2](hidden).square().mean()

    # Dropout draws the same on both paths.
    assert xg.same(mean, lambda m, x: m[2](m[1](m[0](x))).square().mean(), model, given).ok
    report = xg.same(mean, without_bias, model, given)
    assert (report.culprit, report.factor) == ("0.bias", 0.0)
    assert [row.name for row in report.rows] == [name for name, _ in model.named_parameters()]
    for name, each in model.named_parameters():
        assert torch.equal(each, before[name]) and each.grad is None


@pytest.mark.backends("torch")
def test_a_path_keeps_the_laws_of_a_batch_or_says_which_example_counts_more(backend: Any) -> None:
    def mean(p: Any, b: Any) -> Any:
        return xp.mean((b["x"] @ p - b["y"]) ** 2)

    def centered(p: Any, b: Any) -> Any:
        return xp.mean((b["x"] @ p - xp.mean(b["y"])) ** 2)

    given = {"x": np.arange(16.0).reshape(8, 2) ** 0.5, "y": np.arange(8.0)}
    p = backend.array(np.array([0.5, -1.0]))
    for law in ("order", "accumulation"):
        assert xg.same(mean, law, p, given).ok
    report = xg.same(centered, "accumulation", p, given)
    assert not report.ok and "centered under accumulation" in str(report)

    def masked(p: Any, b: Any) -> Any:
        return xp.sum((b["x"] @ p) ** 2 * b["mask"]) / xp.sum(b["mask"])

    # the mean over the second example alone is NaN
    given = {"x": np.arange(32.0).reshape(4, 8) ** 0.5, "mask": np.array([1.0, 0.0, 1.0, 1.0])}
    assert not xg.same(masked, "accumulation", backend.array(np.linspace(-1, 1, 8)), given).ok


@pytest.mark.backends("torch")
def test_padding_changes_nothing_unless_a_path_reads_hidden_positions(backend: Any) -> None:
    own, whole = placed(backend)
    short = {name: x[:, :3] for name, x in whole.items()}  # the model has as many places as `whole`
    assert xg.same(loss, "padding", own, short).ok
    report = xg.same(lambda p, b: xp.mean(losses(p, b) * b["mask"]), "padding", own, short)
    assert report.factor == pytest.approx(3 / 5)


@pytest.mark.backends("torch", "jax", "tensorflow")
def test_labels_that_are_left_out_hide_positions_from_the_law_of_padding(backend: Any) -> None:
    def labeled(p: Any, b: Any) -> Any:
        counted = xp.cast_like(b["y"] != -100, p)
        errors = (b["x"] * p - xp.cast_like(b["y"], p)) ** 2
        return xp.sum(counted * errors) / xp.sum(counted)

    given = {"x": np.arange(6.0).reshape(2, 3), "y": np.array([[1, -100, 2], [0, 1, -100]])}
    assert xg.same(labeled, "padding", backend.array(np.array(0.5)), given).ok
    with pytest.raises(RuleTypeError, match="'padding' asks for a mask of zeros and ones"):
        xg.same(labeled, "padding", backend.array(np.array(0.5)), {"x": given["x"]})


def segment_loss(p: Any, b: Any, *, is_masked: bool = True, is_per_row: bool = False) -> Any:
    ids = b["segment_ids"]
    pairs = (ids[:, :, None] == ids[:, None, :]) & (ids[:, None, :] > 0)
    scores = xp.where(pairs if is_masked else pairs | True, p * b["x"][:, None, :], -1e9)
    mixed = xp.sum(xp.softmax(scores, axis=-1) * b["x"][:, None, :], axis=-1)
    counted = xp.cast_like(ids > 0, p)
    total = xp.sum(counted * mixed**2, axis=-1)
    if is_per_row:
        return xp.mean(total / xp.sum(counted, axis=-1))
    return xp.sum(total) / xp.sum(counted)


@pytest.mark.backends("numpy", "torch", "jax", "tensorflow")
def test_packing_into_one_row_changes_nothing_if_segments_are_kept_apart(backend: Any) -> None:
    numbers = np.random.default_rng(2).standard_normal((2, 5)).astype(np.float32)
    given = {"x": numbers, "segment_ids": np.array([[1, 1, 2, 2, 0], [1, 1, 1, 0, 0]])}
    p = backend.array(np.array(0.5))
    assert xg.same(segment_loss, "packing", p, given).ok
    for fault in ({"is_masked": False}, {"is_per_row": True}):
        assert not xg.same(functools.partial(segment_loss, **fault), "packing", p, given).ok
    with pytest.raises(RuleTypeError, match=r"one of them called segment_ids; this one has x"):
        xg.same(segment_loss, "packing", p, {"x": numbers})


@pytest.mark.backends("numpy", "torch", "jax", "tensorflow")
def test_losses_that_differ_by_a_constant_are_told_with_gradients_that_agree(backend: Any) -> None:
    w, given = {"w": backend.array(np.ones(2))}, {"x": np.ones(2)}
    report = xg.same(
        lambda w, b: xp.sum(w["w"] ** 2), lambda w, b: xp.sum(w["w"] ** 2) + 1, w, given
    )
    assert not report.ok and "the loss is 2 and 3" in str(report)
    assert all(row.is_same for row in report.rows)


@pytest.mark.needs("torch")
@pytest.mark.parametrize("numbers", [[0.0, 0.0], [0.0, 1.0, -1.0]])
def test_other_conventions_at_a_kink_are_no_detached_parameter(numbers: list[float]) -> None:
    import torch

    def relu(w: Any, b: Any) -> Any:
        return torch.relu(w).sum()

    def clamp(w: Any, b: Any) -> Any:
        return w.clamp(min=0).sum()

    w = torch.tensor(numbers)
    for paths in ((relu, clamp), (clamp, relu)):
        report = xg.same(*paths, w, np.ones(2))
        assert not report.ok and "at a kink or a tie alone" in report.reason
        assert "inf" not in str(report)
    report = xg.same(lambda w, b: torch.relu(w.detach()).sum() + 0 * w.sum(), clamp, w, np.ones(2))
    assert "detaches parameters" in report.reason


def test_what_cannot_be_compared_is_an_error() -> None:
    with pytest.raises(RuleTypeError, match="no law 'shuffling' of a batch; there are order"):
        xg.same(loss, "shuffling", weights(), batch())
    with pytest.raises(RuleTypeError, match="no float tensor among the parameters"):
        xg.same(loss, loss, {"ids": np.arange(3)}, batch())
    with pytest.raises(RuleTypeError, match="a path is a function, not a int"):
        xg.same(loss, 3, weights(), batch())
