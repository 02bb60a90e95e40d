"""Replacements in torch while code is captured: for calls of modules, and of custom gradients."""

from __future__ import annotations

import dis
import sys
import threading
from collections.abc import Callable
from functools import partial, wraps
from typing import Any, Self

import torch
from torch.autograd.function import BackwardCFunction, FunctionMeta
from torch.nn import Module
from torch.utils.hooks import BackwardHook

from multigrad.core.support.trees import optree
from multigrad.core.trace.lookups import Telling, look_up
from multigrad.core.trace.trace import Value, setting
from multigrad.core.trace.xp import all as xp
from multigrad.engine.capture.foreign_calls import Interception, comes_to_us
from multigrad.engine.capture.meanings.creation import stand_in_for
from multigrad.engine.capture.values.oracle import is_capturing
from multigrad.engine.functions.code_recipes import import_once
from multigrad.engine.functions.object_function import MayTakeObjects
from multigrad.engine.trace.moving_numbers import note_made, was_made

from ..core.state import ACTING, transforms_active
from ..importers.custom_gradients import import_function

# --- modules: their state is a fact, which later calls check --------------------------------------
# `.eval()` and `.train()` change what a module computes. Modules with tensors are handled by
# `multigrad.engine.functions.object_function`, or run as written.
PLAIN = (bool, int, float, str, type(None))
COMPILED = "_compiled_call_impl"
SET = "_non_persistent_buffers_set"
COPY = Module.__setstate__


class ModuleState(Telling):
    """The fact about a module's state: its flags, its numbers, its submodules."""

    module: Module

    @classmethod
    def of(cls, module: Module) -> Self:
        fact = cls(f"state {id(module)} of a {type(module).__name__}")
        fact.module = module
        return fact

    def meaning(self) -> Any:
        """Return the state as a key: the class and plain attributes of each module in it."""
        return tuple(
            (type(module), *[row for row in vars(module).items() if type(row[1]) in PLAIN])
            for module in self.module.modules()
        )


def call(self: Module, /, *args: Any, **kwargs: Any) -> Any:
    """Call a module; on symbolic values, note its state and that of all modules in it."""
    arguments: Any = (args, kwargs)
    symbols = (leaf for leaf in optree.tree_leaves(arguments) if isinstance(leaf, Value))
    trace = next((each.trace for each in symbols), None)
    if trace is not None and getattr(type(self), ACTING, ()):
        raise trace.error(
            f"calls a {type(self).__name__} with rules of xg.attach, which a graph would leave "
            "out: call handle.detach() first, or capture xg.override(function, rules)"
        )
    if trace is None or not trace.source.looks_into:
        return call_itself(self, *args, **kwargs)
    if not was_made(self):
        look_up(ModuleState.of(self))
    # The outermost module's state includes that of the modules it calls.
    with setting(trace.source, looks_into=False):
        return call_itself(self, *args, **kwargs)


def call_itself(module: Module, /, *args: Any, **kwargs: Any) -> Any:
    """Call a module as torch does: by its compiled version if `.compile()` was called."""
    compiled = vars(module).get(COMPILED)
    return (module._call_impl if compiled is None else compiled)(*args, **kwargs)


class CallHook:
    """Replaces the attribute that `Module.__call__` reads first, to intercept calls.

    Replacing `__call__` itself makes Python search the 300 classes of modules, twice: 60 us.
    """

    def __get__(self, module: Module | None, owner: type) -> Any:
        return None if module is None else partial(call, module)

    def __set__(self, module: Module, compiled: Any) -> None:
        vars(module)[COMPILED] = compiled


class InitHook:
    """Replaces an attribute that `Module.__init__` sets first, to note new modules.

    Replacing `__init__` itself makes Python search the 400 classes of modules, twice: 18 us.
    """

    def __get__(self, module: Module | None, owner: type) -> Any:
        if module is None or SET not in vars(module):
            raise AttributeError(SET)
        return vars(module)[SET]

    def __set__(self, module: Module, names: set[str]) -> None:
        note_made(module)
        vars(module)[SET] = names


def set_state(self: Module, state: Any) -> None:
    note_made(self)
    COPY(self, state)


# --- classes that captured code applies, wherever that is -----------------------------------------
# `apply` may have been bound long ago, and is C++ itself since torch 2.14: it reads the class.
def read(cls: type[torch.autograd.Function], name: str) -> Any:
    """Read an attribute of a class; give what `apply` reads a form that meets symbolic values."""
    value = type.__getattribute__(cls, name)
    if name == "_backward_cls":  # which `apply` reads before it sets the mode for `forward`
        CALLERS.has_gradients = torch.is_grad_enabled()
    if name == "forward" and _is_applied():
        return _meeting_symbols(cls, value)
    # A class that has none would be refused, under a transform, before its `forward` is read.
    if name == "setup_context" and value is NO_SETUP and is_capturing():
        return _take_all if transforms_active() and _is_applied() else value
    return value


def _is_applied() -> bool:
    """Return whether `apply` reads an attribute, and not code that names it."""
    caller = sys._getframe(2)
    if caller.f_code is PYTHON_APPLY:
        return True
    opcode = caller.f_code.co_code[caller.f_lasti]
    return dis.opname[opcode] not in ("LOAD_ATTR", "LOAD_METHOD")


def _meeting_symbols(cls: type[torch.autograd.Function], forward: Any) -> Callable[..., Any]:
    has_gradients = getattr(CALLERS, "has_gradients", True)

    def run(*args: Any, **kwargs: Any) -> Any:
        is_context_first = bool(args) and isinstance(args[0], BackwardCFunction)
        given = args[1:] if is_context_first else args
        if not comes_to_us(given, kwargs, "torch"):
            return forward(*args, **kwargs)
        with torch.set_grad_enabled(has_gradients):
            return import_once(import_function, cls, MayTakeObjects)(*given, **kwargs)

    # `apply` binds arguments by the signature where there is no context among them.
    return run if cls.setup_context is NO_SETUP else wraps(forward)(run)


def _take_all(ctx: Any, inputs: Any, output: Any) -> None:
    """Stand for the `setup_context` that a class lacks."""


def apply_in_transform(cls: type[torch.autograd.Function], /, *args: Any, **kwargs: Any) -> Any:
    """Do what `apply` does under transforms of torch.func."""
    if comes_to_us(args, kwargs, "torch"):
        return import_once(import_function, cls, MayTakeObjects)(*args, **kwargs)
    if cls.setup_context is NO_SETUP:
        raise RuntimeError(
            f"{cls.__name__} has no setup_context, which torch.func asks for: "
            f"apply what xg.convert({cls.__name__}) gives"
        )
    return APPLY_IN_TRANSFORM(cls, *args, **kwargs)


def variable(cls: type, data: Any = None, *args: Any, **kwargs: Any) -> Any:
    """Apply torch's legacy Variable: return a tensor on the same memory, without history."""
    if not isinstance(data, Value):
        return torch._C._LegacyVariableBase.__new__(cls, data, *args, **kwargs)
    if any(args) or any(kwargs.values()):
        raise data.trace.error("makes a Variable with requires_grad or volatile")
    return xp.stop_gradient(data)


def enter_hooked(hook: Any, args: tuple[Any, ...]) -> Any:
    """Refuse a module's backward hook on symbolic values; otherwise call torch's own."""
    symbols = [value for value in args if isinstance(value, Value)]
    if symbols:
        raise symbols[0].trace.error(
            f"calls a {type(hook.module).__name__} with a backward hook, which no graph runs"
        )
    return ENTER_HOOKED(hook, args)


def as_tensor(data: Any, *args: Any, **kwargs: Any) -> Any:
    """Return a symbolic value as a tensor in code of torch's own, as its distributions; apply torch
    to anything else.
    """
    if not isinstance(data, Value):
        return AS_TENSOR(data, *args, **kwargs)
    return CONVERT.run(data.trace, data, *args, **kwargs)


class Engine:
    """torch's engine while captures run.

    A callback that a backward queues must run once for each run of that backward, which no graph
    does.
    """

    def __getattr__(self, name: str) -> Any:
        return getattr(ENGINE, name)

    def queue_callback(self, callback: Callable[[], Any]) -> None:
        """Refuse a callback of code that is being captured; pass any other to torch."""
        if is_capturing():
            raise RuntimeError("queues a callback of torch's engine, which no graph does")
        ENGINE.queue_callback(callback)


AS_TENSOR: Any = torch.as_tensor
CONVERT: Any = stand_in_for("as_tensor", AS_TENSOR)
vars(as_tensor)["original"] = AS_TENSOR
ENGINE: Any = torch.autograd.Variable._execution_engine
ENTER_HOOKED: Any = BackwardHook.setup_input_hook
NO_SETUP: Any = torch.autograd.Function.setup_context
APPLY_IN_TRANSFORM: Any = torch.autograd.function.custom_function_call
# The grad mode of who called `apply` last, by thread.
CALLERS = threading.local()
# None since torch 2.14.
PYTHON_APPLY = getattr(torch.autograd.Function.apply, "__code__", None)

INTERCEPTIONS = (
    Interception(torch, "as_tensor", as_tensor),
    Interception(FunctionMeta, "__getattribute__", read),
    Interception(torch.autograd.function, "custom_function_call", apply_in_transform),
    Interception(BackwardHook, "setup_input_hook", enter_hooked),
    Interception(
        torch.autograd.Variable, "__new__", staticmethod(variable), _execution_engine=Engine()
    ),
    Interception(Module, COMPILED, CallHook(), **{SET: InitHook(), "__setstate__": set_state}),
)


def is_custom_gradient(value: Any) -> bool:
    """Return whether a value is a class with a gradient of its own, or the `apply` of one."""
    owner = value if isinstance(value, type) else getattr(value, "__self__", None)
    is_class = isinstance(owner, type) and issubclass(owner, torch.autograd.Function)
    return is_class and (owner is value or getattr(value, "__name__", "") == "apply")
