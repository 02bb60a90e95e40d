"""Modules that captured code calls: their state is a fact, which later calls check.

`.eval()` and `.train()` change what a module computes. Modules with tensors are handled by
`multigrad.functions.object_arguments`, or run as written.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from torch.nn import Module

from multigrad.capture.foreign_calls import Interception
from multigrad.graph.support.trees import optree
from multigrad.trace.lookups import Telling, look_up, note_made, was_made
from multigrad.trace.trace import Value, setting

if TYPE_CHECKING:
    from typing_extensions import Self

PLAIN = (bool, int, float, str, type(None))
COMPILED = "_compiled_call_impl"
SET = "_non_persistent_buffers_set"
COPY = Module.__setstate__


class ModuleState(Telling):
    """The fact about a module's state: its flags, its numbers, its submodules."""

    module: Module

    @classmethod
    def of(cls, module: Module) -> Self:
        """Return the fact about a module, which keeps the module alive."""
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
    given: Any = (args, kwargs)
    symbols = (leaf for leaf in optree.tree_leaves(given) if isinstance(leaf, Value))
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

    def __set__(self, module: Module, given: set[str]) -> None:
        note_made(module)
        vars(module)[SET] = given


def set_state(self: Module, state: Any) -> None:
    note_made(self)
    COPY(self, state)


INTERCEPTION = Interception(
    Module, COMPILED, CallHook(), **{SET: InitHook(), "__setstate__": set_state}
)
