"""Marks on functions of ours for Dynamo, without its import, which takes 2 s and brings sympy.

What is an attribute is set at once. What goes into a table of Dynamo's waits until somebody imports
it, and so do the operators that only compiled code calls: before, nothing is compiled.
"""

from __future__ import annotations

import functools
import sys
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any, TypeVar

import torch
from torch._guards import CompileContext

from multigrad.graph.support.threads import make_lock

from . import versions

F = TypeVar("F", bound=Callable[..., Any])
NAME = "torch._dynamo"
set_eval_frame = torch._C._dynamo.eval_frame.set_eval_frame
_LOCK = make_lock()
_ALLOWED: weakref.WeakSet[Any] = weakref.WeakSet()
_WAITING: list[Callable[[], None]] = []
_FORCED: list[ExitStack] = []
_LOADED: list[ModuleType] = []
_SAID: list[bool] = []


def disable(function: F) -> F:
    """As `torch._dynamo.disable`: a call breaks the graph, and what it calls is not compiled."""

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        prior = set_eval_frame(None)
        try:
            return function(*args, **kwargs)
        finally:
            set_eval_frame(prior)

    marks = {"_torchdynamo_disable": True, "_torchdynamo_disable_msg": None}
    run.__dict__.update(marks, _torchdynamo_orig_callable=function)
    return run  # type: ignore[return-value]


def assume_constant_result(function: F) -> F:
    """As `torch._dynamo.assume_constant_result`: it is called while code is traced."""
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


def allow_in_graph(function: F) -> F:
    """As `torch._dynamo.allow_in_graph`: calls stand in graphs, and nobody looks inside."""
    with _LOCK:
        if not _LOADED:
            _ALLOWED.add(function)
            return function
    return _LOADED[0].allow_in_graph(function)


def at_import(run: Callable[[], None]) -> Callable[[], None]:
    """Call a function once, when Dynamo has been imported."""
    with _LOCK:
        if not _LOADED:
            _WAITING.append(run)
            return run
    run()
    return run


@contextmanager
def force_eager() -> Iterator[None]:
    """As `torch.compiler.set_stance("force_eager")`: what is compiled runs as it is written; also
    where Dynamo reads along, as it does in what an uncompiled frame of a compiled function calls.
    """
    prior = set_eval_frame(None)
    try:
        with versions.force_eager(_LOADED[0]) if _LOADED else _force_eager_from_import_on():
            yield
    finally:
        set_eval_frame(prior)


@contextmanager
def _force_eager_from_import_on() -> Iterator[None]:
    with ExitStack() as stack:
        with _LOCK:
            _FORCED.append(stack)
        try:
            yield
        finally:
            _FORCED.remove(stack)


def is_around() -> bool:
    """Return whether Dynamo would compile what is called here, or an exporter runs it."""
    if torch.compiler.is_compiling():
        return True
    prior = set_eval_frame(None)
    if prior is None:
        return False
    set_eval_frame(prior)
    return True


def say_apart() -> None:
    """Warn once that what is called runs between graphs, on a torch whose Dynamo may not read it.

    Raises:
        UnsupportedOp: an exporter runs it, whose program would not hold its gradient.
    """
    if torch.compiler.is_compiling():
        raise versions.refuse(versions.EXPORTING, "export what comes before and after")
    if not _SAID:
        _SAID.append(True)
        message = versions.need(versions.COMPILING, "it runs eagerly, between graphs")
        warnings.warn(message, UserWarning, stacklevel=4)


def apart(function: F) -> F:
    """Return a function that runs between graphs where this torch compiles none of ours, and the
    function itself elsewhere.
    """
    if versions.COMPILES:
        return function

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        if not is_around():
            return function(*args, **kwargs)
        say_apart()
        return off(*args, **kwargs)

    off = disable(function)
    return run  # type: ignore[return-value]


def forget() -> None:
    """Compile all code anew, on a torch whose Dynamo does not notice what is put on modules."""
    if not versions.COMPILES and _LOADED:
        _LOADED[0].reset()


def begin_again() -> None:
    """Let Dynamo read code from its start, where it reads some: what it has read knew nothing of
    us.
    """
    if CompileContext.try_get() is not None:
        raise _LOADED[0].exc.UnspecializeRestartAnalysis(restart_reason="multigrad was loaded")


def tell(dynamo: ModuleType) -> None:
    """Write into its tables what has waited for them."""
    dynamo.eval_frame.skip_code(disable(tell).__code__)  # one code for all
    if not versions.COMPILES:  # and nothing of ours
        for name in ("multigrad", __name__.partition(".")[0]):
            dynamo.trace_rules.add(name)
    with _LOCK:
        allowed, waiting = [*_ALLOWED], [*_WAITING]
        _LOADED.append(dynamo)
        _ALLOWED.clear()
        _WAITING.clear()
    for function in allowed:
        dynamo.allow_in_graph(function)
    for run in waiting:
        run()
    for stack in _FORCED:
        stack.enter_context(force_eager())


class _Watcher(MetaPathFinder):
    """Finds Dynamo where it is, and notices the end of its import."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path) if fullname == NAME else None
        if spec is None or spec.loader is None:
            return None
        run = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            run(module)
            tell(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


if NAME in sys.modules:
    tell(sys.modules[NAME])
else:
    sys.meta_path.insert(0, _Watcher())
