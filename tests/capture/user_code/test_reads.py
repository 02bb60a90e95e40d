"""What code reads besides its arguments is followed: each way to change it, at each door."""

from __future__ import annotations

import array
import builtins
import collections
import dataclasses
import enum
import functools
import importlib
import multiprocessing
import operator
import os
import sys
import threading
import types
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, TypeAlias

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


# What has stayed the same for some calls is asked by straight code.
once_or_often = pytest.mark.parametrize("calls", [1, 6])


@once_or_often
@pytest.mark.parametrize("door", DOORS, ids=lambda door: door.__name__)
def test_code_for_every_framework_follows(door: Any, way: Any, backend: Any, calls: int) -> None:
    read, change = way
    change(2.0)
    f = door(read)
    for value in VALUES:
        change(value)
        for _ in range(calls):
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


@once_or_often
@pytest.mark.needs("torch")
def test_a_class_of_torch_follows(way: Any, calls: int) -> None:
    f = xg.convert(class_of(way[0]))
    assert_follows(lambda: [each for _ in range(calls) for each in slope_of(f)], way[1])


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
def test_one_compiled_graph_follows(way: Any, door: Any) -> None:
    torch: Any = pytest.importorskip("torch")
    read, change = way
    change(2.0)
    f = door(read)
    torch._dynamo.reset()  # each case counts as one more graph of this function
    compiled = torch.compile(lambda x: f(x), backend="eager", fullgraph=True)
    x = torch.tensor(X, requires_grad=True)
    for value in (2.0, 5.0, 2.0, 7.0):
        change(value)
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


@pytest.mark.needs("jax")
def test_a_custom_jvp_of_jax_with_a_rule_for_each_argument_follows(way: Any) -> None:
    jax: Any = pytest.importorskip("jax")
    read, change = way
    scaled = jax.custom_jvp(lambda x, y: x * read() + 0 * y)
    scaled.defjvps(lambda t, out, x, y: t * 3.0 * read(), None)
    f = xg.convert(scaled)

    def run() -> Any:
        y, pull_back = jax.vjp(f, jax.numpy.array(X), jax.numpy.array(X))
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


# --- what is converted, under its own name --------------------------------------------------------
def set_factor(owner: Any, value: float) -> None:
    owner.factor = value


def set_helper(owner: Any, value: float) -> None:
    owner.helper = staticmethod(lambda: value)


def set_item(owner: Any, value: float) -> None:
    owner.table["factor"] = value


NAMED = {
    set_factor: lambda: Named.factor,
    set_helper: lambda: Named.helper(),
    set_item: lambda: Named.table["factor"],
}
Named: Any = None


@pytest.mark.needs("torch")
@pytest.mark.parametrize("change", NAMED, ids=lambda change: change.__name__)
@pytest.mark.parametrize("is_decorated", [True, False])
def test_a_converted_class_is_followed_under_its_name(
    change: Any, is_decorated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = NAMED[change]
    original: Any = class_of(read)

    class Original(original):  # type: ignore[misc]
        factor, table, helper = 2.0, {"factor": 2.0}, staticmethod(lambda: 2.0)

        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * read()

        setup_context = pytest.importorskip("torch").autograd.Function.setup_context

    f = xg.convert(Original)
    owner = f if is_decorated else Original
    monkeypatch.setitem(globals(), "Named", owner)
    assert_follows(lambda: slope_of(f), lambda value: change(owner, value))
    assert Original.factor == f.factor
    with pytest.raises(AttributeError, match="has been converted: set 'forward' of the class"):
        f.forward = Original.forward


@pytest.mark.needs("torch")
def test_a_count_that_a_converted_class_keeps_under_its_name_is_that_of_its_calls() -> None:
    torch: Any = pytest.importorskip("torch")

    @xg.convert
    class Counted(torch.autograd.Function):  # type: ignore[misc, name-defined]
        count = 0

        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            Counted.count += 1
            return x * Counted.count

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return g

    assert [Counted(torch.ones(1)).item() for _ in range(3)] == [1, 2, 3]


@pytest.mark.needs("jax")
def test_a_rule_that_is_given_to_a_custom_vjp_again_is_followed() -> None:
    jax: Any = pytest.importorskip("jax")
    doubled = jax.custom_vjp(lambda x: 2.0 * x)

    def change(value: float) -> None:
        doubled.defvjp(lambda x: (2.0 * x, None), lambda _, g: (g * value,))

    change(1.0)
    f = xg.convert(doubled)
    assert_follows(lambda: [jax.grad(lambda x: f(x).sum())(jax.numpy.array(X))], change)


def attribute_of_function() -> Any:
    @xg.function
    def scaled(x: Tensor) -> Tensor:
        return x * scaled.factor

    return scaled, lambda: scaled(X) / X


def attribute_of_gradient() -> Any:
    @xg.custom_gradient
    def scaled(x: Tensor) -> Any:
        return x, lambda g: g * scaled.factor

    return scaled, lambda: xg.vjp(scaled, X)[1](X) / X


def attribute_of_rule() -> Any:
    rule = xg.register("of_its_attribute")(lambda ctx, g, tin: g * rule.factor)
    return rule, lambda: rule(None, X, X) / X


@pytest.mark.parametrize("made", [attribute_of_function, attribute_of_gradient, attribute_of_rule])
def test_an_attribute_that_code_sets_on_what_it_is_made_is_followed(made: Any) -> None:
    owner, run = made()
    assert_follows(lambda: [np.squeeze(run())], lambda value: set_factor(owner, value))


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


@pytest.mark.parametrize(
    ("of", "last"),
    [
        (lambda k: abs(k**0.5), -0.25),
        (lambda k: max(0, k), float("nan")),
        (lambda k: k if k else 7.0, 0.0),
    ],
)
@once_or_often
def test_a_number_that_keeps_changing_has_pythons_arithmetic_at_its_ends(
    of: Any, last: float, calls: int, backend: Any
) -> None:
    box = types.SimpleNamespace(scale=1.0)
    f = xg.function(lambda x: x, lambda g, x: g * of(box.scale))
    for value in (1.0, 0.5, 0.25, 0.125, last, 0.0625):
        box.scale = value
        for _ in range(calls):
            np.testing.assert_allclose(pull(backend, f, (X,))[1][0], of(value) + 0 * X, rtol=1e-6)


def test_a_number_that_becomes_zero_raises_as_python_does() -> None:
    box = types.SimpleNamespace(scale=1.0)
    f = xg.function(lambda x: x * (1 / box.scale), lambda g, x: g)
    for value in (1.0, 0.5, 0.25, 0.125):
        box.scale = value
        np.testing.assert_allclose(f(X), X / value)
    box.scale = 0.0
    with pytest.raises(ZeroDivisionError):
        f(X)


def test_a_scalar_of_numpy_that_becomes_an_array_is_followed() -> None:
    box = types.SimpleNamespace(scale=np.float32(2))
    f = xg.function(lambda x: x * box.scale, lambda g, x: g)
    for scale in (np.float32(2), np.arange(3, dtype=np.float32), np.float32(3)):
        box.scale = scale
        np.testing.assert_array_equal(f(X), X * scale)


@pytest.mark.needs("tensorflow")
def test_a_dict_in_a_module_of_tensorflow_is_followed() -> None:
    tf: Any = pytest.importorskip("tensorflow")
    module = tf.Module()
    module.config = {"scale": 2.0}  # which TensorFlow puts into a proxy
    f = function(lambda: module.config["scale"])
    for value in (2.0, 5.0):
        module.config["scale"] = value
        np.testing.assert_allclose(f(tf.constant(X)), X * value, rtol=1e-6)


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


class Slotted:
    __slots__ = ("scale",)


def as_module(scale: float) -> types.ModuleType:
    module = types.ModuleType("settings_of_a_test")
    module.scale = scale  # type: ignore[attr-defined]
    return module


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
        slotted=Slotted(), module=as_module(2.0), pair=(1.0, 2.0),
    )  # fmt: skip
    box.slotted.scale = 2.0
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
        "an environment variable by os.getenv": (
            lambda: float(os.getenv(NAME, "2.0")),
            [lambda: os.environ.update({NAME: "3.0"}), lambda: os.environ.pop(NAME)],
        ),
        "an attribute that hides one of the class": (
            lambda: box.child.scale,
            [lambda: setattr(box.child, "scale", 3.0), lambda: delattr(box.child, "scale")],
        ),
        "a class's that it inherits, and then has": (
            lambda: Child.scale,
            [lambda: setattr(Child, "scale", 3.0), lambda: delattr(Child, "scale")],
        ),
        "a slot": (
            lambda: box.slotted.scale,
            [lambda: setattr(box.slotted, "scale", 3.0)],
        ),
        "a module's": (
            lambda: box.module.scale,
            [
                lambda: setattr(box.module, "scale", 3.0),
                lambda: setattr(box, "module", as_module(4.0)),
            ],
        ),
        "a tuple that is replaced": (
            lambda: box.pair[-1],
            [
                lambda: setattr(box, "pair", (1.0, 2.0, 5.0)),
                lambda: setattr(box, "pair", (1.0, 3.0)),
            ],
        ),
        "a class in the place of another": (
            lambda: box.child.scale,
            [lambda: setattr(box, "child", Settings(3.0)), lambda: setattr(box, "child", Settings)],
        ),
        "an attribute that may be missing": (
            lambda: getattr(box.child, "extra", 1.0),
            [lambda: setattr(box.child, "extra", 3.0), lambda: delattr(box.child, "extra")],
        ),
    }


class Doubled(Child):
    def read(self) -> float:
        return super().scale

    @property
    def double(self) -> float:
        return 2 * super().scale


def caught(read: Callable[[], float]) -> float:
    try:
        return read()
    except (AttributeError, NameError):
        return 1.0


def replaced(box: Any) -> list[Callable[[], Any]]:
    """Replace a function with cells by callables of other kinds."""
    kinds = (lambda: 3.0, functools.partial(float, 4), functools.partial(max, 5.0, 1.0))
    return [lambda kind=kind: setattr(box, "read", kind) for kind in kinds]


def missing_or_of_another_kind() -> dict[str, tuple[Callable[[], float], list[Callable[[], Any]]]]:
    box, cell, plain, rows = Held(), closure()[0], types.SimpleNamespace(), {"a": 2.0, "b": 3.0}
    module, key, queue = as_module(2.0), Held(), weakref.WeakSet([held])
    box.read, box.doubled, box.by_key = cell, Doubled(), {key: 1.0}  # type: ignore[attr-defined]

    def own() -> float:
        return own.extra if hasattr(own, "extra") else 2.0  # type: ignore[attr-defined]

    return {
        "an attribute that is missing at first": (
            lambda: getattr(plain, "extra", 1.0),
            [lambda: setattr(plain, "extra", 3.0), lambda: delattr(plain, "extra")],
        ),
        "a module's that is missing at first": (
            lambda: module.extra if hasattr(module, "extra") else 1.0,
            [lambda: setattr(module, "extra", 3.0)],
        ),
        "a function's that is missing at first": (own, [lambda: setattr(own, "extra", 3.0)]),
        "an attribute whose lack is caught": (
            lambda: caught(lambda: plain.caught),
            [lambda: setattr(plain, "caught", 3.0), lambda: delattr(plain, "caught")],
        ),
        "a global whose lack is caught": (
            lambda: caught(lambda: LATE),  # type: ignore[name-defined] # noqa: F821
            [lambda: globals().update(LATE=3.0), lambda: globals().pop("LATE")],
        ),
        "a function in the place of another": (lambda: box.read(), replaced(box)),
        "what super() finds": (
            lambda: box.doubled.read() + box.doubled.double,
            [lambda: setattr(Child, "scale", 3.0), lambda: delattr(Child, "scale")],
        ),
        "the order of a dict": (
            lambda: next(iter(rows.values())),
            [lambda: rows.update(a=rows.pop("a")), lambda: rows.update(b=rows.pop("b"))],
        ),
        "an object that is a key": (
            lambda: sum(k.scale * n for k, n in box.by_key.items()),
            [lambda: setattr(key, "scale", 3.0)],
        ),
        "an object in a weak set": (
            lambda: sum(each.scale for each in queue),
            [lambda: setattr(held, "scale", 3.0), lambda: delattr(held, "scale")],
        ),
        "a global and an attribute in a string": (
            lambda: eval("SCALE * held.scale"),
            [lambda: set_global(3.0), lambda: setattr(held, "scale", 4.0), lambda: set_global(2.0)],
        ),
        "an argument of the command line": (
            lambda: float(len(sys.argv)),
            [lambda: sys.argv.append("--last"), lambda: sys.argv.pop()],
        ),
    }


class Bits(enum.IntFlag):
    ROUND = 2
    CLIP = 4


@functools.singledispatch
def scale_of(value: Any) -> float:
    return 2.0


class ByItem:
    rows: ClassVar[dict[str, float]] = {"scale": 2.0}

    def __class_getitem__(cls, name: str) -> float:
        return cls.rows[name]


class Failing:
    """Its `__getattr__` raises what `hasattr` does not catch."""

    def __init__(self) -> None:
        self.rows = {"scale": 2.0}

    def __getattr__(self, name: str) -> float:
        return self.rows[name]


class Table(collections.UserDict):  # type: ignore[type-arg]
    pass


def module_of_users() -> types.ModuleType:
    rows = {"scale": 2.0}

    def find(name: str) -> float:
        if name in rows:
            return rows[name]
        raise AttributeError(name)

    module: Any = types.ModuleType("users_settings")
    module.rows, module.__getattr__ = rows, find
    sys.modules[module.__name__] = module
    return module


def held_elsewhere() -> dict[str, tuple[Callable[[], float], list[Callable[[], Any]]]]:
    """Return by name what reads a number that objects of Python hold, and what changes it."""
    box = types.SimpleNamespace(
        bits=Bits.ROUND, local=threading.local(), back={"scale": 2.0}, owner=Child(),
        shared=multiprocessing.Value("d", 2.0), few=array.array("d", [2.0]), value=1, extra={},
        table=Table(scale=2.0), failing=Failing(), module=module_of_users(), name="users_settings",
        rows=[float(i) for i in range(100)], long=[float(i) for i in range(9000)],
        named={f"k{i}": {"scale": 2.0} for i in range(100)}, key="k77", large=np.ones(3000),
        settings=Settings(), records=[types.SimpleNamespace(scale=2.0) for _ in range(100)],
    )  # fmt: skip
    box.scale_1 = 2.0
    box.local.scale, box.chain = 2.0, collections.ChainMap(box.extra, box.back)
    box.reference, box.proxy = weakref.ref(box.owner), types.MappingProxyType(box.back)
    parse = operator.attrgetter("settings.scale")
    view, kept = memoryview(box.large), functools.lru_cache(lambda: box.settings.scale)
    return {
        "a view of memory": (lambda: view[7], [lambda: box.large.fill(3.0)]),
        "what a helper has kept": (
            lambda: kept(),
            [
                lambda: setattr(box, "settings", Settings(3.0)),
                lambda: (setattr(box, "settings", Settings(4.0)), kept.cache_clear()),
            ],
        ),
        "a flag": (lambda: float(box.bits), [lambda: setattr(box, "bits", Bits.ROUND | Bits.CLIP)]),
        "of a thread": (lambda: box.local.scale, [lambda: setattr(box.local, "scale", 3.0)]),
        "a chain of dicts": (
            lambda: box.chain["scale"],
            [lambda: box.back.update(scale=3.0), lambda: box.extra.update(scale=4.0)],
        ),
        "a view of a dict": (lambda: box.proxy["scale"], [lambda: box.back.update(scale=5.0)]),
        "a dict of a user's": (lambda: box.table["scale"], [lambda: box.table.update(scale=3.0)]),
        "behind a weak reference": (
            lambda: box.reference().scale,
            [lambda: setattr(box.owner, "scale", 3.0)],
        ),
        "memory of several processes": (
            lambda: box.shared.value,
            [lambda: setattr(box.shared, "value", 3.0)],
        ),
        "an array of Python's": (lambda: box.few[0], [lambda: box.few.__setitem__(0, 3.0)]),
        "a dispatch": (
            lambda: scale_of(box.value),
            [lambda: scale_of.register(int, lambda value: value * 7.0)],
        ),
        "items of a class": (lambda: ByItem["scale"], [lambda: ByItem.rows.update(scale=3.0)]),
        "a __getattr__ that raises KeyError": (
            lambda: box.failing.scale,
            [lambda: box.failing.rows.update(scale=3.0)],
        ),
        "a __getattr__ of a module": (
            lambda: box.module.scale,
            [lambda: box.module.rows.update(scale=3.0)],
        ),
        "a module by its name": (
            lambda: sys.modules[box.name].scale,
            [lambda: box.module.rows.update(scale=4.0)],
        ),
        "an attrgetter": (lambda: parse(box), [lambda: setattr(box, "settings", Settings(3.0))]),
        "an attribute by a name that is put together": (
            lambda: getattr(box, f"scale_{box.value}"),
            [lambda: setattr(box, "scale_1", 3.0), lambda: setattr(box, "scale_1", 4.0)],
        ),
        "all attributes": (
            lambda: sum(vars(box.owner).values()),
            [lambda: setattr(box.owner, "more", 3.0), lambda: setattr(box.owner, "more", 4.0)],
        ),
        "fields of a record": (
            lambda: sum(dataclasses.asdict(box.settings).values()),
            [lambda: setattr(box, "settings", Settings(4.0))],
        ),
        "a long list": (lambda: box.rows[70], [lambda: box.rows.__setitem__(70, 3.0)]),
        "a very long list": (lambda: box.long[70], [lambda: box.long.__setitem__(70, 3.0)]),
        "a long table of dicts": (
            lambda: box.named[box.key]["scale"],
            [lambda: box.named["k77"].update(scale=3.0), lambda: setattr(box, "key", "k3")],
        ),
        "a long list of records": (
            lambda: box.records[70].scale,
            [lambda: setattr(box.records[70], "scale", 3.0)],
        ),
        "a large array": (lambda: float(box.large[7]), [lambda: box.large.fill(3.0)]),
    }


class Rows(dict):  # type: ignore[type-arg]
    def __missing__(self, name: str) -> float:
        return self.scale  # type: ignore[attr-defined,no-any-return]

    def scaled(self) -> float:
        return sum(self.values()) * self.scale  # type: ignore[attr-defined,no-any-return]


class Ordered(collections.OrderedDict):  # type: ignore[type-arg]
    scaled = Rows.scaled


class Items(list):  # type: ignore[type-arg]
    pass


class Pair(tuple):
    pass


class Names(set):  # type: ignore[type-arg]
    pass


class Marked(np.ndarray):  # type: ignore[type-arg]
    pass


class Made(Held):
    def __new__(cls) -> Any:
        made = super().__new__(cls)
        made.scale = cls.extra  # type: ignore[attr-defined]
        return made


class Point:
    __match_args__ = ("scale",)
    scale: float


def named_by_strings() -> dict[str, tuple[Callable[[], float], list[Callable[[], Any]]]]:
    """Return by name what reads an attribute by a string, and what changes it."""
    box, point = types.SimpleNamespace(scale=2.0, t=1.0, path="inner.t"), Point()
    box.inner, point.scale = types.SimpleNamespace(t=2.0), 2.0
    change, change_inner = partial(setattr, box, "scale", 3.0), partial(setattr, box.inner, "t", 3)

    def by_keyword() -> float:
        match box:
            case types.SimpleNamespace(scale=scale):
                return float(scale)
        return 0.0

    def by_literal() -> float:
        match point:
            case Point(scale=3.0):
                return 7.0
            case Point(extra=extra):
                return float(extra)
        return 2.0

    def by_place() -> float:
        match point:
            case Point(scale):
                return scale

    changes_of_point = [partial(setattr, point, name, 3.0) for name in ("extra", "scale")]
    return {
        "a tuple": (lambda: sum([getattr(box, n) for n in ("scale", "t")]), [change]),
        "a map of a tuple": (lambda: sum(map(box.__getattribute__, ("scale", "t"))), [change]),
        "a tuple of missing names": (
            lambda: 2.0 + any(hasattr(box, name) for name in ("u", "v")),
            [partial(setattr, box, "v", 3.0)],
        ),
        "dots in data": (
            lambda: functools.reduce(getattr, box.path.split("."), box),
            [change_inner],
        ),
        "spaces": (lambda: sum(getattr(box, n) for n in "scale t".split()), [change]),  # noqa: SIM905
        "text that is run": (lambda box=box: eval(f"box.{'scale'} + len(box.path)"), [change]),
        "a pattern's keyword": (by_keyword, [change, partial(delattr, box, "scale")]),
        "a pattern's literal": (by_literal, changes_of_point),
        "a pattern's place": (by_place, changes_of_point),
    }


def held_beside_items() -> dict[str, tuple[Callable[[], float], list[Callable[[], Any]]]]:
    """Return by name what reads an attribute of a container, or items by a kept method or view."""
    made: list[Any] = [Rows(a=1.0), Ordered(a=1.0), Items([1.0]), Pair([1.0]), Names([1.0])]
    made.append(np.ones(1).view(Marked))
    for each in made:
        each.scale = 2.0
    rows, ordered = made[:2]
    table, items = {"scale": 2.0}, [2.0]
    get, take, views, length = table.get, table.__getitem__, table.values(), items.__len__
    fill = [partial(table.update, scale=3.0), partial(table.update, extra=4.0)]
    Made.extra, builtins.EXTRA = 2.0, 2.0  # type: ignore[attr-defined]
    return {
        "a class's in __new__": (lambda: Made().scale, [partial(setattr, Made, "extra", 3.0)]),
        "a builtin of a program": (
            lambda: EXTRA,  # type: ignore[name-defined]  # noqa: F821
            [partial(setattr, builtins, "EXTRA", 3.0)],
        ),
        **{
            f"an attribute of {type(each).__name__}": (
                lambda each=each: each.scale,
                [partial(setattr, each, "scale", 3.0)],
            )
            for each in made
        },
        "a method of Rows": (rows.scaled, [partial(setattr, rows, "scale", 3.0)]),
        "a method of Ordered": (
            lambda: ordered.scaled(),
            [partial(setattr, ordered, "scale", 3.0), partial(ordered.update, b=2.0)],
        ),
        "what is missing": (
            lambda: rows["x"],
            [partial(setattr, rows, "scale", 3.0), partial(rows.update, x=5.0)],
        ),
        "kept methods": (lambda: get("scale", 0.0) + take("scale"), fill),
        "a kept view": (lambda: sum(views), fill),
        "a kept length": (lambda: float(length()), [partial(items.append, 3.0)]),
    }


def all_elsewhere() -> dict[str, tuple[Callable[[], float], list[Callable[[], Any]]]]:
    return {**held_elsewhere(), **named_by_strings(), **held_beside_items()}


@pytest.mark.parametrize("way", all_elsewhere())
def test_what_other_objects_hold_is_followed(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "users_settings", raising=False)
    read, changes = all_elsewhere()[way]
    f = function(read)
    for change in (lambda: None, *changes):
        change()
        np.testing.assert_allclose(f(X), X * np.float32(read()), rtol=1e-6)


def test_a_dict_that_another_thread_changes_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    rows: dict[Any, float] = {("scale",): 2.0, **{(str(i),): 1.0 for i in range(40)}}
    names = {"scale", *map(str, range(40))}
    f = function(lambda: rows["scale",] if "scale" in names else 0.0)
    done = threading.Event()

    def change() -> None:
        while not done.is_set():
            for i in range(40, 80):
                rows[str(i),], _ = 1.0, names.add(str(i))
            for i in range(40, 80):
                del rows[str(i),]
                names.discard(str(i))

    thread = threading.Thread(target=change)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        thread.start()
        for _ in range(20):
            np.testing.assert_array_equal(f(X), X * 2)
    finally:
        done.set()
        thread.join()
        sys.setswitchinterval(interval)


def module_with_buffer(count: int) -> Any:
    torch: Any = pytest.importorskip("torch")
    module = torch.nn.Module()
    module.register_buffer("scale", torch.full((count, 3), 2.0))
    return module


TAKEN: dict[str, Callable[[Any], Any]] = {  # numbers and tensors of a buffer
    "a row": lambda m: m.scale[0],
    "a mean": lambda m: m.scale.mean(0),
    "a number": lambda m: m.scale[0, 0].item(),
    "a branch": lambda m: 2.0 if m.scale[0, 0] < 3 else 5.0,
}


@pytest.mark.needs("torch")
@pytest.mark.parametrize("count", [1, 1000])
@pytest.mark.parametrize("way", TAKEN)
def test_what_is_taken_of_a_buffer_is_followed(way: str, count: int) -> None:
    module, take = module_with_buffer(count), TAKEN[way]
    f = xg.convert(class_of(lambda: take(module)))
    for value in (2.0, 5.0, 2.0):
        module.scale.fill_(value)
        for slope in slope_of(f):
            np.testing.assert_allclose(slope, value + 0 * X, rtol=1e-6)
    module.scale = module.scale + 3.0
    np.testing.assert_allclose(slope_of(f)[1], 5.0 + 0 * X, rtol=1e-6)


def held_by_torch() -> dict[str, tuple[Callable[[], float], list[Callable[[], Any]]]]:
    torch: Any = pytest.importorskip("torch")
    layers, linear = torch.nn.Sequential(torch.nn.ReLU()), torch.nn.Linear(1, 1)
    weights = torch.nn.ParameterList([torch.ones(1)])
    linear.weight.scale = 2.0
    optimizer = torch.optim.SGD(linear.parameters(), lr=1.0)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    optimizer.step()
    cudnn, detecting = torch.backends.cudnn, torch.autograd.set_detect_anomaly

    def freeze() -> None:
        linear.weight.requires_grad_(False)

    return {
        "how many layers there are": (
            lambda: float(len(layers)),
            [lambda: layers.append(torch.nn.ReLU())],
        ),
        "a parameter in a list": (
            lambda: float(weights[0]),
            [lambda: weights[0].data.fill_(3.0)],
        ),
        "parameters": (
            lambda: float(sum(each.detach().sum() for each in linear.parameters())),
            [lambda: linear.weight.data.fill_(3.0)],
        ),
        "an attribute that a module has not at first": (
            lambda: getattr(linear, "extra", 1.0),
            [lambda: setattr(linear, "extra", 3.0)],
        ),
        "a learning rate": (lambda: schedule.get_last_lr()[0], [schedule.step]),
        "an attribute of a weight": (
            lambda: linear.weight.scale,
            [lambda: setattr(linear.weight, "scale", 3.0)],
        ),
        "whether a weight is frozen": (
            lambda: 2.0 if linear.weight.requires_grad else 1.0,
            [freeze],
        ),
        "a setting of a backend": (
            lambda: 2.0 if torch.backends.cudnn.deterministic else 1.0,
            [lambda v=v: setattr(cudnn, "deterministic", v) for v in (True, False)],
        ),
        "a setting by a function": (
            lambda: 2.0 if torch.is_anomaly_enabled() else 1.0,
            [lambda: detecting(True), lambda: detecting(False)],
        ),
    }


@pytest.mark.needs("torch")
@pytest.mark.filterwarnings("ignore::multigrad.errors.NativeRuleWarning", "ignore:Anomaly")
@pytest.mark.parametrize("way", range(9))
def test_what_objects_of_a_library_hold_is_followed(way: int) -> None:
    read, changes = [*held_by_torch().values()][way]
    f = xg.convert(class_of(read))
    for change in (lambda: None, *changes):
        change()
        for slope in slope_of(f):
            np.testing.assert_allclose(slope, read() + 0 * X, rtol=1e-6)


@pytest.mark.needs("keras")
@pytest.mark.parametrize("count", [1, 5000])
@pytest.mark.parametrize("take", [lambda v: float(v[0]), lambda v: v.value[0], lambda v: v[0]])
def test_a_variable_of_keras_is_followed(
    keras: Any, count: int, take: Callable[[Any], Any]
) -> None:
    variable = keras.Variable(np.full(count, 2.0, np.float32))
    f, x = xg.custom_gradient(lambda x: (x * take(variable), lambda g: g)), keras.ops.array(X)
    for value in (2.0, 5.0, 2.0):
        variable.assign(np.full(count, value, np.float32))
        np.testing.assert_allclose(keras.ops.convert_to_numpy(f(x)), X * value, rtol=1e-6)


@pytest.mark.filterwarnings("ignore::multigrad.errors.NativeRuleWarning")
@pytest.mark.parametrize("exists", [lambda path: path.exists(), lambda path: os.path.exists(path)])
def test_code_that_asks_for_a_file_runs_as_written(
    tmp_path: Any, exists: Any, backend: Any
) -> None:
    path = tmp_path / "scale"
    f = function(lambda: 2.0 if exists(path) else 1.0)
    for value in (1.0, 2.0):
        np.testing.assert_array_equal(pull(backend, f, (X,))[1][0], 3 * value + 0 * X)
        path.touch()


@pytest.mark.needs("torch")
def test_a_tensor_that_keeps_changing_costs_no_captures() -> None:
    module = module_with_buffer(1)
    f = xg.convert(class_of(lambda: module.scale[0]))
    for step in range(40):
        module.scale.fill_(float(step))
        np.testing.assert_allclose(slope_of(f)[1], step + 0 * X, rtol=1e-6)
    assert captures_of(f) < 20


@pytest.mark.needs("torch")
@pytest.mark.usefixtures("torch_compiles")
def test_compiled_code_guards_on_a_method_of_an_object() -> None:
    torch: Any = pytest.importorskip("torch")
    box = types.SimpleNamespace(wild=Wild(2.0))
    torch._dynamo.reset()
    compiled = torch.compile(function(lambda: box.wild.scale), backend="eager", fullgraph=True)
    for value in (2.0, 3.0):
        box.wild.scale = value
        np.testing.assert_array_equal(compiled(torch.tensor(X)), value * X)


def test_an_open_form_is_compared_where_results_are_rounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MULTIGRAD_PROVE", "all")
    held.scale = 1.0
    f = xg.function(lambda x: np.tanh(x), lambda g, x: g / (1 + (held.scale * x) ** 2) / held.scale)
    for _ in range(6):
        held.scale *= 0.7
        expected = 1 / (1 + (held.scale * X) ** 2) / held.scale
        np.testing.assert_allclose(xg.vjp(f, X)[1](1 + 0 * X)[0], expected, rtol=1e-5)
    del held.scale


@once_or_often
@pytest.mark.parametrize("way", [*other_ways(), *missing_or_of_another_kind()])
def test_it_is_followed(way: str, calls: int) -> None:
    read, changes = {**other_ways(), **missing_or_of_another_kind()}[way]
    f = function(read)
    for change in (lambda: None, *changes):
        change()
        for _ in range(calls):
            np.testing.assert_allclose(f(X), X * np.float32(read()), rtol=1e-6)


def test_a_guard_runs_no_property(unproven: None) -> None:
    hidden = Hidden()
    f = function(lambda: hidden.scale)
    f(X)
    count = len(looks.items)
    for _ in range(8):
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


def test_modules_that_are_imported_or_looked_up_in_the_function_are_followed(
    tmp_path: Any, monkeypatch: Any
) -> None:
    package = tmp_path / "package_of_reads"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "settings.py").write_text("SCALE = 2.0\n")
    (package / "code.py").write_text(
        "import importlib, sys\n"
        "def beside(x):\n    from . import settings\n    return x * settings.SCALE\n"
        "def of_it(x):\n    from .settings import SCALE\n    return x * SCALE\n"
        "def by_name(x):\n"
        "    return x * importlib.import_module('package_of_reads.settings').SCALE\n"
        "def loaded(x):\n    return x * sys.modules['package_of_reads.settings'].SCALE\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    code, settings = (
        importlib.import_module(f"package_of_reads.{name}") for name in ("code", "settings")
    )
    for each in (code.beside, code.of_it, code.by_name, code.loaded):
        f = xg.function(each)
        for scale in (2.0, 5.0):
            monkeypatch.setattr(settings, "SCALE", scale)
            np.testing.assert_array_equal(f(X), X * np.float32(scale))


def test_a_module_that_is_loaded_again_is_followed(tmp_path: Any, monkeypatch: Any) -> None:
    file = tmp_path / "module_of_reads.py"
    file.write_text("SCALE = 2.0\ndef scaled(x):\n    return x * SCALE\n")
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("module_of_reads")
    f = xg.function(lambda x: module.scaled(x))
    np.testing.assert_array_equal(f(X), 2 * X)
    file.write_text("SCALE = 3.0\ndef scaled(x):\n    return x * SCALE + 10\n")
    importlib.invalidate_caches()
    importlib.reload(module)
    np.testing.assert_array_equal(f(X), 3 * X + 10)
