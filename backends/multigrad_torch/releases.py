"""Differences between releases of torch beside those that the core meets (`core/versions.py`)."""

from __future__ import annotations

import functools
import inspect
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from types import ModuleType
from typing import Any, TypeVar

import torch

from multigrad.core.trace.trace import setting
from multigrad.errors import UnsupportedOp

from .core import dynamo
from .core.versions import COMPILES, RELEASE

F = TypeVar("F", bound=Callable[..., Any])
# Features that need a newer torch than the rest; before it they raise an error with this name.
COMPILING, EXPORTING = "torch.compile of a Function or rule", "torch.export of a Function or rule"
SHARDING = "a rule of scope 'params' on parameters of fully_shard"
NEEDS = {
    COMPILING: (2, 12),
    "xg.jit": (2, 12),
    EXPORTING: (2, 12),
    "xg.export": (2, 12),
    SHARDING: (2, 5),  # before, no hook of a parameter is called
}


def has(feature: str) -> bool:
    return NEEDS[feature] <= RELEASE


def need(feature: str, instead: str) -> str:
    """Return an error message for a feature that needs a newer torch than this one."""
    release = ".".join(map(str, NEEDS[feature]))
    return (
        f"{feature} needs torch>={release}, and torch {torch.__version__} is installed: {instead}; "
        f"or pip install 'torch>={release}'"
    )


def refuse(feature: str, instead: str) -> UnsupportedOp:
    return UnsupportedOp(need(feature, instead))


# Whether compiled code calls the hooks of all modules, as a module itself does.
CALLS_HOOKS = RELEASE >= (2, 5)
# Dispatch keys in a hashable form: bits from torch 2.5 on, before that their names.
hashable_keys: Callable[[Any], Any] = getattr(torch._C.DispatchKeySet, "raw_repr", str)


# torch's own loop over rows, from torch 2.6 on.
try:
    from torch._higher_order_ops.scan import scan as _scan
except ImportError:
    SCANS: tuple[Any, ...] = ()
else:
    SCANS = (_scan,)


def custom_op(name: str, schema: str, tags: Iterable[Any] = ()) -> Callable[..., Any]:
    """Do `torch.library.custom_op`, also before torch 2.5, which reads no string annotations and no
    tags.

    The function is passed, as a decorator would make torch note its line: `inspect` searches all
    modules for that, anew for each file (24 ms of the import).
    """
    takes_tags = "tags" in inspect.signature(torch.library.custom_op).parameters
    options = {"tags": tuple(tags)} if tags and takes_tags else {}

    def register(function: Callable[..., Any]) -> Any:
        return torch.library.custom_op(name, function, mutates_args=(), schema=schema, **options)

    return register


def register_vmap(operator: Any) -> Callable[..., Any]:
    """Return an operator's method of this name, from torch 2.5 on; before, vmap refuses it."""
    return getattr(operator, "register_vmap", lambda function: function)


@contextmanager
def force_eager() -> Iterator[None]:
    """Run compiled functions as written, as `torch.compiler.set_stance("force_eager")` does; from
    Dynamo's import on, where another thread imports it meanwhile.
    """
    # Also frames that a compiled function's uncompiled frame calls.
    prior = dynamo.set_eval_frame(None)
    try:
        with ExitStack() as stack:

            def enter() -> None:
                stack.enter_context(eager_stance(torch._dynamo))

            dynamo.at_import(enter)
            try:
                yield
            finally:
                dynamo.wait_no_longer(enter)
    finally:
        dynamo.set_eval_frame(prior)


def eager_stance(module: ModuleType) -> AbstractContextManager[Any]:
    """Return `set_stance("force_eager")` of torch._dynamo, from torch 2.6 on, or a substitute."""
    return module.set_stance("force_eager") if hasattr(module, "set_stance") else _like_fx(module)


@contextmanager
def _like_fx(module: ModuleType) -> Iterator[None]:
    # Compiled functions run as written where torch.fx traces.
    tracing = setting(torch.fx._symbolic_trace, _is_fx_tracing_flag=True)
    with module.config.patch(error_on_nested_fx_trace=False), tracing:
        yield


# --- an old Dynamo --------------------------------------------------------------------------------
class _Warned:
    """Whether the warning that calls run between graphs was given."""

    once = False


def between_graphs(function: F) -> F:
    """Return a function that an old Dynamo calls between its graphs, with a warning."""

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        if not dynamo.is_around():
            return function(*args, **kwargs)
        warn_apart()
        return disabled(*args, **kwargs)

    disabled = dynamo.disable(function)
    return run  # type: ignore[return-value]


def warn_apart() -> None:
    """Warn once that a call runs between graphs, on a torch whose Dynamo may not read our code."""
    if torch.compiler.is_compiling():
        raise refuse(EXPORTING, "export what comes before and after")
    if not _Warned.once:
        _Warned.once = True
        message = need(COMPILING, "it runs eagerly, between graphs")
        warnings.warn(message, UserWarning, stacklevel=5)


def forget() -> None:
    """Compile all code anew, on a torch whose Dynamo does not notice changes of modules."""
    if not COMPILES and dynamo.NAME in sys.modules:
        sys.modules[dynamo.NAME].reset()
