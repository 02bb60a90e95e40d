"""Rules on modules by swapped classes: a subclass that looks like the original and applies the
rules.

The module's own dict, state dict, parameters, hooks and pickles stay as they are, and compiled code
guards on the class. A module without rules has its own class again.
"""

from __future__ import annotations

import copy
import functools
import sys
import weakref
from abc import ABC
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import MethodType
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrize

from multigrad.errors import RuleTypeError
from multigrad.models.attach import CHANGING

from ..core import dynamo
from ..core.state import ACTING
from ..core.versions import COMPILES
from ..releases import forget

Method = Callable[..., Any]
ORIGINAL = "_multigrad_original"
# Sets the real class, past the property that shows the original one.
CLASS: Any = vars(object)["__class__"]
BEFORE = "_multigrad_before"  # on a parametrized module's class: the class that torch made


class Acting:
    """Something that acts on modules and may wrap their methods.

    `modules` are the modules that it acts on and their copies, by identity, each with its name;
    `handle` is that of `xg.attach`.
    """

    handle: Any = None

    def __init__(self) -> None:
        self.modules: dict[int, tuple[weakref.ref[nn.Module], str]] = {}

    def wrap(self, original: type, name: str, method: Method) -> Method:
        forward = self.around_forward(original, method) if name == "forward" else method
        return method if forward is method else functools.wraps(method)(forward)

    def around_forward(self, original: type, method: Method) -> Method:
        """Return the replacement for a class's forward."""
        return method

    def attributes(self) -> dict[str, property]:
        """Return properties that replace attributes of the modules."""
        return {}

    def goes_inside(self, other: Acting) -> bool:
        """Return whether it must be wrapped by another one that acts already."""
        return False

    def all_modules(self) -> list[nn.Module]:
        modules = [reference() for reference, _ in list(self.modules.values())]
        return [module for module in modules if module is not None]

    def refuse(self, module: nn.Module, name: str) -> None:
        """Raise an error if what acts on a module, by that name, leaves no place for this."""

    def add(self, module: nn.Module, name: str) -> None:
        key, modules = id(module), self.modules

        def forget(_: Any) -> None:
            modules.pop(key, None)

        modules[key] = weakref.ref(module, forget), name

    def path_of(self, module: nn.Module) -> str:
        return self.modules.get(id(module), (None, ""))[1]

    def name_of(self, module: nn.Module) -> str:
        name = self.path_of(module)
        return f"layer {name!r} ({type(module).__name__})" if name else type(module).__name__


def acting_on(module: nn.Module) -> tuple[Acting, ...]:
    return getattr(type(module), ACTING, ())


def put_on(module: nn.Module, acting: Acting, name: str) -> None:
    """Let something act on a module from now on, around everything that acts already."""
    forget()
    with CHANGING:
        acts = acting_on(module)
        position = next((i for i, each in enumerate(acts) if acting.goes_inside(each)), len(acts))
        # Before the class changes: `take_off` takes off only modules that are noted.
        acting.add(module, name)
        _assign(module, (*acts[:position], acting, *acts[position:]))


def take_off(acting: Acting) -> None:
    """Stop something from acting, on all modules and their copies."""
    forget()
    with CHANGING:
        for module in acting.all_modules():
            if acting in acting_on(module):
                _assign(module, tuple(each for each in acting_on(module) if each is not acting))
        acting.modules.clear()


@contextmanager
def unchanged_on_failure(root: nn.Module) -> Iterator[None]:
    """Restore the classes and attributes of a module and all modules in it, if the body raises."""
    states = [(each, type(each), dict(vars(each))) for each in root.modules()]
    tables = [each for *_, own in states for each in own.values() if isinstance(each, dict | set)]
    table_copies = [(each, each.copy()) for each in tables]
    try:
        yield
    except BaseException:
        for module, cls, own in states:
            CLASS.__set__(module, cls)
            vars(module).clear()
            vars(module).update(own)
        for table, rows in table_copies:  # the same objects, as handles of hooks refer to them
            table.clear()
            table.update(rows)
        raise


def original_class(module: nn.Module) -> type:
    """Return the class that a module has without what acts on it."""
    return getattr(type(module), ORIGINAL, type(module))


def _assign(module: nn.Module, acting: tuple[Acting, ...]) -> None:
    try:
        CLASS.__set__(module, find_class(type(module), acting, "forward" in vars(module)))
    except TypeError as error:
        raise RuleTypeError(
            f"cannot put a rule on a {type(module).__name__}: its class cannot be changed ({error})"
        ) from error


# Weak: a class lives as long as its modules and compiled code.
_classes: weakref.WeakValueDictionary[Any, type] = weakref.WeakValueDictionary()


def find_class(cls: type, acting: tuple[Acting, ...], has_own_forward: bool) -> type:
    """Return the class like `cls` on whose modules `acting` acts.

    `has_own_forward`: whether the module has a forward of its own, instead of its class's.
    """
    if is_parametrized(cls):
        return _find_parametrized(cls, acting, has_own_forward)
    original = vars(cls).get(ORIGINAL, cls)
    if not acting:
        return original
    key = original, acting, has_own_forward
    subclass = _classes.get(key)
    if subclass is None:
        subclass = _classes[key] = _make_subclass(original, original, _attributes_for(*key))
    return subclass


def _find_parametrized(cls: type, acting: tuple[Acting, ...], has_own_forward: bool) -> type:
    # torch adds properties to this class, and at the end returns to its base: what acts.
    original = vars(cls).get(BEFORE, cls)
    base = find_class(cls.__bases__[0], acting, has_own_forward)
    if not acting and original.__bases__[0] is base and properties(original) == properties(cls):
        return original
    names = {**vars(cls), BEFORE: original}
    names.pop("__deepcopy__", None)  # the base has ours
    if not acting and not hasattr(base, "__deepcopy__"):
        names["__deepcopy__"] = copy_parametrized
    return _make_subclass(cls, base, names)


def properties(cls: type) -> set[str]:
    return {name for name, value in vars(cls).items() if isinstance(value, property)}


def is_parametrized(cls: type) -> bool:
    """Return whether torch made this class for one parametrized module."""
    state = vars(cls).get("__getstate__")
    return state is not None and state.__module__ == parametrize.__name__


# torch defines its own within a function, so it is taken from an instance.
_parametrized = nn.Module()
_parametrized.register_parameter("weight", nn.Parameter(torch.zeros(())))
parametrize.register_parametrization(_parametrized, "weight", nn.Identity())
copy_parametrized: Any = vars(type(_parametrized))["__deepcopy__"]


def _make_subclass(like: type, base: type, names: dict[str, Any]) -> type:
    # Made on a base that is replaced after: no `__init_subclass__` or metaclass runs.
    names = {key: value for key, value in names.items() if key not in ("__dict__", "__weakref__")}
    names |= {key: getattr(like, key) for key in ("__module__", "__qualname__", "__doc__")}
    # In torch's own modules an old Dynamo does not read forward, but calls it while it traces.
    if not COMPILES:
        names["__module__"] = __name__
    try:
        subclass = type.__new__(type(like), like.__name__, (_Base,), names)
        subclass.__bases__ = (base,)
    except TypeError:
        subclass = type.__new__(type(like), like.__name__, (_AbstractBase,), names)
        subclass.__bases__ = (base,)
    return subclass


class _Base(nn.Module):
    """The base of a class until it gets its real one."""


class _AbstractBase(ABC, nn.Module):
    """The base for classes with ABC before Module (fake quantizers), of another object layout."""


def _attributes_for(
    original: type, acting: tuple[Acting, ...], has_own_forward: bool
) -> dict[str, Any]:
    names: dict[str, Any] = {ACTING: acting, ORIGINAL: original}
    names["__class__"] = property(get_class, set_class)
    # Else a call of it might become one node of a graph, which would keep today's rule.
    if not COMPILES:
        names["torchdynamo_force_dynamic"] = True
    names |= {each.__name__: each for each in (__reduce_ex__, __deepcopy__, __copy__)}
    methods = methods_of(original)
    for name, original_method in methods.items():
        method = original_method
        # A module without forward computes in `__call__`.
        role = "forward" if name == "__call__" and "forward" not in methods else name
        for each in acting:
            method = each.wrap(original, role, method)
        if method is not original_method:
            names[name] = dynamo.apart(method)
    for each in acting:
        names |= each.attributes()
    if has_own_forward:
        forward = own_forward(original)
        for each in acting:
            forward = each.wrap(nn.Module, "forward", forward)
        forward = dynamo.apart(forward)
        get_forward = lambda self: MethodType(forward, self)
        names["forward"] = property(get_forward, set_forward, delete_forward)
    names["__prepare_scriptable__"] = refuse_scripting
    if hasattr(original, "recompile"):
        names["recompile"] = recompile
    return names


def methods_of(cls: type) -> dict[str, Method]:
    """Return forward, a class's own `__call__`, and the methods that `nn.Module` does not have."""
    methods: dict[str, Method] = {}
    for each in reversed(cls.__mro__):
        if each is object or each is nn.Module:
            continue
        for name, value in vars(each).items():
            is_own = not name.startswith("__") and name not in vars(nn.Module)
            if name in ("forward", "__call__") or is_own:
                methods[name] = value
    kinds = type(methods_of)
    return {name: value for name, value in methods.items() if isinstance(value, kinds)}


# --- methods of every such class ------------------------------------------------------------------
def own_forward(original: type) -> Method:
    """Return a method that calls a module's own forward, or else that of its class."""
    method: Method = original.forward  # type: ignore[attr-defined]

    @functools.wraps(method)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        own_method = self.__dict__.get("forward")
        return method(self, *args, **kwargs) if own_method is None else own_method(*args, **kwargs)

    return forward


def set_forward(self: Any, forward: Method) -> None:
    self.__dict__["forward"] = forward


def delete_forward(self: Any) -> None:
    del self.__dict__["forward"]


def get_class(self: Any) -> type:
    """Return the class that a module shows: pickles ask for it, and `super(self.__class__)`."""
    cls = type(self)
    if not COMPILES and sys._getframe(1).f_globals.get("__name__", "").startswith(dynamo.NAME):
        return cls  # an old Dynamo looks up methods there
    return cls if is_parametrized(cls) else original_class(self)


def set_class(self: Any, cls: type) -> None:
    """Give a module another class, as lazy and parametrized ones do, but keep what acts on it."""
    CLASS.__set__(self, find_class(cls, acting_on(self), "forward" in vars(self)))


def __reduce_ex__(self: Any, protocol: Any) -> Any:
    original: Any = original_class(self)
    return _replaced(original.__reduce_ex__(self, protocol), type(self), original)


def _replaced(value: Any, cls: type, by: type) -> Any:
    if value is cls:
        return by
    if type(value) is tuple:
        return tuple(_replaced(each, cls, by) for each in value)
    return value


def __deepcopy__(self: Any, memo: Any) -> Any:
    original = original_class(self)
    copy_method: Any = getattr(original, "__deepcopy__", None)
    # torch's `__deepcopy__` of parametrized modules is on the class that ours replaces.
    if copy_method is None and is_parametrized(type(self)):
        copy_method = copy_parametrized
    return _as_well(self, None if copy_method is None else copy_method(self, memo), memo)


def __copy__(self: Any) -> Any:
    copy_method = getattr(original_class(self), "__copy__", None)
    return _as_well(self, None if copy_method is None else copy_method(self), None)


def _as_well(module: nn.Module, copied: Any, memo: Any) -> nn.Module:
    """Return the copy of a module, by Python's own protocol if None is given; what acts on the
    module acts on it, too.
    """
    if copied is None:
        reduction: Any = module.__reduce_ex__(4)
        copied = copy._reconstruct(module, memo, *reduction)  # type: ignore[attr-defined]
    with CHANGING:
        acting = acting_on(module)
        if acting_on(copied) != acting:
            _assign(copied, acting)
        for each in acting:
            each.add(copied, each.path_of(module))
    return copied


def refuse_scripting(self: Any) -> Any:
    raise RuleTypeError("torch.jit.script would leave the rules out: detach them first")


def recompile(self: Any) -> Any:
    raise RuleTypeError(
        "a GraphModule that rules are attached to cannot be recompiled: detach first"
    )
