"""The classes that are timed against themselves converted: each converts, and gives its numbers."""

from __future__ import annotations

from typing import Any

import pytest

import multigrad as xg

torch: Any = pytest.importorskip("torch")
pytestmark = pytest.mark.needs("torch")


def classes() -> list[Any]:
    from bench.figures.classes_torch import CLASSES

    return list(CLASSES)


@pytest.mark.parametrize("cls", classes(), ids=[each.__name__ for each in classes()])
def test_a_timed_class_converts_and_gives_its_numbers(cls: Any) -> None:
    from bench.figures.classes_torch import CLASSES

    x = torch.linspace(-2.5, 2.5, 24).reshape(4, 6).requires_grad_()
    others = CLASSES[cls]
    leaves = [x, *(each for each in others if isinstance(each, torch.Tensor))]
    function = xg.from_autograd_function(cls)
    outputs = [apply(x, *others) for apply in (function, cls.apply)]
    assert function.captures.variants, "it runs as it is"
    cotangent = torch.linspace(1.0, -1.0, outputs[0].numel()).reshape(outputs[0].shape)
    given, wanted = (torch.autograd.grad(y, leaves, cotangent) for y in outputs)
    torch.testing.assert_close(*outputs)
    for each, own in zip(given, wanted, strict=True):
        torch.testing.assert_close(each.reshape(own.shape), own, rtol=1e-5, atol=1e-6)


def test_a_ratio_is_measured(capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    from bench.figures import converted as bench

    monkeypatch.setattr(bench, "ROUNDS", dict.fromkeys(bench.SIZES, 2))
    threads = torch.get_num_threads()
    bench.main(["RoundStraight"])
    torch.set_num_threads(threads)
    shown = capsys.readouterr().out.split()
    assert shown[0] == "RoundStraight" and float(shown[1]) > 0
    assert shown[3] == "median" and shown[6] == "worst"
