"""`xg.show` and `xg.source`: what a rule means as text, and the code that runs, for reading and
pasting.
"""

from __future__ import annotations

import ast
import linecache
import re
import traceback
from typing import Any

import numpy as np
import pytest

import multigrad as xg
from multigrad import xp
from multigrad.core.rules.rule_names import OWN
from multigrad.core.support.tracebacks import FULL, VARIABLE
from multigrad.errors import RuleTypeError

from ..harness.ejecting import BY_RANK

LIBRARY = [name for name in xg.rules() if xg.get(name).__module__.startswith(OWN)]
X = np.array([[-1.0, 0.25], [0.75, 2.0]], np.float32)
G = np.array([[1.0, -2.0], [3.0, 4.0]], np.float32)


# --- show -----------------------------------------------------------------------------------------


def test_every_rule_shows_its_inputs_and_result(subtests: pytest.Subtests) -> None:
    for name in LIBRARY:
        with subtests.test(name):
            lines = xg.show(name).splitlines()
            params = [p for p, default in xg.get(name).params.items() if isinstance(default, float)]
            assert lines[0].startswith(f"{name}(grad_out: T[...], tin: T[...]")
            assert all(f"{param}: weak float" in lines[0] for param in params)
            assert lines[-1].startswith("  return ")


halved = xg.convert(lambda x: x / 2.0).apply


def test_a_functions_call_is_a_line_of_the_users_by_each_of_its_names() -> None:
    twice = xg.convert(lambda x: halved(halved(x)))
    twice(np.ones(3))
    assert set(re.findall(r"\w+\.py", xg.show(twice))) == {"test_show_source.py"}


def test_show_names_ops_types_and_the_users_lines() -> None:
    def rule(ctx: Any, grad_out: Any, tin: Any, width: float = 1.0) -> Any:
        return grad_out * (abs(tin) < width)

    text = xg.show(xg.register("hat")(rule))
    assert "hat(grad_out: T[...], tin: T[...], width: weak float)" in text
    for words in ("T[...] = abs(tin)", "bool[...] = lt(%1, width)", "# test_show_source.py:"):
        assert words in text


def test_same_meaning_shows_the_same_graph() -> None:
    def first(ctx: Any, grad_out: Any, tin: Any) -> Any:
        return grad_out * xp.where(tin > 0, 1.0, 0.0) * 1.0

    def second(ctx: Any, g: Any, x: Any) -> Any:
        mask = x > 0
        return g * np.where(mask, 1.0, 0.0)

    shown = [xg.show(xg.register("same", override=True)(rule)) for rule in (first, second)]
    without_lines = [re.sub(r"  # .*", "", text) for text in shown]
    assert without_lines[0] == without_lines[1]


def test_show_of_an_activation_shows_forward_and_backward() -> None:
    text = xg.show(xg.activation("Tanh"))
    assert "Tanh(tin: T[...])" in text and "grad_out" in text.partition("\n\n")[2]
    text = xg.show(xg.activation("Tanh", "rectangular"))
    assert "= tanh(tin)" in text and "rectangular(grad_out" in text


def test_an_activation_that_follows_the_rule_in_force_shows_and_writes_out_that_rule() -> None:
    act, own = xg.activation("Heaviside"), xg.activation("Heaviside", rule="arctan")
    with xg.use("arctan"):
        shown, written = xg.show(act), xg.source(act, "numpy", standalone=True)
    assert shown == xg.show(own) != xg.show(act)
    assert written == xg.source(own, "numpy", standalone=True)
    with pytest.raises(xg.RuleError, match=r"no rule of its own; give .*under\('Heaviside'\)"):
        xg.lower(act, "numpy")


@pytest.mark.needs("torch")
def test_show_of_a_module_shows_what_it_holds() -> None:
    assert "rectangular(grad_out" in xg.show(xg.Activation("Tanh", "rectangular"))


def test_show_of_a_composed_rule_is_one_graph() -> None:
    text = xg.show(xg.compose("scale", "clip_norm"))
    assert text.startswith("scale → clip_norm\n\ncompose(scale, clip_norm)(")
    assert "norm" in text and "mul" in text


def test_show_of_a_rule_that_branches_on_a_param_takes_its_default() -> None:
    def rule(ctx: Any, grad_out: Any, tin: Any, width: float = -1.0) -> Any:
        return grad_out if width > 0 else grad_out * xp.exp(tin)

    made = xg.register("branching")(rule)
    assert "exp(tin)" in xg.show(made)
    assert "exp" not in xg.show(made.with_params(width=1.0))


def test_show_of_a_rule_that_needs_its_inputs_rank_says_so() -> None:
    made = xg.register("ranked")(lambda ctx, g, x: g / x.ndim)
    assert "one graph per ndim of its input, this one for ndim 2" in xg.show(made)
    made(None, np.ones(3), np.ones(3))
    assert "one graph per ndim of its input, this one the last" in xg.show(made)


def test_show_of_a_native_rule_says_that_it_has_no_graph() -> None:
    made = xg.register("as_it_is", native=True)(lambda ctx, g, x: g)
    assert xg.show(made) == "as_it_is: runs as written (native=True), so it has no graph"


# --- source ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("forward", ["Linear", "Heaviside"])
def test_every_rule_has_source_on_every_backend(
    forward: str, backend: Any, subtests: pytest.Subtests
) -> None:
    for name in sorted({*LIBRARY} - BY_RANK):
        with subtests.test(name):
            source = xg.source(name, backend.name, forward=forward)
            ast.parse(source)
            for param, default in xg.get(name).params.items():
                assert not isinstance(default, float) or param in source
            assert source == xg.source(xg.get(name), backend.name, forward=forward)


def test_what_depends_on_the_rank_has_no_source_of_its_own(backend: Any) -> None:
    assert "optax.centralize" in BY_RANK
    for name in BY_RANK:
        with pytest.raises(xg.TraceError, match=f"rule '{name}' needs ndim of its input"):
            xg.source(name, backend.name)


def test_source_of_the_true_derivative(backend: Any) -> None:
    assert "grad_out" in xg.source(None, backend.name, forward="Tanh")


def find_namespace(native: Any) -> dict[str, Any]:
    """Give the names that emitted code was written for: the globals of its functions."""
    waiting, seen = [native], []
    while waiting:
        found = waiting.pop()
        code = getattr(found, "__code__", None)
        if code is not None and code.co_filename.startswith("<multigrad rule"):
            return found.__globals__
        seen.append(found)
        steps = (getattr(found, name, None) for name in ("__wrapped__", "forward", "eager", "fun"))
        waiting += [step for step in steps if callable(step) and step not in seen]
    raise AssertionError(f"no emitted function in {native!r}")


@pytest.mark.parametrize(
    ("name", "forward"),
    [("triangular", "Heaviside"), ("clip_norm", "ReLU"), ("rectangular", "GELU")],
)
def test_source_runs_when_pasted(name: str, forward: str, backend: Any) -> None:
    native = xg.lower(name, backend.name, forward=forward)
    source = xg.source(name, backend.name, forward=forward)
    namespace = dict(find_namespace(native))
    exec(compile(source, "<pasted>", "exec"), namespace)  # noqa: S102  (what a reader would do)
    wanted = backend.vjp(native, X, G)
    if backend.name == "numpy":
        output = namespace["forward"](X)
        numbers = native.defaults
        if "prepare" in namespace:
            numbers = (*numbers, *namespace["prepare"](X.dtype.type, *numbers))
        residuals = namespace["keep"](X, output, *numbers)
        given = output, namespace["backward"](G, *residuals, *numbers)
    else:
        definitions = (ast.ClassDef, ast.FunctionDef)
        names = [node.name for node in ast.parse(source).body if isinstance(node, definitions)]
        (public,) = [n for n in names if n.endswith(f"under_{forward}")]
        given = backend.vjp(namespace[public], X, G)
    for a, b in zip(given, wanted, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_number_that_is_a_tensor_stands_in_the_code_as_a_number(backend: Any) -> None:
    width = backend.array(np.array(2.0, np.float32))
    rule = xg.get("triangular").with_params(width=width)
    assert "width=2.0" in xg.source(rule, backend.name, standalone=True)
    same = xg.get("triangular").with_params(width=2.0)
    assert xg.source(rule, backend.name) == xg.source(same, backend.name)
    given = backend.vjp(xg.lower(rule, backend.name), X, G)
    wanted = backend.vjp(xg.lower(same, backend.name), X, G)
    for a, b in zip(given, wanted, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.needs("jax")
def test_a_number_that_is_known_in_the_traced_code_alone_is_refused_by_name() -> None:
    import jax

    def lowered(width: Any) -> Any:
        return xg.lower(xg.get("triangular").with_params(width=width), "jax")(width)

    with pytest.raises(RuleTypeError, match="param 'width' is known when the traced code runs"):
        jax.jit(lowered)(2.0)


def test_a_whole_traceback_shows_the_emitted_line(
    backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, FULL)
    rule = xg.register("broken_later", native=False)(
        lambda ctx, g, x: g * xp.expand_dims(xp.sum(x, axis=0), 1)
    )
    with pytest.raises(Exception) as raised:  # each framework has its own
        rule(None, backend.array(np.ones((2, 3), np.float32)), backend.array(np.ones((2, 3), "f4")))
    frames = traceback.extract_tb(raised.value.__traceback__)
    emitted = [frame for frame in frames if frame.filename.startswith("<multigrad rule broken_lat")]
    assert emitted and "expand_dims" in (emitted[0].line or "")
    assert linecache.getline(emitted[0].filename, emitted[0].lineno or 0).strip() == emitted[0].line


def test_show_of_a_function_says_what_it_is_written_in_and_how_it_was_captured() -> None:
    @xg.custom_gradient
    def doubled(x: Any) -> Any:
        return np.exp(x) * 2.0, lambda upstream: upstream

    doubled(np.ones(3))
    assert xg.show(doubled).splitlines()[0].endswith("# written in numpy; captured by protocol")
