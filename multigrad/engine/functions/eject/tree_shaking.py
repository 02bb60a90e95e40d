"""Tree shaking: the definitions that a piece of code needs, written into its file.

Functions of frameworks become imports; ours are inlined by their source, with all that they need.
"""

from __future__ import annotations

import ast
import builtins
import functools
import inspect
import keyword
import re
import sys
import types
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ....core.backend.emitted import Made
from ....core.ir.graph import ArrayValue
from ....core.ir.op import Op
from ....core.ops.table import Composed
from ....errors import MultigradError, UnsupportedOp
from . import statements
from .statements import (
    CODE,
    FreeName,
    NeededImports,
    array_literal,
    dtype_literal,
    literal,
    rewrite,
)

# What a file raises for an error of ours that derives from none of Python's own.
PLAIN_ERROR = "RuntimeError"


class Shaker:
    """A file that is being written, until it is complete.

    Every name in a piece of code leads to a definition, whose names lead to others:

        add(code)        the names of emitted code ─► express
        express(value)   a literal, a framework's public name, an import; of ours ─► include, lift
        include(name)    a statement of a module of ours, inlined: its names ─► refer
        lift(function)   an inner function of ours, inlined with what it closes over ─► refer
        refer(name)      a name within a module of ours ─► express, include

    Attributes:
        forms: what a file holds instead of some values.
        imports: the import statements so far.
        parts: the definitions so far, each after what it needs where that counts.
        taken: the names that mean something in the file.
    """

    def __init__(
        self,
        modules: Mapping[str, types.ModuleType],
        forms: Mapping[Any, Any],
        roots: frozenset[str],
        taken: set[str],
    ) -> None:
        self.forms = forms
        self.imports = NeededImports(modules, roots, self.fresh)
        self.parts: list[str] = []
        self.taken = {*taken, *dir(builtins), *keyword.kwlist, *modules}
        # The names of what is written already: by value, by `id`, or by (module, name).
        self.known: dict[Any, str] = {}
        self.alive: list[Any] = []  # whose `id` is a key of `known`
        self.scalars: dict[int, Any] = {}  # forms of functions of numbers, by `id`

    def add(self, text: str, namespace: Mapping[str, Any]) -> str:
        """Return code with its free names resolved by a namespace; add what they need."""
        defined = {node.name for node in ast.parse(text).body if isinstance(node, CODE)}

        def resolve(name: FreeName) -> str | None:
            word = name.word
            if name.module or word in defined or word not in namespace:
                return None
            return self.unshadowed(self.express(namespace[word], word), name.bound_around)

        return rewrite(text, resolve, lambda name: False)

    def express(self, value: Any, name: str) -> str:
        """Return an expression for a value, and add its definition where it needs one."""
        value = self.form_of(value)
        if isinstance(value, Composed):
            value = value.function
        if isinstance(value, bool | int | float | str | type(None) | types.EllipsisType):
            return self.imports.add_for(literal(value))
        if isinstance(value, types.ModuleType):
            return self.imports.module_name(value)
        public = self.imports.public_name(value)
        if public is not None:
            return public
        if isinstance(value, Made):
            return self.define(value, name, lambda: self.make(value, name))
        if isinstance(value, tuple | list | dict):
            return self.collection(value, name)
        if isinstance(value, ArrayValue):
            return self.define(value, name, lambda: self.imports.add_for(array_literal(value)))
        if isinstance(value, np.dtype):
            return self.imports.add_for(dtype_literal(value))
        if isinstance(value, functools.partial):
            return self.partial(value, name)
        if isinstance(value, types.SimpleNamespace):  # the parts of a composite
            self.alive.append(value)
            return self.define(id(value), "parts", lambda: self.parts_of_composite(value))
        if isinstance(value, type) and issubclass(value, MultigradError):
            general = (Exception, BaseException, object, KeyError, LookupError)
            bases = [c for c in value.__mro__ if c.__module__ == "builtins" and c not in general]
            return bases[0].__name__ if bases else PLAIN_ERROR
        place = self.find_place(value)
        if place is not None:
            return self.include(*place)
        is_ours = self.imports.is_ours
        if isinstance(value, types.FunctionType) and is_ours(value.__globals__["__name__"]):
            return self.lift(value, name)
        if isinstance(value, types.MethodType | types.BuiltinMethodType):
            owner = value.__self__
            if owner is not None and not isinstance(owner, types.ModuleType):
                return f"{self.express(owner, name)}.{value.__name__}"
        imported = self.imports.object_name(value)
        if imported is None:
            raise UnsupportedOp(f"{name!r} is {value!r}, which cannot be written into a file")
        return imported

    def form_of(self, value: Any) -> Any:
        """Return the form of a value in a file if it differs there, else the value itself."""
        scalar = getattr(value, "scalar_of", None)
        if scalar is not None:
            form = self.scalars.get(id(value))
            if form is None:
                form = self.scalars[id(value)] = scalar_form(*scalar)
            return form
        try:
            return self.forms.get(value, value)
        except TypeError:  # not hashable
            return value

    def collection(self, value: Any, name: str) -> str:
        if isinstance(value, dict):
            items = (f"{self.express(k, name)}: {self.express(v, name)}" for k, v in value.items())
            return f"{{{', '.join(items)}}}"
        if type(value) not in (tuple, list):
            raise UnsupportedOp(f"{name!r} is {value!r}, which cannot be written into a file")
        inner = ", ".join(self.express(each, name) for each in value)
        if isinstance(value, list):
            return f"[{inner}]"
        return f"({inner},)" if len(value) == 1 else f"({inner})"

    def define(self, key: Any, name: str, write: Callable[[], str]) -> str:
        """Return the name of a value that is written once."""
        word = self.known.get(key)
        if word is None:
            # The name comes before the text, which may need names itself.
            word = self.known[key] = self.fresh(name)
            self.parts.append(f"{word} = {write()}")
        return word

    def make(self, value: Made, name: str) -> str:
        factory = self.express(value.factory, name)
        return f"{factory}({', '.join(self.express(each, name) for each in value.args)})"

    def partial(self, value: functools.partial[Any], name: str) -> str:
        self.imports.lines.add("import functools")
        words = [self.express(value.func, name)]
        words += [self.express(each, name) for each in value.args]
        words += [f"{key}={self.express(each, name)}" for key, each in value.keywords.items()]
        return f"functools.partial({', '.join(words)})"

    def parts_of_composite(self, value: types.SimpleNamespace) -> str:
        self.imports.lines.add("import types")
        words = [f"{name}={self.express(each, name)}" for name, each in vars(value).items()]
        return f"types.SimpleNamespace({', '.join(words)})"

    def find_place(self, value: Any) -> tuple[str, str] | None:
        """Return the module of ours, and the name there, whose statement defines a value."""
        unwrapped = inspect.unwrap(value) if callable(value) else value
        # A wrapper may name another module than the function that it wraps.
        homes: list[Any] = [getattr(each, "__module__", "") for each in (value, unwrapped)]
        for each in (unwrapped, value):
            homes.append(getattr(each, "__globals__", {}).get("__name__"))
        for module in dict.fromkeys(filter(self.imports.is_ours, homes)):
            for name, each in vars(sys.modules[module]).items():
                if each is value:
                    statement = statements.read(module).statements.get(name)
                    if isinstance(statement, CODE):
                        return module, name
        return None

    def refer(self, module: str, name: str) -> str | None:
        """Return the expression for a global name of one of our modules; None for a built-in."""
        scope = vars(sys.modules[module])
        if name not in scope:
            return None
        value = scope[name]
        if self.form_of(value) is not value or isinstance(value, types.ModuleType):
            return self.express(value, name)
        statement = statements.read(module).statements.get(name)
        if isinstance(statement, ast.ImportFrom):
            origin = statements.origin(statement, module)
            if self.imports.is_ours(origin):
                names = {each.asname or each.name: each.name for each in statement.names}
                return self.refer(origin, names[name])
        is_error = isinstance(value, type) and issubclass(value, MultigradError)
        if statement is None or is_error or isinstance(statement, ast.Import | ast.ImportFrom):
            return self.express(value, name)
        if not isinstance(statement, CODE) and isinstance(value, types.FunctionType):
            return self.express(value, name)  # another name of a function
        return self.imports.public_name(value) or self.include(module, name)

    def include(self, module: str, name: str) -> str:
        """Return the name of a definition in a module of ours, which is inlined."""
        word = self.known.get((module, name))
        if word is not None:
            return word
        statement = statements.read(module).statements[name]
        scope = vars(sys.modules[module])
        if not isinstance(statement, CODE) and not statements.defines_one(statement):
            return self.express(scope[name], name)  # one of several: by its value
        # The name comes before the text, which may refer to itself.
        word = self.known[module, name] = self.fresh(name)
        text = statements.segment(module, statement)
        if not isinstance(statement, CODE) and word != name:
            text = word + text[len(name) :]
        text = self.inline(module, text, word, {})
        self.parts.append(text)
        # Statements that add to its meaning, as `f.defvjp(...)`.
        for addition in statements.attached(module, name):
            addition_name = getattr(addition, "name", None)
            if addition_name is not None:
                self.include(module, addition_name)
            else:
                self.parts.append(self.inline(module, statements.segment(module, addition), "", {}))
        return word

    def lift(self, function: types.FunctionType, name: str) -> str:
        """Return the name of an inner function, which is inlined with what it closes over."""
        word = self.known.get(id(function))
        if word is not None:
            return word
        module = function.__globals__["__name__"]
        line = function.__code__.co_firstlineno
        statement = statements.read(module).nested.get(line)
        if statement is None:
            raise UnsupportedOp(f"{name!r} is {function!r}, whose source is no statement")
        self.alive.append(function)
        word = self.known[id(function)] = self.fresh(name)
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        closure = {each: cell.cell_contents for each, cell in cells}
        text = statements.segment(module, statement)
        self.parts.append(self.inline(module, text, word, closure, decorated=False))
        return word

    def inline(
        self,
        module: str,
        text: str,
        name: str,
        closed: Mapping[str, Any],
        decorated: bool = True,
    ) -> str:
        """Return the text of a statement of a module of ours for the file.

        Args:
            name: what it defines is called so in the file; "" if it defines nothing.
            closed: the values over which an inner function closes, by name.
            decorated: whether its decorators stay.
        """
        scope = vars(sys.modules[module])

        def is_module(word: str) -> bool:
            value = closed.get(word, scope.get(word))
            return isinstance(value, types.ModuleType) and self.imports.is_ours(value.__name__)

        def resolve(name: FreeName) -> str | None:
            expression = stands_for(name.module, name.word)
            if expression is None:
                return None
            return self.unshadowed(expression, name.bound_around)

        def stands_for(before: str, word: str) -> str | None:
            if before:
                return self.refer(scope[before].__name__, word)
            if word in closed:
                value = closed[word]
                if isinstance(value, str):
                    # An f-string holds no quotes (Python 3.11).
                    return self.define((word, value), word, lambda: literal(value))
                function_name = getattr(value, "__name__", "") if callable(value) else ""
                is_name = function_name.isidentifier() and not keyword.iskeyword(function_name)
                return self.express(value, function_name if is_name else word)
            return self.refer(module, word)

        return rewrite(text, resolve, is_module, name=name, decorated=decorated)

    def unshadowed(self, expression: str, around: frozenset[str]) -> str:
        """Return an expression that means the same where some names are bound otherwise."""
        word = re.match(r"[A-Za-z_]\w*", expression)
        if word is None or word[0] not in around:
            return expression
        alias = self.define(("other", word[0]), word[0], lambda: word[0])
        return alias + expression[word.end() :]

    def fresh(self, name: str) -> str:
        """Return a name that means nothing in the file yet."""
        word, i = name, 1
        while word in self.taken:
            word, i = f"{name}_{i}", i + 1
        self.taken.add(word)
        return word


def scalar_form(op: Op, native: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function that a file has for `op`: on Python numbers, and else `native`."""
    # `passes/simplify.py` has the same for what is lowered here.
    exact, meaning = op.on_numbers, op.numpy

    # A number that torch's compiler holds open is no float, and has no dtype either.
    def on_numbers(*args: Any) -> Any:
        if all(isinstance(a, (int, float)) or not hasattr(a, "dtype") for a in args):
            return exact(*args)  # type: ignore[misc]
        return native(*args)

    def by_numpy(*args: Any, **attrs: Any) -> Any:
        if any(hasattr(a, "dtype") and not isinstance(a, (int, float)) for a in args):
            return native(*args, **attrs)
        with np.errstate(all="ignore"):
            result = meaning(*(np.float64(a) for a in args), **attrs)
        return result.item() if hasattr(result, "item") else result

    return by_numpy if exact is None or op.attrs else on_numbers
