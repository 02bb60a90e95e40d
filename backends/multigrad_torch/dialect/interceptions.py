"""Replacements in torch while code is captured: for calls of modules, and of custom gradients."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import Module
from torch.utils.hooks import BackwardHook

from multigrad.capture.foreign_calls import Interception, comes_to_us
from multigrad.capture.values.oracle import is_capturing
from multigrad.functions.importer_api import import_once
from multigrad.graph.support.trees import optree
from multigrad.trace.lookups import Telling, look_up, note_made, was_made
from multigrad.trace.trace import Value, setting
from multigrad.trace.xp import all as xp

from .. import dynamo
from ..importers.custom_gradients import make_function

if TYPE_CHECKING:
    from typing_extensions import Self


# --- modules: their state is a fact, which later calls check --------------------------------------
# `.eval()` and `.train()` change what a module computes. Modules with tensors are handled by
# `multigrad.functions.object_arguments`, or run as written.
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
def apply(cls: type[torch.autograd.Function], /, *args: Any, **kwargs: Any) -> Any:
    """Apply a class; on symbolic values and other frameworks' tensors, by its Function."""
    if comes_to_us(args, kwargs, "torch"):
        return import_once(make_function, cls)(*args, **kwargs)
    return super(BASE, cls).apply(*args, **kwargs)  # type: ignore[misc]


def apply_anywhere(cls: type[torch.autograd.Function], /, *args: Any, **kwargs: Any) -> Any:
    """Do what `apply` does, before torch asks which transforms are active."""
    if comes_to_us(args, kwargs, "torch"):
        return import_once(make_function, cls)(*args, **kwargs)
    return APPLY.__get__(None, cls)(*args, **kwargs)


def is_transforming() -> bool:
    """Return whether torch.func transforms are active, but False to an `apply` with symbolic
    values.

    An `apply` that was stored earlier, as a global or in a module, asks this first and would
    refuse.
    """
    caller = sys._getframe(1)
    if caller.f_code is APPLY.__func__.__code__:
        names = caller.f_locals
        return IS_TRANSFORMING() and not comes_to_us(names["args"], names["kwargs"], "torch")
    return IS_TRANSFORMING()


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


ENGINE: Any = torch.autograd.Variable._execution_engine
ENTER_HOOKED: Any = BackwardHook.setup_input_hook
# Its `apply` is called by that of `Function` (torch 2.13), also by one that was bound earlier.
BASE: Any = torch.autograd.Function.__mro__[1]
APPLY: Any = vars(torch.autograd.Function)["apply"]
IS_TRANSFORMING = torch._C._are_functorch_transforms_active


@dynamo.at_import
def register_original() -> None:
    """Register torch's own function in Dynamo's table."""
    from torch._dynamo import trace_rules

    # If a trace of torch imports Dynamo during a capture, the table has the replacement instead.
    rules = trace_rules.get_torch_obj_rule_map()
    rules[IS_TRANSFORMING] = rules[torch._C._are_functorch_transforms_active]


INTERCEPTIONS = (
    Interception(torch.autograd.Function, "apply", classmethod(apply_anywhere)),
    Interception(BASE, "apply", classmethod(apply)),
    Interception(torch._C, "_are_functorch_transforms_active", is_transforming),
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
    is_apply = getattr(value, "__func__", None) is apply_anywhere  # during a capture
    return is_class and (owner is value or is_apply or getattr(value, "__name__", "") == "apply")
