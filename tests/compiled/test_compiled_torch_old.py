"""torch whose Dynamo may not read our code: what is compiled runs between its graphs, and says so.

A process believes that its torch is 2.4: what differs besides is in docs/versions.md.
"""

from __future__ import annotations

import pytest

from ..harness.hidden import python

pytestmark = pytest.mark.needs("torch")

BEGIN = """
import warnings

import torch

torch.__version__ = "2.4.1"
import multigrad as xg

X = torch.tensor([-2.0, 0.25, 0.6, 3.0])
act = xg.Activation("Heaviside")
triple = xg.function(lambda x: x * x, lambda grad_out, x: grad_out * 3)


def compiled(function, **options):
    return torch.compile(function, backend="eager", **options)


def gradient(function):
    x = X.clone().requires_grad_()
    function(x).sum().backward()
    return x.grad.tolist()


def refusal(call):
    try:
        call()
    except xg.UnsupportedOp as error:
        return str(error)
    raise AssertionError("it was not refused")


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.spike = torch.nn.ReLU()

    def forward(self, x):
        return self.spike(x * 2) * 3
"""


COMPILED = """
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    assert gradient(compiled(lambda x: triple(x * 2) * 5)) == [30.0] * 4
    step = compiled(lambda x: act(x * 2) + x)
    for width in (1.0, 2.0, 1.0):
        with xg.use("triangular", params={"width": width}):
            assert gradient(step) == gradient(lambda x: act(x * 2) + x), width

    def learn(x):
        triple(x).sum().backward()
        return x

    x = X.clone().requires_grad_()
    compiled(learn)(x)
    assert x.grad.tolist() == [3.0] * 4
print([str(each.message) for each in caught if "needs torch" in str(each.message)])
"""
ATTACHED = """
model = Net()
step = compiled(model)
before = gradient(step)
handle = xg.attach(model, {"spike": "triangular"})
within = gradient(step)
assert within == gradient(model) != before
handle.detach()
assert gradient(step) == before
reversed_ = xg.override(lambda x: torch.relu(x) * 2, {"relu": "gradient_reversal"})
print(before, within, gradient(compiled(lambda x: reversed_(x))))
"""
REFUSED = """
spike = xg.Activation("Heaviside", "triangular")
print(refusal(lambda: xg.jit(triple, "torch")))
print(refusal(lambda: xg.export(Net(), "net.pt2", X)))
print(refusal(lambda: torch.export.export(spike, (X,), strict=False)))
try:
    compiled(lambda x: triple(x), fullgraph=True)(X)
except Exception as error:
    print(type(error).__name__)
"""


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The lines that all of it prints, in one process: torch's compiler takes long to import."""
    code = BEGIN + COMPILED + ATTACHED + REFUSED
    return python("-c", code, cwd=tmp_path_factory.mktemp("old")).splitlines()


def test_compiled_code_has_the_gradients_of_eager_code_and_says_that_it_breaks(
    printed: list[str],
) -> None:
    assert printed[0].count("torch.compile of a Function or rule needs torch>=2.12") == 1
    assert "torch 2.4.1 is installed: it runs eagerly, between graphs; or pip inst" in printed[0]


def test_a_compiled_model_follows_rules_that_are_put_on_later_and_taken_off(
    printed: list[str],
) -> None:
    # Of relu(2 x) * 3 at X, by hand; the triangle of width 1 is at 2 x.
    plain, ruled = [0.0, 6.0, 6.0, 6.0], [0.0, 3.0, 0.0, 0.0]
    assert printed[1] == f"{plain} {ruled} {[-2.0] * 4}"


def test_what_needs_a_newer_torch_says_so_and_what_to_do_instead(printed: list[str]) -> None:
    jit, export, exported, whole = printed[2:]
    assert jit.startswith("xg.jit needs torch>=2.12, and torch 2.4.1 is installed")
    assert export.startswith("xg.export needs torch>=2.12") and "multigrad eject" in export
    assert exported.startswith("torch.export of a Function or rule needs torch>=2.12")
    assert whole == "Unsupported"
