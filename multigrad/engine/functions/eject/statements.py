"""Statements of our own modules: found by name, and rewritten as the text of another file.

    def gate(x: Tensor) -> Tensor:             def gate(x):
        return arrays.cast(x > 0, x)     ─►        return cast(x > 0, x)

Free names are resolved, annotations taken off. Edits are made by position, so that the layout and
the comments of the source stay.
"""

from __future__ import annotations

import ast
import functools
import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

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
