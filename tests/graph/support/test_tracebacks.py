"""A mistake of the user's shows the user's line, and at most three frames of ours."""

from __future__ import annotations

import importlib
import os
import pickle
import re
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import multigrad as xg
from multigrad.core.support.tracebacks import VARIABLE, shorten

OURS = re.compile(rf'File "(?:{Path(xg.__file__).parent}|[^"]*multigrad_\w+/|<multigrad)')
X = np.linspace(-1.0, 1.0, 5)


def broken(x: Any) -> Any:
    return x * undefined  # noqa: F821  # of a helper


def square(x: Any) -> Any:
    return x * x


def pair_of(backward: Callable[..., Any], **options: Any) -> Any:
    return xg.function(square, backward, **options)


def raise_from_another(x: Any) -> Any:
    try:
        return {}["missing"]
    except KeyError as error:
        raise ValueError("of the user") from error


def check_without_a_graph() -> None:
    xg.check(pair_of(lambda g, x: broken(g)), X)


def pull_back() -> None:
    pull = xg.vjp(pair_of(lambda g, x: g), X)[1]
    pull(np.ones(3))


def enter() -> None:
    with xg.use("triangluar"):
        pass


def register() -> None:
    @xg.register("has_no_tin")
    def rule(g: Any, x: Any) -> Any:
        return g


def of_unlike_sizes(x: Any) -> Any:
    y = x * 2
    z = np.matmul(y, np.ones(9))
    return z + y


# Each, and the text of the user's line.
MISTAKES: dict[str, tuple[Callable[[], Any], str]] = {
    "number of gradients": (lambda: pair_of(lambda g, x: (g, g))(X), "(g, g))(X)"),
    "shape of a gradient": (lambda: pair_of(lambda g, x: g.sum())(X), "g.sum())(X)"),
    "a name in forward": (lambda: xg.function(broken)(X), "x * undefined"),
    "a name in backward": (
        lambda: xg.vjp(pair_of(lambda g, x: broken(g)), X)[1](X),
        "x * undefined",
    ),
    "a type in forward": (lambda: xg.function(lambda x: x + "a")(X), 'x + "a"'),
    "an attribute": (lambda: xg.function(lambda x: np.no_such(x))(X), "np.no_such(x)"),
    "raised": (lambda: xg.function(raise_from_another)(X), 'raise ValueError("of the user")'),
    "missing argument": (lambda: xg.function(lambda x, y: x * y)(X), "lambda x, y: x * y)(X)"),
    "rule by name": (lambda: xg.activation("Sign", "triangluar")(X), '"triangluar")(X)'),
    "rule in use": (enter, 'xg.use("triangluar")'),
    "rule to lower": (lambda: xg.lower("triangluar", "numpy"), '"triangluar", "numpy"'),
    "backend": (lambda: xg.lower("triangular", "nympy"), '"nympy"'),
    "range": (lambda: xg.activation("Sign", "triangular", {"width": -1.0}), '"width": -1.0'),
    "rule's result": (lambda: xg.activation("Sign", lambda c, g, t: g.sum())(X), "g.sum())(X)"),
    "rule's signature": (register, '@xg.register("has_no_tin")'),
    "dialect": (lambda: xg.function(square, dialect="pytorch"), 'dialect="pytorch"'),
    "cotangent": (pull_back, "pull(np.ones(3))"),
    "check": (check_without_a_graph, "x * undefined"),
    "a kernel in forward": (lambda: xg.function(of_unlike_sizes)(X), "z = np.matmul(y, np.ones"),
    "a kernel in backward": (
        lambda: xg.vjp(pair_of(lambda g, x: np.matmul(g, np.ones(9))), X)[1](X),
        "np.matmul(g, np.ones(9))",
    ),
    "range of an estimator": (lambda: xg.estimators.lsq(X, -1.0), "lsq(X, -1.0)"),
    "shape for an estimator": (lambda: xg.estimators.lsq(X, np.ones(3)), "lsq(X, np.ones(3))"),
    "argument of an estimator": (lambda: xg.estimators.lsq(X), "xg.estimators.lsq(X)"),
    "conversion": (lambda: xg.convert(3), "xg.convert(3)"),
}


def text_of(mistake: Callable[[], Any]) -> str:
    try:
        mistake()
    except Exception as error:  # noqa: BLE001  # whichever it is
        return "".join(traceback.format_exception(error))
    raise AssertionError("no error")


def assert_short(mistake: Callable[[], Any], line: str) -> None:
    text = text_of(mistake)
    assert len(OURS.findall(text)) <= 3, text
    assert line in text, text


@pytest.mark.parametrize("name", MISTAKES)
@pytest.mark.filterwarnings("ignore::multigrad.errors.NativeRuleWarning")
def test_a_mistake_shows_the_user_s_line_and_few_of_ours(name: str) -> None:
    assert_short(*MISTAKES[name])


@pytest.mark.backends("torch", "jax", "tensorflow")
@pytest.mark.filterwarnings("ignore::multigrad.errors.NativeRuleWarning")
def test_a_mistake_in_a_backward_that_a_framework_calls_does_so_too(backend: Any) -> None:
    native = pair_of(lambda g, x: broken(g), native=True)
    assert_short(lambda: backend.vjp(native, X, X), "x * undefined")
    assert_short(lambda: backend.vjp(pair_of(lambda g, x: (g, g)), X, X), "backend.vjp(pair_of")


@pytest.mark.needs("torch")
def test_emitted_code_that_raises_within_a_framework_tells_the_user_s_line() -> None:
    torch = importlib.import_module("torch")

    class Broken(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 2

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g.view(99)

    x = torch.ones(4, requires_grad=True)
    converted = xg.convert(Broken)
    assert_short(lambda: converted.apply(x).sum().backward(), ": return g.view(99)")
    text = text_of(lambda: converted.apply(x).sum().backward())
    line = Broken.backward.__code__.co_firstlineno + 2
    assert f'# your code: File "{__file__}", line {line}: return g.view(99)' in text, text


def test_a_line_is_told_once_however_many_functions_an_error_leaves() -> None:
    with pytest.raises(ValueError, match="mismatch") as caught:
        xg.function(lambda x: xg.function(of_unlike_sizes)(x), native=True)(X)
    shorten(caught.value)
    first = of_unlike_sizes.__code__.co_firstlineno
    steps = traceback.extract_tb(caught.value.__traceback__)
    assert [step.lineno for step in steps].count(first + 2) == 1


@pytest.mark.needs("jax")
def test_a_mistake_under_jit_does_so_too() -> None:
    jax = importlib.import_module("jax")
    assert_short(lambda: jax.jit(xg.function(broken))(X), "x * undefined")


@pytest.mark.needs("torch")
def test_a_mistake_in_compiled_code_does_so_too() -> None:
    torch = importlib.import_module("torch")
    function = pair_of(lambda g, x: broken(g))
    compiled = torch.compile(lambda x: function(x) + 1, backend="eager", fullgraph=True)
    assert_short(lambda: compiled(torch.ones(3)), "function(x) + 1")


def test_all_frames_are_shown_if_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "full")
    assert len(OURS.findall(text_of(MISTAKES["number of gradients"][0]))) > 10


def test_a_printed_traceback_is_short_and_all_of_it_is_there_if_asked_for(tmp_path: Path) -> None:
    code = "import numpy, multigrad as xg\n"
    code += "xg.function(lambda x: x, lambda g, x: (g, g))(numpy.ones(2))"
    texts = []
    for word in ("", "full"):
        environment = {**os.environ, VARIABLE: word}
        run = subprocess.run(
            [sys.executable, "-c", code],
            env=environment,
            cwd=tmp_path,  # `-c` imports from there first: not a checkout that is not installed
            capture_output=True,
            text=True,
            check=False,
        )
        texts.append(run.stderr)
    assert 'File "<string>", line 2' in texts[0] and len(OURS.findall(texts[0])) <= 3
    assert len(OURS.findall(texts[1])) > 10


def test_an_error_is_itself_with_its_notes_and_its_cause() -> None:
    cause = KeyError("first")

    def fails(x: Any) -> Any:
        error = ValueError("mine")
        error.__notes__ = ["a note"]
        raise error from cause

    with pytest.raises(ValueError, match="mine") as caught:
        xg.function(fails, native=True)(X)
    assert caught.value.__cause__ is cause
    assert caught.value.__notes__ == ["a note"]
    assert isinstance(pickle.loads(pickle.dumps(caught.value)), ValueError)


def test_the_errors_of_a_group_are_shortened() -> None:
    errors = []
    for mistake in ("number of gradients", "a type in forward"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(VARIABLE, "full")
            with pytest.raises(Exception) as caught:  # whichever it is
                MISTAKES[mistake][0]()
        errors.append(caught.value)
    try:
        raise ExceptionGroup("both", errors)
    except Exception as group:  # noqa: BLE001
        shorten(group)
        text = "".join(traceback.format_exception(group))
    assert len(OURS.findall(text)) <= 3, text


@pytest.mark.parametrize("name", ["check", "convert", "register", "function"])
def test_a_public_function_is_the_one_of_its_room(name: str) -> None:
    function = getattr(xg, name)
    assert pickle.loads(pickle.dumps(function)) is function
    assert function.__doc__ and function.__name__ == name
