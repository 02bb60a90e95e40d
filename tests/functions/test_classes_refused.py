"""A class that no other framework can run is itself on torch, and elsewhere an error that says
where and what would work.
"""

from __future__ import annotations

import decimal
import itertools
import random
import re
from functools import partial
from typing import Any

import numpy as np
import pytest

import multigrad as xg

from ..harness.torch_class import torch_class

pytestmark = pytest.mark.needs("torch")
X = np.array([0.3, -1.2, 0.6], np.float32)


def make_forwards() -> dict[str, tuple[Any, Any, str]]:
    """Return forwards by what they do, what they give for X, and what is said of them."""
    import torch

    generator = torch.Generator()

    def leaves_for_numpy(ctx: Any, x: Any) -> Any:
        return torch.from_numpy(np.round(x.detach().numpy()))

    def leaves_for_decimal(ctx: Any, x: Any) -> Any:
        return x * float(decimal.Decimal(x.abs().max().item()))

    def leaves_for_lists(ctx: Any, x: Any) -> Any:
        return torch.tensor([value + 1 for value in x.tolist()])

    def draws_by_numpy(ctx: Any, x: Any) -> Any:
        return x * np.random.rand()

    def draws_by_python(ctx: Any, x: Any) -> Any:
        return x * random.random()

    def draws_by_a_generator(ctx: Any, x: Any) -> Any:
        return x * torch.rand(3, generator=generator)

    def decides_a_length(ctx: Any, x: Any) -> Any:
        return x[: int((x > 0).sum())]

    def decides_by_a_mask(ctx: Any, x: Any) -> Any:
        return x[x > 0]

    def decides_a_loop(ctx: Any, x: Any) -> Any:
        for _ in range(int(x.abs().max().item())):
            x = x * 2
        return x

    numbers = "numbers"
    drawn = r"generator that no key seeds.*Its author could draw with rand_like|leave it out"
    return {
        "leaves_for_numpy": (leaves_for_numpy, np.round(X), numbers),
        "leaves_for_decimal": (leaves_for_decimal, X * np.float32(1.2), numbers),
        "leaves_for_lists": (leaves_for_lists, X + 1, numbers),
        "draws_by_numpy": (draws_by_numpy, None, drawn),
        "draws_by_python": (draws_by_python, None, drawn),
        "draws_by_a_generator": (draws_by_a_generator, None, drawn),
        "decides_a_length": (decides_a_length, X[:2], "Python number.*keep it a tensor"),
        "decides_by_a_mask": (decides_by_a_mask, X[X > 0], r"decide on the size.*where\("),
        "decides_a_loop": (decides_a_loop, X * 2, "Python number.*keep it a tensor"),
    }


CASES = (
    "leaves_for_numpy",
    "leaves_for_decimal", "leaves_for_lists", "draws_by_numpy", "draws_by_python",
    "draws_by_a_generator", "decides_a_length", "decides_by_a_mask", "decides_a_loop",
)  # fmt: skip


def test_an_object_of_a_class_is_refused_where_it_is_converted() -> None:
    import torch

    with (
        pytest.warns(DeprecationWarning, match="should not be instantiated"),
        pytest.raises(xg.errors.RuleTypeError, match="give the class itself"),
    ):
        xg.convert(torch.autograd.Function())


def test_a_list_of_numbers_is_no_tensor_of_a_class() -> None:
    import torch

    @torch_class(lambda ctx, grad: grad)
    def Rounded(ctx: Any, x: Any) -> Any:
        return torch.round(x)

    rounded = xg.convert(Rounded)
    checks = (partial(xg.check, rounded), partial(xg.parity, rounded))
    for call, given in itertools.product(
        (rounded, *checks), ([1.0, 2.0], [[1.0, 2.0], [3.0, 4.0]], (1.0, 2.0))
    ):
        with pytest.raises(xg.RuleError, match=r"numbers in a list.*give numpy\.array\(x\)"):
            call(given)


@pytest.mark.parametrize("case", CASES)
def test_a_class_that_only_torch_runs(backend: Any, case: str) -> None:
    forward, expected, said = make_forwards()[case]
    function = xg.from_autograd_function(torch_class(lambda ctx, grad: grad * 2)(forward))
    x = backend.array(X.copy())
    if backend.name == "torch":
        y = function(x)
        if expected is not None:
            np.testing.assert_array_equal(y.numpy(), expected.astype(np.float32))
        return
    first = forward.__code__.co_firstlineno
    places = [f"test_classes_refused.py:{first + i})" for i in range(4)]
    with pytest.raises(xg.TraceError) as raised:
        function(x)
    message = str(raised.value)
    assert f"'{case}'" in message
    assert any(place in message for place in places), message
    assert re.search(said, message), message
    assert message.endswith("it runs as written on torch alone")
    assert "native=True" not in message
    assert "xg.xp" not in message
