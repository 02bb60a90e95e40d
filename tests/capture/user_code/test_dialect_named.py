"""Whose methods a rule means: told by what it is called with, by its code, or by its author."""

from __future__ import annotations

import functools
import sys
import textwrap
import types
from typing import Any

import numpy as np
import pytest

import multigrad as xg

from ...harness.own_library import assert_as_in

pytestmark = pytest.mark.needs("torch", "jax")
G = np.array([1.0, -2.0, 0.5, 4.0], np.float32)
IMPORTS = "import jax\nimport numpy as np\nimport torch\n"


def module_of(source: str, imports: str = IMPORTS) -> Any:
    """Return a module of a user's, whose file imports several libraries."""
    made = types.ModuleType("users_own")
    code = compile(imports + textwrap.dedent(source), "users_own.py", "exec")
    exec(code, made.__dict__)  # noqa: S102  (the test's own text)
    return made


def torch_array(array: Any) -> Any:
    import torch

    return torch.from_numpy(array)


def gradient(rule: Any) -> Any:
    """Return the rule's gradient for 1 everywhere, of NumPy arrays."""
    return xg.get(rule)(None, np.ones_like(G), G) if not callable(rule) else rule


SCALED = """
    def scaled(ctx, g, t):
        return g * t.std()
"""


def test_a_rule_without_a_call_whose_methods_may_be_those_of_two_libraries_asks_which() -> None:
    rule = xg.register("scaled_by_two", override=True)(module_of(SCALED).scaled)
    with pytest.raises(xg.errors.RuleError, match=r"'scaled_by_two'.*jax and torch.*dialect='"):
        rule.to_dict()


@pytest.mark.parametrize(("dialect", "ddof"), [("torch", 1), ("jax", 0), ("numpy", 0), ("xp", 0)])
def test_an_author_names_the_library(dialect: str, ddof: int) -> None:
    scaled = module_of(SCALED).scaled
    rule = xg.register("scaled_named", override=True, native=False, dialect=dialect)(scaled)
    found = rule(None, np.ones_like(G), G)
    np.testing.assert_allclose(found, np.full_like(G, G.std(ddof=ddof)), rtol=1e-6)


def test_one_function_under_two_names_keeps_both_its_libraries() -> None:
    scaled = module_of(SCALED).scaled
    found = []
    for dialect in ("torch", "numpy"):
        rule = xg.register(f"scaled_{dialect}", override=True, dialect=dialect)(scaled)
        found.append(float(rule(None, np.ones_like(G), G)[0]))
        xg.unregister(f"scaled_{dialect}")
    np.testing.assert_allclose(found, [G.std(ddof=1), G.std()], rtol=1e-6)


@pytest.mark.parametrize(
    "source",
    [
        "def scaled(ctx, g, t):\n    return g * t.std() * torch.ones(())\n",
        "def scaled(ctx, g: torch.Tensor, t):\n    return g * t.std()\n",
        (
            "def scaled(ctx, g, t):\n    return g * t.std() * float(np.float32(1)) + 0 * "
            "torch.relu(g)\n"
        ),
        # Functions of an installed library, which imports torch alone.
        "from of_torch import same\ndef scaled(ctx, g, t):\n    return g * same(t).std()\n",
        "import of_torch\ndef scaled(ctx, g, t):\n    return g * of_torch.inner.same(t).std()\n",
    ],
)
def test_what_a_rule_mentions_decides(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    library = module_of("def same(t):\n    return t\n", "import torch\n__name__ = 'of_torch'\n")
    library.inner, library.__file__ = library, "/site-packages/of_torch.py"
    monkeypatch.setitem(sys.modules, "of_torch", library)
    rule = xg.compose(module_of(source).scaled)
    found = rule(None, np.ones_like(G), G)
    np.testing.assert_allclose(found, np.full_like(G, G.std(ddof=1)), rtol=1e-6)


@pytest.mark.parametrize("number", ["np.pi", "np.sqrt(2)", "np.float64(2)"])
def test_numbers_of_numpys_are_no_decision_for_its_methods(number: str) -> None:
    source = f"def f(ctx, g, t):\n    return g * t.std() * {number}\n"
    rule = xg.compose(module_of(source, "import numpy as np\nimport torch\n").f)
    for array, ddof in ((torch_array, 1), (np.asarray, 0)):
        expected = np.full_like(G, G.std(ddof=ddof) * eval(number))
        found = np.asarray(rule(None, array(np.ones_like(G)), array(G)))
        np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_methods_that_all_libraries_share_need_no_name() -> None:
    rule = xg.compose(module_of("def f(ctx, g, t):\n    return g * t.clip(0, 1).mean()\n").f)
    expected = np.full_like(G, G.clip(0, 1).mean())
    np.testing.assert_allclose(rule(None, np.ones_like(G), G), expected, rtol=1e-6)


def test_a_custom_gradient_and_a_function_name_their_library() -> None:
    users = module_of(
        """
        def standard(x):
            return x * 1.0, lambda up: up * x.std()

        def forward(x):
            return x / x.std()
        """
    )
    _, pullback = xg.vjp(xg.custom_gradient(users.standard), G)
    np.testing.assert_allclose(pullback(np.ones_like(G))[0], np.full_like(G, G.std()), rtol=1e-6)
    np.testing.assert_allclose(xg.function(users.forward)(G), G / G.std(), rtol=1e-6)
    _, pullback = xg.vjp(xg.custom_gradient(users.standard, dialect="torch"), G)
    expected = np.full_like(G, G.std(ddof=1))
    np.testing.assert_allclose(pullback(np.ones_like(G))[0], expected, rtol=1e-6)
    y = xg.function(users.forward, dialect="torch")(G)
    np.testing.assert_allclose(y, G / G.std(ddof=1), rtol=1e-6)


@pytest.mark.parametrize(
    "decorate", [functools.partial(xg.register, "misnamed"), xg.custom_gradient, xg.function]
)
def test_a_library_that_is_none_is_an_error(decorate: Any) -> None:
    with pytest.raises(TypeError, match=r"no dialect named 'troch'; did you mean 'torch'"):
        decorate(dialect="troch")(lambda x: x) if decorate is not xg.function else xg.function(
            lambda x: x, dialect="troch"
        )


def test_a_class_of_torch_is_torchs_whatever_its_file_imports(backend: Any) -> None:
    users = module_of(
        """
        class Std(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x * x.std() / np.sqrt(1)

            @staticmethod
            def backward(ctx, g):
                return g * g.std()
        """
    )
    of = xg.from_autograd_function(users.Std)
    assert_as_in("torch", users.Std.apply, G, of=of, backend=backend)


def test_a_custom_function_of_jax_is_jaxs_whatever_its_file_imports(backend: Any) -> None:
    users = module_of(
        """
        def forward(x):
            return x * x.std(), None

        def backward(kept, g):
            return (g * g.std(),)

        standard = jax.custom_vjp(lambda x: x * x.std())
        standard.defvjp(forward, backward)
        """,
        "import torch\nimport jax\n",
    )
    of = xg.from_custom_vjp(users.standard)
    assert_as_in("jax", users.standard, G, of=of, backend=backend)
