"""Substitution: copies of the user's functions that refer to stand-ins instead of the originals.

Protocols reach the array functions of some libraries, but not `max(width, 1e-6)`, `len(x)` or
`jnp.where`. Those are replaced by value wherever a rule, or a helper that it calls, can refer to
them: globals, closures, defaults, local imports, attributes of modules and of the user's objects.
Libraries are not changed.

    def rule(ctx, g, x):                    the copy has the same code, and other globals:
        return g * scaled(jnp.exp(x))           scaled   a copy of the helper
                                                jnp      a `_ModuleProxy`, whose `exp` records EXP
                                                max, len stand-ins (`stand_ins.py`)

For each value, `maker` decides on what stands for it, and makes it only where it is needed: a copy
may refer to itself. The names say of what: `copy` of functions, `_class` and `_object` of the
user's classes and their objects, proxies of modules and of classes that stay.
"""

from __future__ import annotations

import builtins
import functools
import logging
import sys
import types
from collections.abc import Callable, Hashable
from functools import partial
from importlib import import_module
from typing import Any

from ....core.trace.trace import Value
from ...trace.code_trace import CodeTrace
from ...trace.contents import STANDS_FOR
from ..foreign_calls import call_by_own_gradient
from ..meanings.creation import in_trace
from ..user_code.inspection import (
    WRAPPED,
    compares_identity,
    held_around,
    is_dispatching,
    mentioned,
    method_of,
    nested_codes,
    note_constants,
    plain_function,
    referred,
    wrapped_function,
)
from ..user_code.libraries import OWN, in_package, is_library_file, own_root, package_of
from .stand_ins import (
    BUILTINS,
    Dispatch,
    FunctionStandIn,
    Log,
    find_index,
    refused_builtins,
    refusing,
)

Maker = Callable[[], Any]  # makes the stand-in for one value
ROOMS = ("core.trace", "core.xp", "engine.capture", "engine.trace")
RECORDING = tuple(f"{OWN}.{room}" for room in ROOMS)
PLAIN = (bool, int, float, complex, str, bytes, type(None), type(Ellipsis), types.CodeType)


def substitute(
    function: Callable[..., Any], trace: CodeTrace, root: str = ""
) -> Callable[..., Any]:
    """Return a copy of a rule that sees symbolic values for numbers, helpers included.

    A Python function, a bound method, a `functools.partial` or an object with `__call__` is copied
    down to its functions; anything else is returned unchanged. A copy shares code with its
    original. Functions of the package `root`, by default the rule's own, are helpers.
    """
    substitution = _Substitution(trace, root or own_root(function))
    if trace.source.witness is not None:
        trace.source.witness.substitutions.append(substitution)
    return substitution.replace(function)


class _ModuleProxy:
    """A stand-in for a module, whose attributes are replaced when they are read."""

    __slots__ = ("_module", "_name", "_substitution")

    def __init__(
        self, module: types.ModuleType, substitution: _Substitution, name: str = ""
    ) -> None:
        object.__setattr__(self, "_module", module)
        # The name by which the rule's author reaches it, for messages.
        object.__setattr__(self, "_name", name or module.__name__)
        object.__setattr__(self, "_substitution", substitution)

    def __getattr__(self, name: str) -> Any:
        symbol = self._substitution.symbol_at(self._module, name)
        if symbol is not None:
            return symbol
        value = getattr(self._module, name)
        note_constants(self._substitution.trace, self._module, name)
        return self._substitution.stand_in(value, f"{self._name}.{name}")

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._module, name, value)


class _ClassProxy:
    """A proxy of a class that is not replaced, or of `super()`, with replaced functions; or of what
    holds a number that moves, for which `at` gives a symbol.
    """

    __slots__ = ("_at", "_original", "_replaced")

    def __init__(
        self, original: Any, replaced: Callable[[Any], Any], at: Callable[[Any, str], Any]
    ) -> None:
        object.__setattr__(self, "_original", original)
        object.__setattr__(self, "_replaced", replaced)
        object.__setattr__(self, "_at", at)

    def __getattribute__(self, name: str) -> Any:
        if name == "__mro_entries__":  # read by a class statement with this base
            return object.__getattribute__(self, name)
        symbol = object.__getattribute__(self, "_at")(_original(self), name)
        if symbol is not None:
            return symbol
        replaced = object.__getattribute__(self, "_replaced")
        return replaced(getattr(_original(self), name))

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(_original(self), name, value)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return _original(self)(*args, **kwargs)

    def __instancecheck__(self, value: Any) -> bool:
        return isinstance(value, _original(self))

    def __subclasscheck__(self, kind: type) -> bool:
        return issubclass(kind, _original(self))

    def __mro_entries__(self, bases: Any) -> tuple[Any, ...]:
        return (_original(self),)


def _original(value: Any) -> Any:
    # Not `value._original`: a proxy forwards every attribute to the object behind it.
    return object.__getattribute__(value, "_original") if type(value) is _ClassProxy else value


class _Substitution:
    """Copies functions, each once; lives while one rule is prepared for a capture.

    Attributes:
        trace: the capture. Its witness (`trace.source.witness`) is shown each function before its
            copy runs, so that what the function changes can be put back.
        root: the package whose functions are helpers.
        index: the stand-ins of all libraries. It is found anew wherever code imports, or mentions
            NumPy's random module: what is known then is replaced in functions copied later.
        copies: of functions, by the original.
        objects: by `id`, each original (kept alive) and the object that stands for it.
        classes: of the user's classes, the subclass that stands for each.
        class_proxies: of classes that stay: one proxy each, so that `is` holds.
        calls_library: whether a method of a class may call a library without a protocol.
        names: mentioned by the functions so far, attributes included; they grow with each copy. A
            module of a library with a protocol is replaced only where they name a known function.
    """

    def __init__(self, trace: CodeTrace, root: str) -> None:
        self.trace = trace
        self.root = root
        self.moved = trace.source.moved
        self.index = find_index()
        self.refused_builtins = refused_builtins(trace)
        self.copies: dict[Any, Any] = {}
        self.objects: dict[int, tuple[Any, Any]] = {}
        self.classes: dict[type, type] = {}
        self.class_proxies: dict[type, _ClassProxy] = {}
        self.calls_library: dict[type, bool] = {}
        self.names: set[str] = set()

    def replace(self, function: Any) -> Any:
        """Return the copy of the rule itself; a known library function records its op."""
        for library, dialect in self.index.dialects.items():
            if not isinstance(function, Hashable):
                break
            if function in dialect.names.aliases:
                return function if dialect.calls.protocol else self._call(library, function, "")
            if not dialect.calls.protocol and dialect.calls.finds and dialect.calls.finds(function):
                return self._call(library, function, "")
        if isinstance(function, types.FunctionType):
            return self.copy(function)
        if isinstance(function, partial):
            return self._partial(function, self.replace)
        if isinstance(function, types.MethodType):
            if self._is_kept(function):  # a bound `apply`
                return function
            if self.trace.source.witness is not None:
                self.trace.source.witness.see_value(function.__self__)
            owner = self.stand_in(function.__self__)
            return types.MethodType(self.replace(function.__func__), owner)
        wrapped = wrapped_function(function)
        if wrapped is not None:
            return self._unwrapped(function, wrapped)
        plain = plain_function(function)
        if plain is None:
            return self.stand_in(function)
        if self.trace.source.witness is not None:
            self.trace.source.witness.see_value(function)
        return types.MethodType(self.copy(plain), self.stand_in(function))

    def clear(self) -> None:
        """Release the copies, which refer to this by their builtins, and to all that code does."""
        for each in (self.copies, self.objects, self.classes, self.class_proxies):
            each.clear()

    def _is_kept(self, value: Any) -> bool:
        return any(keeps(value) for keeps in self.index.keepers)

    # --- stand-ins for values ---------------------------------------------------------------------
    def stand_in(self, value: Any, name: str = "") -> Any:
        """Return the replacement for a value in a rule's copy, mostly the value itself."""
        make = self.maker(value, name)
        return value if make is None else make()

    def maker(self, value: Any, name: str = "") -> Maker | None:
        """Return a function that makes a value's stand-in, or None if the value needs none."""
        kind = type(value)
        # The first that applies decides. A function with a stand-in has it, whatever else it is.
        registered = self.index.functions.get(id(value))
        if registered is not None:
            return partial(in_trace, registered[1], self.trace)
        if kind in PLAIN or isinstance(value, Value):
            return None
        if self.moved is not None and id(value) in self.moved.leading:
            if kind in (list, tuple, dict):
                return partial(self._container, value)
            if kind not in (types.FunctionType, types.MethodType, types.ModuleType):
                return partial(self._holder, value)
        # A dialect keeps what its library must find unreplaced; of a class of the user's among
        # these, the functions that code takes from it are replaced nevertheless.
        if kind is not types.FunctionType and callable(value) and self._is_kept(value):
            if isinstance(value, type) and self._is_users_class(value):  # always the same
                return partial(
                    self.class_proxies.setdefault,
                    value,
                    _ClassProxy(value, self.stand_in, self.symbol_at),
                )
            return None
        # What no graph can hold comes before the kinds, as it may be any: a class, a method.
        refusal = self.index.refused.get(id(value))
        if refusal is not None:
            return partial(refusing, *refusal, self.trace, name)
        if isinstance(value, logging.Logger | logging.LoggerAdapter):
            return partial(Log, value, self.trace)
        # By kind: classes, modules, and the user's functions before other callables and objects.
        if isinstance(value, type):
            return self._class_maker(value) if self.index.libraries else None
        if isinstance(value, types.ModuleType):
            return self._module_maker(value, name)
        if isinstance(value, types.FunctionType) and self.is_users(value):
            if self._is_known(value):
                return partial(self._call, self.root, value, name)
            return partial(self.copy, value)
        if is_dispatching(value):
            return partial(Dispatch, value, self.stand_in)
        if kind in (list, tuple, dict):
            return self._container_maker(value)
        if isinstance(value, partial):
            inner_maker = self.maker(value.func)
            return None if inner_maker is None else partial(self._partial, value, self.stand_in)
        return self._callable_maker(value, name) if callable(value) else self._object_maker(value)

    def _callable_maker(self, value: Any, name: str) -> Maker | None:
        wrapped = wrapped_function(value)  # the user's function in a library's object
        if wrapped is not None and self.is_users(wrapped):
            return partial(self._unwrapped, value, wrapped)
        gradient = self._own_gradient(value)
        if gradient is not None:
            return partial(partial, call_by_own_gradient, gradient, value)
        library = package_of(value)
        if library in self.index.libraries:
            return partial(self._call, library, value, name)
        if isinstance(value, types.MethodType):
            return partial(self.replace, value) if self.is_users(value.__func__) else None
        return self._object_maker(value) if wrapped is None else None

    def _object_maker(self, value: Any) -> Maker | None:
        # An object is replaced if its class is.
        may_be = bool(self.index.libraries) and hasattr(value, "__dict__")
        return partial(self._object, value) if may_be and self._class_maker(type(value)) else None

    def _call(self, library: str, function: Any, name: str) -> FunctionStandIn:
        plain_name = getattr(function, "__name__", type(function).__name__)
        name = name or f"{getattr(function, '__module__', library)}.{plain_name}"
        return FunctionStandIn(library, self.index.libraries[library], function, name, self.trace)

    def _unwrapped(self, wrapper: Any, function: types.FunctionType) -> Callable[..., Any]:
        # Of a function that returns a value and a gradient (`jax.value_and_grad`), the value alone.
        copy, kind = self.copy(function), type(wrapper)
        is_paired = any(kind in each.gradients.paired for each in self.index.dialects.values())
        plain = partial(_first_of, copy) if is_paired else copy
        if kind is functools._lru_cache_wrapper:
            return partial(_kept_or_computed, wrapper, copy)
        gradient = self._own_gradient(wrapper)
        if gradient is None:
            return plain
        wrap = getattr(gradient, "around", None)
        return partial(call_by_own_gradient, gradient, plain) if wrap is None else wrap(plain)

    def _own_gradient(self, wrapper: Any) -> Callable[..., Any] | None:
        # Wrappers are opened, so a custom gradient in `jax.jit(f)` is found.
        groups = [dialect.gradients for dialect in self.index.dialects.values()]
        while wrapper is not None:
            kind = type(wrapper)
            for gradients in groups:
                if kind in gradients.own_gradients:
                    return gradients.own_gradients[kind](wrapper)
            name = next((each.wrappers[kind] for each in groups if kind in each.wrappers), None)
            wrapper = None if name is None else getattr(wrapper, name, None)
        return None

    def _partial(self, bound: partial[Any], replace: Callable[[Any], Any]) -> partial[Any]:
        args = [self.stand_in(value) for value in bound.args]
        keywords = {name: self.stand_in(value) for name, value in bound.keywords.items()}
        return partial(replace(bound.func), *args, **keywords)

    def _module_maker(self, module: types.ModuleType, name: str = "") -> Maker | None:
        # Only a module that may hold a replaced function is replaced.
        root = module.__name__.partition(".")[0]
        if root == OWN and root != self.root:
            return None
        is_users = root == self.root or not is_library_file(getattr(module, "__file__", None))
        if root in self.index.roots or is_users:
            return partial(_ModuleProxy, module, self, name)
        if root in self.index.dialects and self.index.names & self.names:
            return partial(_ModuleProxy, module, self, name)
        return None

    def _container_maker(self, container: Any) -> Maker | None:
        # A container of functions is replaced, one of numbers is not; long ones hold data.
        values = container.values() if isinstance(container, dict) else container
        if len(container) > 64 or not any(callable(v) and self.maker(v) for v in values):
            return None
        return partial(self._container, container)

    def _container(self, container: Any) -> Any:
        def held(place: Any, value: Any) -> Any:
            symbol = self.symbol_at(container, place)
            return self.stand_in(value) if symbol is None else symbol

        if isinstance(container, dict):
            return {key: held(key, value) for key, value in container.items()}
        return type(container)(held(i, value) for i, value in enumerate(container))

    def _holder(self, value: Any) -> Any:
        # An object or a class that holds a number that moves, or leads to one.
        earlier = self.objects.get(id(value))
        if earlier is None:
            earlier = value, _ClassProxy(value, self.stand_in, self.symbol_at)
            self.objects[id(value)] = earlier
        return earlier[1]

    def symbol_at(self, owner: Any, place: Any) -> Any:
        """Return the symbol for a number that moves; None for any other value."""
        return None if self.moved is None else self.moved.symbols.get((id(owner), place))

    # --- the user's classes and objects -----------------------------------------------------------
    def _class_maker(self, kind: type) -> Maker | None:
        # A class of the user's is replaced if its methods may call a library without a protocol.
        if kind not in self.calls_library:
            methods = map(method_of, vars(kind).values()) if self._is_users_class(kind) else ()
            self.calls_library[kind] = any(
                self.is_users(m) and self._may_call_library(m) for m in methods if m is not None
            )
        return partial(self._class, kind) if self.calls_library[kind] else None

    def _is_users_class(self, kind: type) -> bool:
        root = kind.__module__.partition(".")[0]
        if root.startswith(OWN):
            return False
        file = getattr(sys.modules.get(kind.__module__), "__file__", None)
        return root == self.root or not is_library_file(file)

    def _super(self, *arguments: Any) -> _ClassProxy:
        # The builtin `super`, with replaced methods; without arguments it reads the caller's frame.
        if not arguments:
            frame = sys._getframe(1)
            variables = frame.f_locals
            arguments = variables["__class__"], variables[frame.f_code.co_varnames[0]]
        # `super(Own, self)` names the subclass that stands for the class.
        named = _original(arguments[0])
        arguments = vars(named).get(STANDS_FOR, named), *arguments[1:]

        def replaced(value: Any) -> Any:  # a library's class keeps its own
            function = value.__func__ if isinstance(value, types.MethodType) else value
            return self.stand_in(value) if self.is_users(function) else value

        return _ClassProxy(builtins.super(*map(_original, arguments)), replaced, self.symbol_at)

    def _may_call_library(self, method: types.FunctionType) -> bool:
        # A function or module that a method mentions may be such a library's.
        return any(
            isinstance(value, types.FunctionType | types.ModuleType)
            or package_of(value) in self.index.libraries
            for value in referred(method)
            if type(value) not in PLAIN
        )

    def _class(self, kind: type) -> type:
        # A subclass with copied methods, whose objects' attributes are replaced when they are read.
        earlier_class = self.classes.get(kind)
        if earlier_class is not None:
            return earlier_class

        def replaced(own: Any, name: str) -> Any:
            attribute = object.__getattribute__(own, name)
            return attribute if name.startswith("__") else self.stand_in(attribute)

        names: dict[str, Any] = {"__getattribute__": replaced, "__module__": kind.__module__}
        names[STANDS_FOR] = kind
        try:
            subclass = type(kind)(kind.__name__, (kind,), names)
        except TypeError:  # a class that cannot be subclassed
            subclass = kind
        self.classes[kind] = subclass
        for name, value in vars(kind).items() if subclass is not kind else ():
            method = method_of(value)
            if method is not None and self.is_users(method):
                copied = self.copy(method)
                method_wrapped = type(value)(copied) if isinstance(value, WRAPPED) else copied
                if isinstance(method_wrapped, functools.cached_property):
                    method_wrapped.__set_name__(subclass, name)
                setattr(subclass, name, method_wrapped)
        return subclass

    def _object(self, value: Any) -> Any:
        # It shares the original's `__dict__`, so that assignments reach the original and are seen.
        entry = self.objects.get(id(value))
        if entry is not None:
            return entry[1]
        try:
            stand_in = object.__new__(self._class(type(value)))
            object.__setattr__(stand_in, "__dict__", vars(value))
        except TypeError:  # a class that creates its objects in another way
            stand_in = value
        self.objects[id(value)] = (value, stand_in)
        return stand_in

    # --- the user's functions ---------------------------------------------------------------------
    def copy(self, function: types.FunctionType) -> types.FunctionType:
        """Return the copy of a function, whose names refer to stand-ins."""
        if function in self.copies:
            return self.copies[function]
        self._note(function)
        namespace = self._namespace_of(function)
        contents = zip(function.__code__.co_freevars, held_around(function), strict=True)
        # `super()` looks for the class itself.
        makers = [None if name == "__class__" else self.maker(value) for name, value in contents]
        for i, cell in enumerate(function.__closure__ or ()):
            if (symbol := self.symbol_at(cell, None)) is not None:
                makers[i] = partial(_same, symbol)
        # A cell whose value stays is shared, so that `nonlocal` works.
        cells = tuple(
            cell if make is None else types.CellType()
            for cell, make in zip(function.__closure__ or (), makers, strict=True)
        )
        copy = types.FunctionType(
            function.__code__, namespace, function.__name__, function.__defaults__, cells or None
        )
        copy.__kwdefaults__ = function.__kwdefaults__
        copy.__qualname__ = function.__qualname__
        self.copies[function] = copy  # before the names that it refers to: it may refer to itself
        for name, value in mentioned(function):
            make = self.maker(value)
            symbol = self.symbol_at(function.__globals__, name)
            if make is not None or symbol is not None:
                namespace[name] = symbol if make is None else make()
        for cell, make in zip(cells, makers, strict=True):
            if make is not None:
                cell.cell_contents = make()
        if function.__defaults__:
            copy.__defaults__ = self._container(function.__defaults__)
        if function.__kwdefaults__:
            copy.__kwdefaults__ = self._container(function.__kwdefaults__)
        for name, value in vars(function).items():
            if not name.startswith("__"):
                setattr(copy, name, self.stand_in(value))
        if self.trace.source.witness is not None:
            self.trace.source.witness.see_namespace(namespace)
        return copy

    def _note(self, function: types.FunctionType) -> None:
        """Note what a function that is copied tells the capture."""
        source, names = self.trace.source, {name for name, _ in mentioned(function)}
        if any(name.endswith("random") for name in names):
            import_module("numpy.random")  # NumPy does on first access: too late
            self.index = find_index()
            if source.witness is not None:
                source.witness.outside.see_all((), ())
        if source.witness is not None:
            source.witness.see(function)
        self.names |= names
        codes = set(nested_codes(function.__code__))
        source.codes |= codes
        source.compares_identity |= any(map(compares_identity, codes))
        source.numbers.update([v for v in referred(function) if isinstance(v, float)])

    def _namespace_of(self, function: types.FunctionType) -> dict[str, Any]:
        """Return a function's globals with stand-ins for the builtins alone."""
        namespace = dict(function.__globals__)
        originals = namespace.get("__builtins__", builtins)
        originals = originals if isinstance(originals, dict) else vars(originals)
        namespace["__builtins__"] = {
            **originals,
            **BUILTINS,
            **self.refused_builtins,
            "__import__": partial(self._imported, originals["__import__"]),
            "super": self._super,
        }
        return namespace

    def _imported(self, own_import: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        # The import statement of a rule: a module that it imports is replaced like a global one.
        module = own_import(*args, **kwargs)
        self.index = find_index()  # the import may have made a module known
        names = kwargs.get("fromlist", args[3] if len(args) > 3 else None) or ()
        for name in names if isinstance(module, types.ModuleType) else ():
            if isinstance(getattr(module, name, None), type):
                note_constants(self.trace, module, name)
        return self.stand_in(module)

    def _is_known(self, function: types.FunctionType) -> bool:
        # A function of the rule's own library, as of a Keras layer, may be captured as one op.
        dialect = self.index.libraries.get(self.root)
        if dialect is None or any(
            function in row
            for row in (dialect.names.aliases, dialect.names.refused, dialect.names.trees)
        ):
            return dialect is not None
        return dialect.calls.finds is not None and dialect.calls.finds(function) is not None

    def is_users(self, helper: Any) -> bool:
        """Return whether a helper is the user's: of the rule's own package, or of no library."""
        if not isinstance(helper, types.FunctionType):
            return False
        module, file = helper.__module__ or "", helper.__code__.co_filename
        if module.startswith(RECORDING):
            return False
        if not is_library_file(file):
            return True
        # The result of a library's decorator bears the name of the user's module.
        is_own = module.partition(".")[0] == self.root
        return is_own and (file.startswith("<") or in_package(file, self.root))


def _same(value: Any) -> Any:
    return value


def _kept_or_computed(wrapper: Any, copy: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    # What `lru_cache` keeps may be of values that have changed since; tensors become nodes.
    if all(type(each) in PLAIN for each in (*args, *kwargs.values())):
        result = wrapper(*args, **kwargs)
        if type(result) in PLAIN:
            return result
    return copy(*args, **kwargs)


def _first_of(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    return function(*args, **kwargs)[0]
