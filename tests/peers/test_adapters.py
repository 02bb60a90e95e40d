"""What the adapters of `examples/adapters` add; `with_adapter.py` runs the packages' own tests."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.peers, pytest.mark.needs("torch")]

LOSSES = ["sparsemax", "sparsemax_bisect", "entmax15", "entmax_bisect", "normmax_bisect"]


@pytest.fixture(autouse=True)
def _adapters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "examples" / "adapters"))


@pytest.mark.filterwarnings("ignore::multigrad.errors.NotProvenWarning")
@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_of_entmax_has_a_second_derivative_in_the_block_alone(name: str) -> None:
    entmax = pytest.importorskip("entmax")
    from entmax_second import second_derivatives

    loss, target = getattr(entmax, f"{name}_loss"), torch.tensor([0, 1, 2, 3])
    torch.manual_seed(0)
    scores = torch.randn(4, 6, dtype=torch.float64, requires_grad=True)

    def first() -> torch.Tensor:
        return torch.autograd.grad(loss(scores, target).sum(), scores)[0]

    def second() -> bool:
        check = torch.autograd.gradgradcheck
        return check(lambda x: loss(x, target), scores, raise_exception=False)

    theirs = loss(scores, target), first()
    assert not second()
    with second_derivatives():
        assert second()
        assert all(map(torch.equal, theirs, (loss(scores, target), first())))
    assert not second()


@pytest.mark.parametrize("name", ["fast_sigmoid", "atan", "sigmoid", "triangular", "SFS"])
def test_a_surrogate_of_snntorch_is_its_own_under_vmap_and_compiled_transforms(name: str) -> None:
    surrogate = pytest.importorskip("snntorch.surrogate")
    from snntorch_transforms import transformable

    fire = getattr(surrogate, name)()
    x = torch.tensor([[-0.7, 0.03], [0.2, 1.1]], requires_grad=True)
    expected = torch.autograd.grad(fire(x).sum(), x)[0]
    with transformable():
        gradient = torch.func.grad(lambda each: fire(each).sum())
        torch.testing.assert_close(torch.vmap(gradient)(x.detach()), expected)
        compiled = torch.compile(gradient, fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(compiled(x.detach()), expected)
