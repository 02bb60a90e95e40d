"""`xg.Activation`, the torch module: what it is beside a callable."""

from __future__ import annotations

import copy
import functools
import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest

import multigrad as xg

from ...harness import fresh
from ...harness.models.surrogates import triangle
from ...harness.torch_class import torch_class

torch: Any = pytest.importorskip("torch")
nn = torch.nn

pytestmark = pytest.mark.needs("torch")

Tensor: TypeAlias = Any
Array: TypeAlias = np.ndarray[Any, Any]

X = np.array([-1.0, -0.25, 0.0, 0.25, 1.0], np.float32)


def gradient(f: Any) -> Array:
    x = torch.tensor(X, requires_grad=True)
    (grad,) = torch.autograd.grad(f(x).sum(), x)
    return grad.numpy()


def test_it_is_freegrads_module_by_every_name_and_default() -> None:
    from multigrad.compat.wrappers import Activation

    assert Activation is xg.Activation
    module = xg.Activation()
    assert isinstance(module, nn.Module)
    assert list(module.parameters()) == []
    assert module.state_dict() == {}
    np.testing.assert_array_equal(gradient(module), X > 0)  # ReLU
    np.testing.assert_allclose(
        gradient(xg.Activation("heaviside", "triangular", {"width": 2.0})),
        triangle(X, 2.0),
        rtol=1e-6,
    )


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((), "Activation('ReLU')"),
        (("GELU",), "Activation('GELU')"),
        (("Heaviside", "triangular"), "Activation('Heaviside', rule='triangular')"),
        (
            ("Heaviside", "rectangular", {"a": -1.0}),
            "Activation('Heaviside', rule='rectangular', a=-1.0)",
        ),
    ],
)
def test_repr_shows_forward_rule_and_params(arguments: tuple[Any, ...], text: str) -> None:
    assert repr(xg.Activation(*arguments)) == text


def test_repr_names_a_rule_object_and_a_function() -> None:
    def softened(ctx: Any, grad_out: Tensor, tin: Tensor) -> Tensor:
        return grad_out

    assert "triangular" in repr(xg.Activation("ReLU", xg.get("triangular")))
    assert "softened" in repr(xg.Activation("ReLU", softened))


def test_without_a_rule_the_gradient_is_torchs_own() -> None:
    for name, native in [
        ("Tanh", torch.tanh),
        ("SiLU", torch.nn.functional.silu),
        ("GELU", torch.nn.functional.gelu),
        ("LeakyReLU", torch.nn.functional.leaky_relu),
    ]:
        module = xg.Activation(name)
        np.testing.assert_array_equal(gradient(module), gradient(native))
        np.testing.assert_array_equal(module(torch.tensor(X)), native(torch.tensor(X)))
    np.testing.assert_array_equal(gradient(xg.Activation("Heaviside")), np.zeros_like(X))


def test_rule_and_params_are_changed_by_assignment() -> None:
    module = xg.Activation("Heaviside", "rectangular", {"a": -0.5, "b": 0.5})
    assert (module.rule, module.params) == ("rectangular", {"a": -0.5, "b": 0.5})
    module.params = {"a": 0.0, "b": 1.0}
    np.testing.assert_array_equal(gradient(module), (X >= 0) & (X <= 1))
    module.rule = "triangular"
    assert module.params == {}
    np.testing.assert_allclose(gradient(module), triangle(X), rtol=1e-6)
    module.rule = None
    with xg.use("scale", {"s": 3.0}):
        np.testing.assert_array_equal(gradient(module), np.full_like(X, 3.0))


def test_wrong_assignment_is_refused_and_changes_nothing() -> None:
    module = xg.Activation("Heaviside", "triangular", {"width": 2.0})
    with pytest.raises(xg.RuleError, match="did you mean 'rectangular'"):
        module.rule = "rectangulr"
    with pytest.raises(TypeError, match="widht"):
        module.params = {"widht": 1.0}
    np.testing.assert_allclose(gradient(module), triangle(X, 2.0), rtol=1e-6)


def test_params_that_are_returned_are_a_copy() -> None:
    module = xg.Activation("Heaviside", "triangular", {"width": 2.0})
    with pytest.raises(TypeError, match="assign all"):
        module.params["width"] = 9.0
    np.testing.assert_allclose(gradient(module), triangle(X, 2.0), rtol=1e-6)


@pytest.mark.parametrize("rule", [None, "triangular"])
def test_copies_and_pickles_keep_the_rule_and_go_their_own_way(rule: str | None) -> None:
    module = xg.Activation("Heaviside", rule, {"width": 2.0} if rule else None)
    buffer = io.BytesIO()
    torch.save(module, buffer)
    buffer.seek(0)
    copies = [
        copy.deepcopy(module),
        copy.copy(module),
        pickle.loads(pickle.dumps(module)),
        torch.load(buffer, weights_only=False),
    ]
    expected = triangle(X, 2.0) if rule else np.zeros_like(X)
    for twin in copies:
        np.testing.assert_allclose(gradient(twin), expected, rtol=1e-6)
        assert repr(twin) == repr(module)
        twin.rule = "straight_through"
        np.testing.assert_array_equal(gradient(twin), np.ones_like(X))
        np.testing.assert_allclose(gradient(module), expected, rtol=1e-6)


@pytest.mark.usefixtures("torch_compiles")
def test_pickle_made_after_use_in_compiled_code_is_loaded_in_another_process(
    tmp_path: Path,
) -> None:
    torch._dynamo.reset()
    module = torch.nn.Sequential(xg.Activation("Heaviside", "triangular", {"width": 2.0}))
    gradient(torch.compile(module, backend="aot_eager"))
    path = tmp_path / "model.pt"
    torch.save(module, path)
    script = f"""
        import torch
        import multigrad as xg

        # Made first, so that numbers given out in this process meet those of the other.
        own = [xg.Activation("Heaviside", "scale", {{"s": float(s)}}) for s in range(9)]
        model = torch.load({str(path)!r}, weights_only=False)
        for f in (model, torch.compile(model, backend="aot_eager", fullgraph=True)):
            x = torch.tensor(0.5, requires_grad=True)
            f(x).backward()
            assert x.grad.item() == 0.75, x.grad
    """
    fresh.check(script, "torch")


def test_it_follows_use_inside_of_a_model_and_in_evaluation() -> None:
    model = nn.Sequential(xg.Activation("Heaviside"), xg.Activation("Linear", "scale", {"s": 2.0}))
    for training in (True, False):
        model.train(training)
        with xg.use("triangular"):
            np.testing.assert_allclose(gradient(model), 2.0 * triangle(X), rtol=1e-6)
    with torch.no_grad(), xg.use("triangular"):
        y = model(torch.tensor(X))
    assert not y.requires_grad
    with torch.inference_mode():
        np.testing.assert_array_equal(model(torch.tensor(X)), X > 0)


def test_foreign_tensor_is_refused_by_name() -> None:
    with pytest.raises((xg.BackendNotFound, TypeError), match=r"list|tensor"):
        xg.Activation("ReLU")([1.0, 2.0])


# A module without parameters that captured code applies is looked at anew at each call: `.eval()`,
# `.train()` and its numbers are seen.


class Holder:
    inner: Any


def ways() -> dict[str, Callable[[Any], Any]]:
    def of_class(module: Any) -> Any:
        @torch_class(lambda ctx, grad: grad)
        def Applied(ctx: Any, x: Any) -> Any:
            return module(x)

        return xg.from_autograd_function(Applied)

    def of_attribute(module: Any) -> Any:
        holder = Holder()
        holder.inner = module
        return xg.function(lambda x: holder.inner(x), lambda grad, x: grad)

    def of_helper(module: Any) -> Any:
        def helper(x: Any) -> Any:
            return module(x)

        return xg.function(lambda x: helper(x), lambda grad, x: grad)

    def in_backward(module: Any) -> Any:
        f = xg.function(lambda x: x * 1.0, lambda grad, x: module(grad))

        def gradient(x: Any) -> Any:
            x = x.clone().requires_grad_()
            return torch.autograd.grad(f(x).sum(), x)[0]

        return gradient

    return {
        "lambda": lambda module: xg.function(lambda x: module(x)),
        "partial": lambda module: xg.function(functools.partial(lambda m, x: m(x), module)),
        "module": lambda module: xg.function(module),
        "module and backward": lambda module: xg.function(module, lambda grad, x: grad),
        "pair": lambda module: xg.function(lambda x: module(x), lambda grad, x: grad),
        "custom_gradient": lambda module: xg.custom_gradient(lambda x: (module(x), lambda g: g)),
        "class": of_class,
        "attribute": of_attribute,
        "helper": of_helper,
        "in backward": in_backward,
        "activation": lambda module: xg.activation(lambda x: module(x)),
    }


NAMES = (
    "lambda", "partial", "module", "module and backward", "pair", "custom_gradient", "class",
    "attribute", "helper", "in backward", "activation",
)  # fmt: skip


@pytest.mark.parametrize("way", NAMES)
@pytest.mark.parametrize("first", [True, False])
def test_later_eval_and_train_are_seen(way: str, first: bool) -> None:
    module = torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Dropout(0.5))
    f, x = ways()[way](module), torch.ones(64)
    for training in (first, not first, first):
        module.train(training)
        drops = bool((f(x) == 0).any())
        assert drops is training


@pytest.mark.parametrize("way", NAMES)
def test_a_number_that_changes_is_seen(way: str) -> None:
    module, x = torch.nn.LeakyReLU(0.5), torch.full((4,), -1.0)
    f = ways()[way](torch.nn.Sequential(module))
    sign = -1 if way == "in backward" else 1
    for slope in (0.5, 0.25, 0.5):
        module.negative_slope = slope
        given = x if sign == 1 else -x
        expected = torch.ones(4) if sign == -1 else slope * x
        torch.testing.assert_close(f(given), expected)


def test_it_is_seen_in_compiled_code() -> None:
    module, x = torch.nn.Dropout(0.5), torch.ones(64)
    f = xg.function(lambda x: module(x), lambda grad, x: grad)
    compiled = torch.compile(lambda x: f(x), backend="aot_eager")
    for training in (True, False, True):
        module.train(training)
        assert bool((compiled(x) == 0).any()) is training


def test_it_is_seen_on_other_frameworks() -> None:
    module = torch.nn.LeakyReLU(0.5)
    f = xg.function(lambda x: module(x), lambda grad, x: grad)
    for slope in (0.5, 0.25):
        module.negative_slope = slope
        np.testing.assert_array_equal(f(-np.ones(3, np.float32)), -slope * np.ones(3, np.float32))


@pytest.mark.parametrize("held", ["by nobody", "by itself", "by its class"])
def test_a_module_that_is_made_anew_each_time_is_captured(held: str) -> None:
    made = []

    class Scale(torch.nn.Module):
        def __init__(self, factor: float) -> None:
            super().__init__()
            self.factor = factor
            if held == "by itself":
                self.__dict__["itself"] = self
            if held == "by its class":
                made.append(self)

        def forward(self, x: Any) -> Any:
            return x * self.factor

    scaled = xg.function(lambda x: Scale(2.0)(x), native=False, dialect="torch")
    for number in (1.0, 3.0):
        np.testing.assert_array_equal(scaled(torch.full((2,), number)), [2 * number] * 2)


def test_of_two_modules_alike_each_is_looked_at() -> None:
    import copy

    class Doubled(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return x * 2 if self.training else x

    flat, deep = Doubled(), Doubled()
    chosen = xg.function(lambda x: (flat if x.ndim == 1 else deep)(x), native=False)
    line, square = torch.ones(2), torch.ones(2, 2)
    for is_training in (True, False, True):
        deep.train(is_training)
        assert chosen(line).tolist() == [2.0, 2.0]
        assert chosen(square)[0].tolist() == [1.0 + is_training] * 2
    copied = xg.function(lambda x: copy.deepcopy(flat)(x), native=False)
    assert copied(line).tolist() == [2.0, 2.0]
