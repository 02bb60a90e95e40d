"""Marks for Dynamo on functions of ours, without importing it, which takes 2 s and brings sympy.

Marks that are attributes are set at once. Entries in Dynamo's tables, and the operators that only
compiled code calls, wait until somebody imports it: nothing is compiled before. Tested by
`tests/compiled/test_compiled_torch.py`.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any, TypeAlias, TypeVar

import torch

from multigrad.core.support.lazy_modules import loaded_once, provided
from multigrad.core.support.threads import make_lock

from . import versions

Tensor: TypeAlias = torch.Tensor
F = TypeVar("F", bound=Callable[..., Any])
NAME = "torch._dynamo"
set_eval_frame = torch._C._dynamo.eval_frame.set_eval_frame
_LOCK = make_lock()


class _Import:
    """Dynamo, once it is imported, and what waits for that; it changes under the lock.
    `fill_tables` sets it once and empties what waits, and nothing undoes that.

    Attributes:
        allowed: the functions whose calls may be in graphs.
        waiting: what is called then.
    """

    def __init__(self) -> None:
        self.dynamo: Any = None
        self.allowed: weakref.WeakSet[Any] = weakref.WeakSet()
        self.waiting: list[Callable[[], None]] = []


_IMPORT = _Import()


def disable(function: F) -> F:
    """Act as `torch._dynamo.disable`: a call breaks the graph, and its callees are not compiled."""

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


def keep_out(function: Callable[..., Any], advice: str) -> None:
    """Keep Dynamo out of a function, with advice for code that allows no break (`fullgraph`)."""
    marks = {"_torchdynamo_disable": True, "_torchdynamo_disable_msg": advice}
    function.__dict__.update(marks)


def assume_constant_result(function: F) -> F:
    """Act as `torch._dynamo.assume_constant_result`: it is called while code is traced."""
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


def allow_in_graph(function: F) -> F:
    """Act as `torch._dynamo.allow_in_graph`: graphs hold calls, without a look inside."""
    with _LOCK:
        if _IMPORT.dynamo is None:
            _IMPORT.allowed.add(function)
            return function
    return _IMPORT.dynamo.allow_in_graph(function)


def at_import(run: Callable[[], None]) -> Callable[[], None]:
    """Call a function once Dynamo is imported, at once if it is."""
    with _LOCK:
        if _IMPORT.dynamo is None:
            _IMPORT.waiting.append(run)
            return run
    run()
    return run


def wait_no_longer(run: Callable[[], None]) -> None:
    with _LOCK:
        if run in _IMPORT.waiting:
            _IMPORT.waiting.remove(run)


def is_around() -> bool:
    """Return whether Dynamo would compile a frame that is called here, or an exporter runs it."""
    if torch.compiler.is_compiling():
        return True
    prior = set_eval_frame(None)
    if prior is None:
        return False
    set_eval_frame(prior)
    return True


def apart(function: F) -> F:
    """Return a function that runs between graphs on a torch that compiles no code of ours."""
    if versions.COMPILES:
        return function
    late = loaded_once(lambda: between_graphs(function))  # what provides it is not known yet
    return functools.wraps(function)(late)  # type: ignore[return-value]


@provided
def between_graphs(function: F) -> F:
    """Return a function that an old Dynamo calls between its graphs, with a warning: unchanged."""
    return function


def begin_again() -> None:
    """Restart Dynamo's reading of the current code, if it reads some: it did not know of us yet."""
    dynamo = _IMPORT.dynamo
    # Not by the compile context: torch 2.15's exporter has one, too, and reads no code.
    if dynamo is not None and getattr(dynamo.symbolic_convert.tls, "current_tx", None) is not None:
        raise dynamo.exc.UnspecializeRestartAnalysis(restart_reason="multigrad was loaded")


def fill_tables(dynamo: ModuleType) -> None:
    """Write the waiting entries into Dynamo's tables."""
    # All functions that `disable` returns share one code object.
    dynamo.eval_frame.skip_code(disable(fill_tables).__code__)
    # On old releases it may read no module of ours.
    if not versions.COMPILES:
        for name in ("multigrad", __name__.partition(".")[0]):
            dynamo.trace_rules.add(name)
    with _LOCK:
        functions, callbacks = [*_IMPORT.allowed], [*_IMPORT.waiting]
        _IMPORT.dynamo = dynamo
        _IMPORT.allowed.clear()
        _IMPORT.waiting.clear()
    for function in functions:
        dynamo.allow_in_graph(function)
    for callback in callbacks:
        callback()


class _Watcher(MetaPathFinder):
    """A finder that only notices the end of Dynamo's import."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path) if fullname == NAME else None
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            fill_tables(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


if NAME in sys.modules:
    fill_tables(sys.modules[NAME])
else:
    sys.meta_path.insert(0, _Watcher())


class Namespace:
    """A namespace for traced code: Dynamo guards each attribute, but of a dict only some keys."""
