"""The public names of multigrad, where each stands in the reference, and its examples.

The modules stand here and nowhere else; names come from their `__all__`, methods from their
classes. Examples are read from the source, so that a docstring needs no framework to be found;
those of functions that are made from rows, from the functions.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from multigrad.core.functions.function import FunctionBase

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs" / "reference"
# Each public module and its page, or pages.
MODULES = {
    "multigrad": "multigrad.md custom_gradients.md inspect.md errors.md",
    "multigrad.errors": "errors.md",
    "multigrad.keras": "keras.md",
    "multigrad.schedule": "schedule.md",
    "multigrad.estimators": "estimators.md",
    "multigrad.attribution": "attribution.md",
    "multigrad.models.attribution.composites": "attribution.md",
    "multigrad.core.xp": "xp.md",
    "multigrad.testing": "testing.md",
    "multigrad.transforms": "other.md",
    "multigrad.wrappers": "other.md",
    "multigrad.functional": "other.md",
    "multigrad.hook": "other.md",
    "multigrad.registry": "other.md",
    "multigrad.context": "other.md",
    "multigrad.optax": "other.md",
    "multigrad.compat.norse": "other.md",
    "multigrad.compat.snntorch": "other.md",
    "multigrad.compat.spikingjelly": "other.md",
    "multigrad.backend": "backend.md backend_code.md",
}
MADE = "multigrad.core.trace.xp.ops"
# Names of modules without an `__all__`.
NAMES = {
    "multigrad.errors": ("RuleValueError", "RuleTypeError", "DisprovedError", "NotProvenWarning"),
}
# The classes whose public methods and properties are names too, and their pages.
CLASSES = {
    "multigrad.core.rules.rule.Rule": "objects.md",
    "multigrad.engine.functions.function.Function": "objects.md",
    "multigrad.models.attach.Attachment": "objects.md",
    "multigrad.models.selectors.Row": "objects.md",
    "multigrad.models.override.Overridden": "objects.md",
    "multigrad.look.check.CheckReport": "objects.md",
    "multigrad.look.parity.ParityReport": "objects.md",
    "multigrad.look.parity.ParityRow": "objects.md",
    "multigrad.engine.backend.statuses.BackendStatus": "objects.md",
    "multigrad.models.attribution.relevance.Relevance": "objects.md",
    "multigrad.models.attribution.composites.Composite": "attribution.md",
    "multigrad.schedule.Schedule": "schedule.md",
}
# Methods that other rooms of multigrad call, and nobody else.
INNER = {
    "Function": {
        *("apply", "call_anew", "call_eagerly", "captures", "choose", "completion", "counter"),
        *(
            "defaults",
            "document",
            "fused",
            "native",
            "parameters",
            "recipe",
            "replace",
            "residuals",
        ),
    },
    "Attachment": {"rows"},
    "CheckReport": {"shown"},
    "Overridden": {"captured_form"},
    "Relevance": {"key"},
    "Schedule": {"follow", "following", "meet_followers", "take", "all_following"},
}


@dataclass(frozen=True, slots=True)
class Example:
    """The examples of one docstring: `>>>` lines with what they print."""

    where: str
    text: str

    @property
    def needs(self) -> tuple[str, ...]:
        """The packages that they import, themselves or through our modules."""
        return tuple(sorted(packages_in(self.text)))


THROUGH = {
    r"multigrad\.keras|xg\.keras": ("keras",),
    r"multigrad\.optax|xg\.optax": ("optax", "jax"),
    r"multigrad\.(hook|functional|wrappers|compat)|xg\.Activation|doctor\(.torch.\)": ("torch",),
}
IMPORT = re.compile(r"^\s*(?:>>>|\.\.\.)?\s*(?:import|from)\s+(\w.*)$", re.MULTILINE)
KNOWN = ("torch", "jax", "tensorflow", "keras", "optax", "flax", "matplotlib", "norse", "pytest")


def packages_in(text: str) -> set[str]:
    """Return the packages that a text of examples imports."""
    found = {
        part for pattern, parts in THROUGH.items() if re.search(pattern, text) for part in parts
    }
    for line in IMPORT.findall(text):
        words = {part.strip().split(".")[0].split(" ")[0] for part in line.split(",")}
        found |= words & set(KNOWN)
    return found


def examples() -> Iterator[Example]:
    """Yield the examples of every docstring in the sources, by the place of its object."""
    for folder in ("multigrad", "backends"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield from examples_of(path)
    made = importlib.import_module(MADE)
    for name in made.__all__:
        yield Example(f"{MADE}.{name}", inspect.getdoc(getattr(made, name)) or "")


def examples_of(path: Path) -> Iterator[Example]:
    source = path.read_text(encoding="utf-8")
    if ">>>" not in source:
        return
    base = path.relative_to(ROOT).with_suffix("").as_posix().removeprefix("backends/")
    module = base.removesuffix("/__init__").replace("/", ".")
    documented = (ast.Module, ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef)

    def walk(node: Any, name: str) -> Iterator[Example]:
        text = ast.get_docstring(node) or ""
        if ">>>" in text:
            yield Example(name, text)
        for child in ast.iter_child_nodes(node):
            if isinstance(child, documented):
                yield from walk(child, f"{name}.{child.name}")

    yield from walk(ast.parse(source), module)


def public_names() -> dict[str, str]:
    """Return the public names with their pages; needs every framework."""
    found = {}
    for module, page in MODULES.items():
        loaded = importlib.import_module(module)
        for name in NAMES.get(module) or loaded.__all__:
            found[f"{module}.{name}"] = page
    for path, page in CLASSES.items():
        module, _, name = path.rpartition(".")
        kind = getattr(importlib.import_module(module), name)
        found[path] = page
        inherited = vars(FunctionBase) if issubclass(kind, FunctionBase) else {}
        for member, value in {**inherited, **vars(kind)}.items():
            is_public = not member.startswith("_") and member not in INNER.get(name, ())
            if is_public and (callable(value) or isinstance(value, property)):
                found[f"{path}.{member}"] = page
    return found


def find(name: str) -> Any:
    parts = name.split(".")
    for i in range(max(len(parts) - 1, 1), 0, -1):  # a name before a room that is called so too
        try:
            found = importlib.import_module(".".join(parts[:i]))
        except ModuleNotFoundError:
            continue
        for part in parts[i:]:
            found = getattr(found, part)
        return found
    raise LookupError(name)


def text_of(pages: str) -> str:
    """Return the text of a page of the reference, or of several that share a module."""
    return "\n".join((PAGES / page).read_text(encoding="utf-8") for page in pages.split())


def directives(page: str) -> set[str]:
    """Return the names that a page of the reference shows by `:::` or as headings, with members."""
    found = set()
    for block in re.split(r"^::: ", text_of(page), flags=re.MULTILINE)[1:]:
        name, _, rest = block.partition("\n")
        options = re.match(r"(?:[ \t]+.*\n?|\n)*", rest)
        found.add(name.strip())
        found.update(re.findall(r"heading: (multigrad\.[\w.]+)$", rest, flags=re.MULTILINE))
        members = re.search(r"members:\s*\[([^\]]*)\]", options.group(0) if options else "")
        if members:
            found |= {f"{name.strip()}.{each.strip()}" for each in members[1].split(",")}
        elif "." in name and is_module(name.strip()):
            found |= {f"{name.strip()}.{each}" for each in find(name.strip()).__all__}
    return found


def is_module(name: str) -> bool:
    """Return whether a dotted name is that of a file of ours."""
    path = name.replace(".", "/")
    return any((ROOT / base / f"{path}.py").is_file() for base in ("", "backends"))


def words_in_blocks(page: str) -> set[str]:
    """Return the names that the Python blocks of a page use; those blocks run as tests."""
    found: set[str] = set()
    for block in re.findall(
        r"^```python\n(.*?)^```", text_of(page), flags=re.DOTALL | re.MULTILINE
    ):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.Attribute):
                found.add(node.attr)
            elif isinstance(node, ast.Name):
                found.add(node.id)
            elif isinstance(node, ast.alias):
                found.add(node.name)
    return found
