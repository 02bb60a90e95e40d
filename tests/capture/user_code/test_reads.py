"""What code reads besides its arguments is followed: each way to change it, at each door."""

from __future__ import annotations

import dataclasses
import enum
import os
import types
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import pytest

import multigrad as xg
from multigrad import xp
from multigrad_conformance.under_test import pull

from ...written.unseen import Unseen

Tensor: TypeAlias = Any
X = np.array([0.5, 1.5, 2.0], np.float32)
VALUES = (2.0, 5.0, 2.0, 7.0, 0.5, 0.25, 11.0)
NAME = "MULTIGRAD_TEST_SCALE"


class Held:
    scale = 2.0


held, config, levels, SCALE = Held(), {"scale": 2.0}, [1.0, 2.0], 2.0


def default(scale: float = 2.0) -> float:
    return scale


def helper() -> float:
    return 2.0


def set_global(value: float) -> None:
    globals()["SCALE"] = value


def replace_helper(value: float) -> None:
    globals()["helper"] = lambda: value


def set_default(value: float) -> None:
    default.__defaults__ = (value,)


def closure() -> tuple[Callable[[], float], Callable[[float], None]]:
    scale = 2.0

    def change(value: float) -> None:
        nonlocal scale
        scale = value

    return lambda: scale, change


WAYS: dict[str, tuple[Callable[[], float], Callable[[float], None]]] = {
    "class attribute": (lambda: Held.scale, lambda v: setattr(Held, "scale", v)),
    "instance attribute": (lambda: held.scale, lambda v: setattr(held, "scale", v)),
    "global": (lambda: SCALE, set_global),
    "dict item": (lambda: config["scale"], lambda v: config.update(scale=v)),
    "list item": (lambda: levels[1], lambda v: levels.__setitem__(1, v)),
    "closure": closure(),
    "environment": (
        lambda: float(os.environ[NAME]),
        lambda v: os.environ.__setitem__(NAME, str(v)),
    ),
    "helper replaced": (lambda: helper(), replace_helper),
    "default": (lambda: default(), set_default),
}


@pytest.fixture(params=WAYS)
def way(request: Any, monkeypatch: Any) -> Any:
    """Return what reads a number, and what changes it."""
    monkeypatch.setenv(NAME, "2.0")
    yield WAYS[request.param]
    vars(held).pop("scale", None)


# --- code for every framework ---------------------------------------------------------------------
def function(read: Callable[[], float]) -> Any:
    return xg.function(lambda x: x * read(), lambda g, x: g * 3.0 * read())


def custom_gradient(read: Callable[[], float]) -> Any:
    return xg.custom_gradient(lambda x: (x * read(), lambda g: g * 3.0 * read()))


def own_rule(read: Callable[[], float]) -> Any:
    return xg.activation("Linear", lambda ctx, g, x: g * 3.0 * read())


def inside_another(read: Callable[[], float]) -> Any:
    inner = function(read)
    return xg.function(lambda x: inner(x) + 0.0 * x)


DOORS = [function, custom_gradient, own_rule, inside_another]


@pytest.mark.parametrize("door", DOORS, ids=lambda door: door.__name__)
def test_code_for_every_framework_follows(door: Any, way: Any, backend: Any) -> None:
    read, change = way
    change(2.0)
    f = door(read)
    for value in VALUES:
        change(value)
        np.testing.assert_allclose(pull(backend, f, (X,))[1][0], 3 * value + 0 * X, rtol=1e-6)


# --- custom gradients of frameworks ---------------------------------------------------------------
def class_of(read: Callable[[], float]) -> Any:
    import torch

    class Scaled(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(x: Tensor) -> Tensor:
            return x * read()

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            pass

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return g * 3.0 * read()

    return Scaled


def slope_of(f: Callable[[Tensor], Tensor]) -> Any:
    import torch

    x = torch.tensor(X, requires_grad=True)
    y = f(x)
    return [y.detach().numpy() / X, torch.autograd.grad(y.sum(), x)[0].numpy() / 3]


def assert_follows(run: Callable[[], Any], change: Callable[[float], None]) -> None:
    for value in VALUES:
        change(value)
        for slopes in run():
            np.testing.assert_allclose(slopes, value + 0 * X, rtol=1e-6)


@pytest.mark.needs("torch")
def test_a_class_of_torch_follows(way: Any) -> None:
    f = xg.convert(class_of(way[0]))
    assert_follows(lambda: slope_of(f), way[1])


@pytest.mark.needs("torch")
def test_a_class_of_torch_follows_under_transforms(way: Any) -> None:
    from torch.func import grad, vmap

    x, f = pytest.importorskip("torch").tensor(X), xg.convert(class_of(way[0]))
    assert_follows(lambda: [vmap(f)(x) / x, grad(lambda a: vmap(f)(a).sum())(x) / 3], way[1])


@pytest.mark.needs("torch")
@pytest.mark.usefixtures("torch_compiles")
def test_a_class_of_torch_follows_in_compiled_code(way: Any) -> None:
    torch: Any = pytest.importorskip("torch")
    f = xg.convert(class_of(way[0]))
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: f(x), backend="eager")
    # Dynamo reads the class itself, and guards on no closure of a closure (torch 2.13).
    if way is not WAYS["closure"]:
        assert_follows(lambda: slope_of(compiled), way[1])


@pytest.mark.needs("torch")
@pytest.mark.usefixtures("torch_compiles")
@pytest.mark.parametrize("door", [function, own_rule], ids=lambda door: door.__name__)
def test_one_compiled_graph_follows_or_its_function_is_refused(way: Any, door: Any) -> None:
    torch: Any = pytest.importorskip("torch")
    read, change = way
    change(2.0)
    f = door(read)
    torch._dynamo.reset()  # each case counts as one more graph of this function
    compiled = torch.compile(lambda x: f(x), backend="eager", fullgraph=True)
    x = torch.tensor(X, requires_grad=True)
    for value in (2.0, 5.0, 2.0, 7.0):
        change(value)
        if way is WAYS["environment"]:
            with pytest.raises(Exception, match=r"reads os\.environ, on which no compiler guards"):
                compiled(x)
            continue
        (gradient,) = torch.autograd.grad(compiled(x).sum(), x)
        np.testing.assert_allclose(gradient, 3 * value + 0 * X)


@pytest.mark.needs("torch")
def test_an_attached_rule_follows(way: Any) -> None:
    torch: Any = pytest.importorskip("torch")
    read, change = way
    model = torch.nn.Sequential(torch.nn.ReLU())
    with xg.attach(model, {"relu": lambda ctx, g, x: g * 3.0 * read()}):
        assert_follows(lambda: slope_of(model)[1:], change)


@pytest.mark.needs("jax")
def test_a_custom_vjp_of_jax_follows(way: Any) -> None:
    jax: Any = pytest.importorskip("jax")
    read, change = way

    @jax.custom_vjp
    def scaled(x: Tensor) -> Tensor:
        return x * read()

    scaled.defvjp(lambda x: (scaled(x), None), lambda _, g: (g * 3.0 * read(),))
    f = xg.convert(scaled)

    def run() -> Any:
        y, pull_back = jax.vjp(f, jax.numpy.array(X))
        return y / X, pull_back(jax.numpy.ones(3))[0] / 3

    assert_follows(run, change)


@pytest.mark.needs("tensorflow")
def test_a_custom_gradient_of_tensorflow_follows(way: Any) -> None:
    tf: Any = pytest.importorskip("tensorflow")
    read, change = way
    f = xg.convert(tf.custom_gradient(lambda x: (x * read(), lambda g: g * 3.0 * read())))

    def run() -> Any:
        x = tf.constant(X)
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = f(x)
        return y / X, tape.gradient(y, x) / 3

    assert_follows(run, change)


# --- what it costs --------------------------------------------------------------------------------
def captures_of(function: Any) -> int:
    return len(function.captures.variants)


@pytest.mark.parametrize("way", ["class attribute", "global", "dict item", "closure"])
def test_a_number_that_keeps_changing_costs_no_captures(way: str, backend: Any) -> None:
    read, change = WAYS[way]
    change(2.0)
    f = xg.function(lambda x: x * read(), lambda g, x: g * 3.0 * read())
    for step in range(30):
        change(1.0 + step / 7)
        gradient = pull(backend, f, (X,))[1][0]
        np.testing.assert_allclose(gradient, 3.0 * (1.0 + step / 7) + 0 * X, rtol=1e-6)
    assert captures_of(f) <= 5


def test_a_number_that_decides_is_captured_for_each_value(backend: Any) -> None:
    f = xg.function(lambda x: x * 1.0, lambda g, x: g * 3.0 if held.scale > 3 else g)
    for value in (*VALUES, 2.5, 3.5):
        held.scale = value
        expected = (3.0 if value > 3 else 1.0) + 0 * X
        np.testing.assert_array_equal(pull(backend, f, (X,))[1][0], expected)
    del held.scale


def test_code_that_reads_nothing_has_no_facts() -> None:
    f = xg.function(lambda x: np.exp(x) * 2.0, lambda g, x: g * xp.exp(x))
    f(X)
    assert not f.captures.facts


# --- what is read in other ways -------------------------------------------------------------------
@dataclasses.dataclass(frozen=True)
class Settings:
    scale: float = 2.0


class Mode(enum.Enum):
    LOW = 2.0
    HIGH = 5.0


class Child(Held):
    pass


looks = Unseen()


class Hidden:
    def __init__(self) -> None:
        self._rows = {"scale": 2.0}

    @property
    def scale(self) -> float:
        looks.append(1)
        return self._rows["scale"]

    def __call__(self) -> float:
        return self._rows["scale"]

    def __getitem__(self, name: str) -> float:
        return self._rows[name]


class Wild:
    """Has no equality, no hash and no truth."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, scale: float) -> None:
        self.scale = scale

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("no equality")

    def __bool__(self) -> bool:
        raise RuntimeError("no truth")


def other_ways() -> dict[str, tuple[Callable[[], float], list[Callable[[], Any]]]]:
    box = types.SimpleNamespace(
        settings=Settings(), mode=Mode.LOW, hidden=Hidden(), wild=Wild(2.0), array=np.array(2.0),
        names={"a"}, many={f"k{i}": float(i) for i in range(100)}, key="k7", child=Child(),
    )  # fmt: skip
    return {
        "a record that is replaced": (
            lambda: box.settings.scale,
            [lambda v=v: setattr(box, "settings", Settings(v)) for v in (3.0, 4.0, 5.0, 6.0)],
        ),
        "a member of an enum": (
            lambda: box.mode.value,
            [lambda: setattr(box, "mode", Mode.HIGH)],
        ),
        "a property": (
            lambda: box.hidden.scale,
            [lambda: box.hidden._rows.update(scale=3.0)],
        ),
        "an object that is called": (
            lambda: box.hidden(),
            [lambda v=v: box.hidden._rows.update(scale=v) for v in (3.0, 4.0, 5.0, 6.0)],
        ),
        "an item of an object": (
            lambda: box.hidden["scale"],
            [lambda: box.hidden._rows.update(scale=3.0)],
        ),
        "an object without equality": (
            lambda: box.wild.scale,
            [lambda: setattr(box.wild, "scale", 3.0), lambda: setattr(box, "wild", Wild(4.0))],
        ),
        "an array in place": (
            lambda: float(box.array),
            [lambda: box.array.fill(3.0), lambda: setattr(box, "array", np.array(4.0))],
        ),
        "a set": (
            lambda: 2.0 if "a" in box.names else 3.0,
            [lambda: box.names.clear(), lambda: box.names.add("a")],
        ),
        "a long dict, by a variable": (
            lambda: box.many[box.key],
            [lambda: box.many.update(k7=3.0), lambda: setattr(box, "key", "k9")],
        ),
        "an attribute that hides one of the class": (
            lambda: box.child.scale,
            [lambda: setattr(box.child, "scale", 3.0), lambda: delattr(box.child, "scale")],
        ),
        "an attribute that may be missing": (
            lambda: getattr(box.child, "extra", 1.0),
            [lambda: setattr(box.child, "extra", 3.0), lambda: delattr(box.child, "extra")],
        ),
    }


@pytest.mark.parametrize("way", other_ways())
def test_it_is_followed(way: str) -> None:
    read, changes = other_ways()[way]
    f = function(read)
    for change in (lambda: None, *changes):
        change()
        np.testing.assert_allclose(f(X), X * np.float32(read()), rtol=1e-6)


def test_a_guard_runs_no_property(unproven: None) -> None:
    hidden = Hidden()
    f = function(lambda: hidden.scale)
    f(X)
    count = len(looks.items)
    f(X)
    assert len(looks.items) == count


def test_an_attribute_that_is_deleted_is_an_error_at_its_line() -> None:
    box = types.SimpleNamespace(scale=2.0)
    f = function(lambda: box.scale)
    f(X)
    del box.scale
    with pytest.raises(AttributeError, match="scale"):
        f(X)
    box.scale = 3.0
    np.testing.assert_array_equal(f(X), X * 3)


def test_an_alias_that_no_symbol_reaches_is_followed(backend: Any) -> None:
    f = xg.function(lambda x: x * 1.0, lambda g, x: g * vars(Held)["scale"])
    for value in (*VALUES, 3.5):
        Held.scale = value
        np.testing.assert_allclose(pull(backend, f, (X,))[1][0], value + 0 * X, rtol=1e-6)


def test_a_file_has_the_values_of_then(tmp_path: Any) -> None:
    f = function(lambda: held.scale)
    for value in VALUES:
        held.scale = value
        f(X)
    xg.save(f, tmp_path / "f.json")
    loaded = xg.load(tmp_path / "f.json")
    held.scale = 1.0
    np.testing.assert_array_equal(loaded(X), X * 11)
    np.testing.assert_array_equal(f(X), X)
    del held.scale


@pytest.mark.needs("torch")
def test_a_rule_follows_a_tensor_that_is_changed_in_place() -> None:
    factor = pytest.importorskip("torch").tensor(2.0)
    act = xg.activation("Linear", lambda ctx, g, x: g * factor)
    for value in (2.0, 3.0, 4.0):
        factor.fill_(value)
        np.testing.assert_array_equal(slope_of(act)[1] * 3, value + 0 * X)


@pytest.mark.needs("jax")
def test_xg_jit_follows_and_jax_jit_traces_once() -> None:
    jax: Any = pytest.importorskip("jax")
    f = function(lambda: held.scale)
    ours, theirs = xg.jit(lambda x: f(x)), jax.jit(lambda x: f(x))
    for value in (2.0, 5.0, 3.0):
        held.scale = value
        np.testing.assert_array_equal(ours(jax.numpy.array(X)), X * value)
        np.testing.assert_array_equal(theirs(jax.numpy.array(X)), X * 2)
    del held.scale
