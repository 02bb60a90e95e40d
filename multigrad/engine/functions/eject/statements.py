"""Statements of our own modules: found by name, and rewritten as the text of another file.

    def gate(x: Tensor) -> Tensor:             def gate(x):
        return arrays.cast(x > 0, x)     ─►        return cast(x > 0, x)

Free names are resolved, annotations taken off. Edits are made by position, so that the layout and
the comments of the source stay.
"""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import math
import re
import sys
import textwrap
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from ....core.ir.graph import ArrayValue
from ....core.support.records import cached_property
from ....errors import UnsupportedOp

WIDEST = 100  # columns of a docstring
CODE = (ast.FunctionDef, ast.ClassDef)
Function = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
Edit: TypeAlias = tuple[int, int, str]  # first byte, byte after the last, the new text
REMARKS = re.compile(r"[ \t]+# (type: ignore|noqa)[^\n]*")


class FreeName(NamedTuple):
    """A name that a statement reads without binding it.

    Attributes:
        module: the name of a module of ours before it, as `arrays` in `arrays.cast`; "" for none.
        bound_around: the names that mean something else there.
        node: the place, with the module.
    """

    word: str
    module: str
    bound_around: frozenset[str]
    node: ast.AST

    @property
    def text(self) -> str:
        return f"{self.module}.{self.word}" if self.module else self.word


# The expression that stands for a name in the file; None: the name stays.
Resolve: TypeAlias = Callable[[FreeName], str | None]


def rewrite(
    text: str,
    resolve: Resolve,
    ours: Callable[[str], bool],
    *,
    name: str = "",
    decorated: bool = True,
) -> str:
    """Return a statement with its free names resolved.

    Args:
        ours: whether a name is bound to a module of ours, whose attributes are names too.
        name: what the function or class is called in the file; its own name where empty.
        decorated: whether its decorators stay.
    """
    tree = ast.parse(text)
    source = _EditedText(text)
    statement = tree.body[0]
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        if name and name != statement.name:
            source.rename(statement, name)
        if not decorated:
            source.undecorate(statement)
    for node in ast.walk(tree):
        source.strip(node)
    skipped_ids = set() if decorated else set(map(id, getattr(statement, "decorator_list", ())))
    bound = _bound(tree) if len(tree.body) > 1 else frozenset()
    for node, bound_around in _find_free(tree, bound, skipped_ids):
        free = _free_name(node, bound_around, ours)
        expression = resolve(free)
        if expression is not None and expression != free.text:
            assert source.text_of(free.node) == free.text
            source.edit(free.node, expression)
    return REMARKS.sub("", source.edited())


class _EditedText:
    """A text and its edits, which `edited` applies; a syntax tree counts the bytes of a line."""

    def __init__(self, text: str) -> None:
        self.data = text.encode()
        self.starts = [0]
        for line in self.data.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))
        self.edits: list[Edit] = []

    def at(self, line: int, column: int) -> int:
        return self.starts[line - 1] + column

    def start(self, node: ast.AST) -> int:
        return self.at(node.lineno, node.col_offset)  # type: ignore[attr-defined]

    def end(self, node: ast.AST) -> int:
        return self.at(node.end_lineno, node.end_col_offset)  # type: ignore[attr-defined]

    def text_of(self, node: ast.AST) -> str:
        return self.data[self.start(node) : self.end(node)].decode()

    def edit(self, node: ast.AST, text: str) -> None:
        self.edits.append((self.start(node), self.end(node), text))

    def rename(self, node: ast.FunctionDef | ast.ClassDef, name: str) -> None:
        word = b"class" if isinstance(node, ast.ClassDef) else b"def"
        start = self.data.index(node.name.encode(), self.start(node) + len(word))
        self.edits.append((start, start + len(node.name.encode()), name))

    def undecorate(self, node: ast.FunctionDef | ast.ClassDef) -> None:
        if node.decorator_list:
            start = self.at(node.decorator_list[0].lineno, 0)
            self.edits.append((start, self.at(node.lineno, 0), ""))

    def strip(self, node: ast.AST) -> None:
        """Take annotations off, and all of a docstring but its first sentence."""
        if isinstance(node, ast.arg) and node.annotation is not None:
            start = self.start(node) + len(node.arg.encode())
            self.edits.append((start, self.end(node.annotation), ""))
        elif isinstance(node, ast.AnnAssign):
            start, end = self.end(node.target), self.end(node.annotation)
            self.edits.append((start, end, ""))
        elif isinstance(node, ast.FunctionDef):
            self._strip_return(node)
            self._hug_defaults(node.args)
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            self._shorten_docstring(node)

    def _strip_return(self, node: ast.FunctionDef) -> None:
        if node.returns is None:
            return
        start = self.data.rindex(b"->", 0, self.start(node.returns))
        self.edits.append((start, self.end(node.returns), ""))
        while self.data[start - 1 : start] == b" ":
            start -= 1
            self.edits.append((start, start + 1, ""))

    def _hug_defaults(self, args: ast.arguments) -> None:
        # A default follows without spaces where no annotation comes before it.
        positional = [*args.posonlyargs, *args.args]
        count = len(positional) - len(args.defaults)
        pairs = [*zip(positional[count:], args.defaults, strict=True)]
        pairs += [(a, d) for a, d in zip(args.kwonlyargs, args.kw_defaults, strict=True) if d]
        for arg, default in pairs:
            if arg.annotation is not None:
                self.edits.append((self.end(arg.annotation), self.start(default), "="))

    def _shorten_docstring(self, node: ast.FunctionDef | ast.ClassDef) -> None:
        docstring = ast.get_docstring(node)
        if docstring is None:
            return
        # The first sentence, or nothing where that does not fit on a line.
        paragraph = " ".join(docstring.partition("\n\n")[0].split())
        sentence = re.split(r"(?<=\w)[.:;] ", paragraph)[0].rstrip(".") + "."
        indent = node.body[0].col_offset
        if len(sentence) + indent + 6 > WIDEST and len(node.body) > 1:
            start = self.at(node.body[0].lineno, 0)
            self.edits.append((start, self.at((node.body[0].end_lineno or 0) + 1, 0), ""))
            return
        quoted = repr(sentence)[1:-1].replace("\\'", "'").replace('"', '\\"')
        self.edit(node.body[0], f'"""{quoted}"""')

    def edited(self) -> str:
        data, text, position = self.data, b"", 0
        for start, end, replacement in sorted(set(self.edits)):
            if start < position:  # within what has been replaced
                continue
            text += data[position:start] + replacement.encode()
            position = end
        return (text + data[position:]).decode()


def _find_free(
    node: ast.AST, bound: frozenset[str], dropped: set[int]
) -> Iterator[tuple[ast.AST, frozenset[str]]]:
    """Yield each free name, with the attributes taken of it, and the names bound around it.

    `dropped` has the `id` of nodes that are not looked into.
    """
    if id(node) in dropped:
        return
    if isinstance(node, ast.Global | ast.Nonlocal):
        if isinstance(node, ast.Nonlocal) and bound.issuperset(node.names):
            return  # a variable of a function around it, within the text
        raise UnsupportedOp(f"it changes a variable outside it, {', '.join(node.names)}")
    if isinstance(node, ast.arg | ast.AnnAssign):  # the annotation is taken off
        if isinstance(node, ast.AnnAssign) and node.value is not None:
            yield from _find_free(node.value, bound, dropped)
        return
    if isinstance(node, ast.Attribute | ast.Name):
        inner: ast.AST = node
        while isinstance(inner, ast.Attribute):
            inner = inner.value
        if isinstance(inner, ast.Name):
            if isinstance(inner.ctx, ast.Load) and inner.id not in bound:
                yield node, bound
            return
    if isinstance(node, Function):
        outer = [*getattr(node, "decorator_list", ())]
        outer += [each for each in (*node.args.defaults, *node.args.kw_defaults) if each]
        for each in outer:
            yield from _find_free(each, bound, dropped)
        inner_bound = bound | _bound(node)
        for each in node.body if isinstance(node.body, list) else [node.body]:
            yield from _find_free(each, inner_bound, dropped)
        return
    if isinstance(node, ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp):
        targets = {
            n.id for g in node.generators for n in ast.walk(g.target) if isinstance(n, ast.Name)
        }
        bound = bound | targets
    for child in ast.iter_child_nodes(node):
        yield from _find_free(child, bound, dropped)


def _free_name(
    node: ast.AST, bound_around: frozenset[str], ours: Callable[[str], bool]
) -> FreeName:
    # An attribute of a module of ours is a name, too: the module comes before it.
    chain = [node]
    while isinstance(chain[-1], ast.Attribute):
        chain.append(chain[-1].value)
    root = chain[-1]
    assert isinstance(root, ast.Name)
    if len(chain) == 1 or not ours(root.id):
        return FreeName(root.id, "", bound_around, root)
    attribute = chain[-2]
    assert isinstance(attribute, ast.Attribute)
    return FreeName(attribute.attr, root.id, bound_around, attribute)


def _bound(node: ast.AST) -> frozenset[str]:
    """Return the names that a function, or the top level, binds; inner functions bind their own."""
    names: set[str] = set()
    outer_names: set[str] = set()
    args = getattr(node, "args", None)
    if isinstance(args, ast.arguments):
        parameters = [*args.posonlyargs, *args.args, *args.kwonlyargs, args.vararg, args.kwarg]
        names.update(arg.arg for arg in parameters if arg is not None)
    body = node.body if isinstance(node.body, list) else [node.body]  # type: ignore[attr-defined]
    stack: list[ast.AST] = [*body]
    while stack:
        each = stack.pop()
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(each.name)
            continue
        if isinstance(each, ast.Lambda):
            continue
        if isinstance(each, ast.Name) and not isinstance(each.ctx, ast.Load):
            names.add(each.id)
        elif isinstance(each, ast.Import | ast.ImportFrom):
            names.update(alias.asname or alias.name.partition(".")[0] for alias in each.names)
        elif isinstance(each, ast.ExceptHandler) and each.name:
            names.add(each.name)
        elif isinstance(each, ast.Global | ast.Nonlocal):
            outer_names.update(each.names)
        stack.extend(ast.iter_child_nodes(each))
    return frozenset(names - outer_names)


class ModuleSource:
    def __init__(self, module: str) -> None:
        self.text = inspect.getsource(sys.modules[module])
        self.tree = ast.parse(self.text)

    @cached_property
    def statements(self) -> Mapping[str, ast.stmt]:
        """The top-level statements by the names that they bind."""
        return {name: each for each in self.tree.body for name in _names_of(each)}

    @cached_property
    def nested(self) -> Mapping[int, ast.FunctionDef]:
        """All functions by their first lines, those of their decorators."""
        return {
            min([node.lineno, *(each.lineno for each in node.decorator_list)]): node
            for node in ast.walk(self.tree)
            if isinstance(node, ast.FunctionDef)
        }


read = functools.cache(ModuleSource)


def _names_of(statement: ast.stmt) -> Iterator[str]:
    if isinstance(statement, CODE):
        yield statement.name
    elif isinstance(statement, ast.Import | ast.ImportFrom):
        yield from (alias.asname or alias.name.partition(".")[0] for alias in statement.names)
    elif isinstance(statement, ast.Assign | ast.AnnAssign):
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                yield node.id


def defines_one(statement: ast.stmt) -> bool:
    """Return whether a statement assigns to one name, and to nothing else."""
    if isinstance(statement, ast.AnnAssign):
        return isinstance(statement.target, ast.Name)
    return (
        isinstance(statement, ast.Assign)
        and len(statement.targets) == 1
        and isinstance(statement.targets[0], ast.Name)
    )


def segment(module: str, statement: ast.AST) -> str:
    """Return the text of a statement, its decorators included."""
    lines = read(module).text.splitlines(keepends=True)
    decorators = getattr(statement, "decorator_list", ())
    first_line = min([statement.lineno, *(d.lineno for d in decorators)])  # type: ignore[attr-defined]
    last_line = statement.end_lineno  # type: ignore[attr-defined]
    text = textwrap.dedent("".join(lines[first_line - 1 : last_line])).rstrip("\n")
    # What a formatter leaves alone here it must leave alone there.
    marks = [line.strip() for line in lines[: first_line - 1] if line.startswith("# fmt: o")]
    return f"{text}  # fmt: skip" if marks and marks[-1] == "# fmt: off" else text


def attached(module: str, name: str) -> Iterator[ast.stmt]:
    """Yield the statements that call a method of a name, as `f.defvjp(...)` or `@f.def_vmap`."""
    for statement in read(module).tree.body:
        if isinstance(statement, ast.FunctionDef):
            heads: list[ast.expr] = statement.decorator_list
        else:  # a call, perhaps where there is such a method
            body = statement.body if isinstance(statement, ast.If) else [statement]
            heads = [each.value for each in body if isinstance(each, ast.Expr)]
        for head in heads:
            callee: Any = head.func if isinstance(head, ast.Call) else head
            owner = callee.value if isinstance(callee, ast.Attribute) else None
            if isinstance(owner, ast.Name) and owner.id == name:
                yield statement
                break


def origin(statement: ast.ImportFrom, module: str) -> str:
    """Return the module from which a statement of `module` imports, by its full name."""
    if not statement.level:
        return statement.module or ""
    holder = sys.modules[module]
    package = holder.__spec__.parent if holder.__spec__ else ""
    base = (package or "").split(".")
    base = base[: len(base) - statement.level + 1]
    return ".".join([*base, *([statement.module] if statement.module else [])])


# --- expressions: what they import, and numbers, dtypes and arrays to the bit ---------------------
STANDARD = sys.stdlib_module_names
LISTED = 64  # elements up to which an array is written as a list
LINE = 40  # bytes in a line of hexadecimal digits


class NeededImports:
    """The imports of a file that is being written; who asks for a name adds what it needs.

    Attributes:
        modules: the framework's modules by the names under which the file has them.
        roots: the packages that a file must not import: ours, and the backend's.
        fresh: returns a name that means nothing in the file yet.
        lines: the statements so far.
    """

    def __init__(
        self,
        modules: Mapping[str, types.ModuleType],
        roots: frozenset[str],
        fresh: Callable[[str], str],
    ) -> None:
        self.modules, self.roots, self.fresh = modules, roots, fresh
        self.lines: set[str] = set()
        self._public = _public_names(modules)
        self._objects: dict[tuple[str, str], str] = {}  # names in the file, by module and name

    def text(self) -> str:
        """Return the statements in two blocks, Python's own modules first; one for each module."""
        names: dict[str, list[str]] = {}
        for line in sorted(self.lines):
            head, _, name = line.partition(" import ")
            names.setdefault(head if name else line, []).extend([name] if name else [])
        blocks: tuple[list[str], list[str]] = [], []
        for head in sorted(names, key=lambda head: (head.startswith("from"), head)):
            root = head.split()[1].partition(".")[0]
            line = f"{head} import {', '.join(names[head])}" if names[head] else head
            blocks[root not in sys.stdlib_module_names].append(line)
        return "\n\n".join("\n".join(block) for block in blocks if block)

    def is_ours(self, module: str | None) -> bool:
        return (module or "").partition(".")[0] in self.roots

    def public_name(self, value: Any) -> str | None:
        """Return a framework's public name for an object, None if it has none."""
        public, expression = self._public.get(id(value), (None, ""))
        if public is not value or not expression:
            return None
        self.add_root(expression.partition(".")[0])
        return expression

    def add_root(self, alias: str) -> None:
        """Import a module of the framework under the name that it has in the file."""
        module = self.modules[alias].__name__
        self.lines.add(f"import {module}" if module == alias else f"import {module} as {alias}")

    def module_name(self, module: types.ModuleType) -> str:
        """Return the expression for a module that is not ours."""
        for alias, candidate in self.modules.items():
            if candidate is module:
                self.add_root(alias.partition(".")[0])
                return alias
        if self.is_ours(module.__name__):
            raise UnsupportedOp(f"the module {module.__name__} itself is used")
        parent, _, name = module.__name__.rpartition(".")
        if parent and parent not in sys.modules:  # torch.ops is an attribute alone before torch 2.5
            self.lines.add(f"import {parent.partition('.')[0]}")
            return module.__name__
        self.lines.add(f"from {parent} import {name}" if parent else f"import {name}")
        return name

    def add_for(self, expression: str) -> str:
        """Return an expression unchanged, and import the modules that it names."""
        for root in {word.partition(".")[0] for word in re.findall(r"[A-Za-z_][\w.]*", expression)}:
            if root in self.modules:
                self.add_root(root)
            elif root in ("math", "ml_dtypes"):
                self.lines.add(f"import {root}")
            elif root == "np":
                self.lines.add("import numpy as np")
        return expression

    def object_name(self, value: Any) -> str | None:
        """Return the name of an object that another package defines; None if it has none there."""
        module = getattr(value, "__module__", None)
        name = getattr(value, "__qualname__", getattr(value, "__name__", None))
        if not module or not name or self.is_ours(module) or "<" in name:
            return None
        candidate: Any = importlib.import_module(module)
        for part in name.split("."):
            candidate = getattr(candidate, part, None)
        if candidate is not value:
            return None
        if module == "builtins":
            return name
        if module.partition(".")[0] in STANDARD:
            module = module.removeprefix("_")  # operator's functions say _operator
            self.lines.add(f"import {module}")
            return f"{module}.{name}"
        root, dot, attributes = name.partition(".")
        word = self._objects.get((module, root))
        if word is None:  # what calls it may have its name
            word = self._objects[module, root] = self.fresh(root)
            alias = "" if word == root else f" as {word}"
            self.lines.add(f"from {module} import {root}{alias}")
        return word + dot + attributes


def _public_names(modules: Mapping[str, types.ModuleType]) -> dict[int, tuple[Any, str]]:
    # Keyed by `id`, as not all objects have a hash; an object's own name is preferred.
    names: dict[int, tuple[Any, str]] = {}
    for alias, module in modules.items():
        for name, value in vars(module).items():
            if name.startswith("_") and "._" not in alias:
                continue
            if isinstance(value, types.ModuleType | bool | int | float | str | dict | tuple):
                continue
            entry = names.get(id(value))
            is_named_so = getattr(value, "__name__", None) == name
            if entry is None or (is_named_so and entry[1].startswith(f"{alias}.")):
                names[id(value)] = value, f"{alias}.{name}"
    return names


def literal(value: Any) -> str:
    """Return a number, a string or None; Python has no literal for infinity and NaN."""
    if isinstance(value, float) and not math.isfinite(value):
        name = "math.nan" if math.isnan(value) else "math.inf"
        return f"-{name}" if value < 0 else name
    if isinstance(value, str):
        quoted = repr(value)
        is_plain = quoted.startswith("'") and '"' not in quoted and "\\" not in quoted
        return f'"{quoted[1:-1]}"' if is_plain else quoted
    return repr(value)


def dtype_literal(value: np.dtype[Any]) -> str:
    package = value.type.__module__.partition(".")[0]
    return (
        f"np.dtype(ml_dtypes.{value.name})"
        if package == "ml_dtypes"
        else f'np.dtype("{value.name}")'
    )


def array_literal(value: ArrayValue) -> str:
    """Return the expression of a NumPy array: a list of its numbers, or its bytes."""
    array = np.frombuffer(value.data, np.dtype(value.dtype))
    is_short = array.size <= LISTED
    if is_short and array.size and np.all(np.isfinite(array.astype(np.float64))):
        return f'np.array({array.reshape(value.shape).tolist()!r}, "{value.dtype}")'
    digits = value.data.hex()
    lines = [f'"{digits[i : i + 2 * LINE]}"' for i in range(0, len(digits), 2 * LINE)]
    text = "\n    ".join(lines) or '""'
    return (
        f'np.frombuffer(\n    bytes.fromhex(\n    {text}\n    ),\n    "{value.dtype}",\n'
        f").reshape({value.shape!r})"
    )
