"""A pytest plugin for the frameworks' own tests of custom gradients: it converts each of theirs.

`run_framework_tests.py` loads it. It keeps the tests whose source has a custom gradient of the
framework's, converts what the test file defines, if it is told to, and writes how each test ended.
"""

from __future__ import annotations

import functools
import inspect
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import multigrad as xg

FRAMEWORK, CONVERTS, OUTCOMES, FILE = os.environ["MULTIGRAD_CONVERTING"].split(os.pathsep)
DEFINES = {"torch": r"class \w+\(.*Function\)", "jax": r"\bcustom_vjp\b"}[FRAMEWORK]


def convert_classes() -> None:
    """Let a class statement of the test file give the class converted."""
    from torch.autograd.function import FunctionMeta

    def make(meta: type, name: str, bases: Any, namespace: Any, **options: Any) -> Any:
        cls = type.__new__(meta, name, bases, namespace, **options)
        if namespace.get("__module__") != Path(FILE).stem:
            return cls
        meta.__init__(cls, name, bases, namespace)  # Python calls it for a class alone
        return xg.convert(cls)

    FunctionMeta.__new__ = make  # type: ignore[method-assign]


def convert_functions() -> None:
    """Let `jax.custom_vjp` give the function converted, once it has its rules."""
    import jax

    custom_vjp: Any = jax.custom_vjp
    square = custom_vjp(lambda x: x * x)
    square.defvjp(lambda x: (x * x, x), lambda x, upstream: (2 * x * upstream,))
    xg.convert(square)(jax.numpy.ones(3))  # so that all of our backend is imported by now

    class OfTheTests(type):  # others, such as our backend, go on with what jax has
        def __call__(cls, *args: Any, **options: Any) -> Any:
            caller = sys._getframe(1).f_globals["__name__"]
            make = super().__call__ if caller == Path(FILE).stem else custom_vjp
            return make(*args, **options)

        def __instancecheck__(cls, value: Any) -> bool:
            return isinstance(value, custom_vjp)

    class Converted(metaclass=OfTheTests):
        def __init__(self, function: Callable[..., Any], *args: Any, **options: Any) -> None:
            self.original = self.called = custom_vjp(function, *args, **options)
            functools.update_wrapper(self, function)

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return self.called(*args, **kwargs)

        def __getattr__(self, name: str) -> Any:
            return getattr(self.original, name)

        def defvjp(self, *rules: Any, **options: Any) -> None:
            self.original.defvjp(*rules, **options)
            self.called = xg.convert(self.original)

    jax.custom_vjp = Converted  # type: ignore[assignment, misc]


def pytest_configure() -> None:
    if CONVERTS:
        {"torch": convert_classes, "jax": convert_functions}[FRAMEWORK]()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    is_kept = [re.search(DEFINES, inspect.getsource(i.function)) for i in items]
    dropped = [item for item, kept in zip(items, is_kept, strict=True) if not kept]
    config.hook.pytest_deselected(items=dropped)
    items[:] = [item for item, kept in zip(items, is_kept, strict=True) if kept]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call" or not report.passed:
        with open(OUTCOMES, "a") as file:
            print(report.nodeid.partition("::")[2], report.outcome, file=file)
