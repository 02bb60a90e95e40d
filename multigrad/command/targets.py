"""Targets of commands: what a name refers to, and which targets a module defines.

Every command takes the same names: of a rule, `estimators.NAME`, a saved `.json`, a name in a file
or a module, behind it and a colon; and a file or a module alone, for all that it defines.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import io
import itertools
import pkgutil
import re
import sys
import types
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any, NamedTuple

import multigrad as xg
from multigrad.command.guessed_inputs import (
    INPUTS_IN_CODE,
    choose_inputs,
    find_in,
    import_named,
    is_known,
    number_hints,
    read_inputs,
    split_name,
)
from multigrad.command.messages import sent
from multigrad.command.worker import Apart, Lost
from multigrad.core.backend.discovery import OWN, in_use, load_backend
from multigrad.core.backend.values import owner_of
from multigrad.core.ops.numerics import ignoring_warnings
from multigrad.core.rules.registry import resolve
from multigrad.core.rules.rule import Rule
from multigrad.core.support.installed import install_line, requirements_of
from multigrad.engine.capture.user_code.inspection import mentioned, nested_codes
from multigrad.engine.capture.user_code.libraries import dialect_of
from multigrad.engine.functions.calls.parameters import read_parameters
from multigrad.engine.functions.function import Function, uncaptured
from multigrad.engine.functions.importers import find_custom, is_custom
from multigrad.engine.support.extras import load_alone
from multigrad.errors import MultigradError, RuleError
from multigrad.look.convert import brief, run_where_it_ends
from multigrad.look.subject import run

# Endings that make a forward's name that of its VJP, and names of cotangents.
PAIRED = ("_vjp", "_backward", "_bwd", "_grad", "_pullback")
COTANGENTS = re.compile(r"g|gy|dy|dz|dout|ct|cot|upstream|cotangents?|(d|g|grad)_?(out|outputs?|y)")
IN_NUMPY = ("", "numpy", "scipy", "autograd")
# Names that a function has which makes a custom gradient; `Function` of a class with a backward.
MAKERS = {"custom_gradient", "custom_vjp", "custom_jvp"}
MODELS = {"Module": ("torch", "equinox"), "Layer": ("keras", "tf_keras")}
DEPTH = 3  # of functions between a module and a custom gradient
MOST_NAMED = 12  # targets in an error


class FoundTarget(NamedTuple):
    """The object that a word names, its inputs, if any, and where `choose_inputs` has them from."""

    object: Any
    inputs: list[Any]
    source: str = ""


def find(what: str, forward: str | None = None, words: Sequence[str] | None = None) -> Any:
    """Return the rule, Function or activation that a word names; see `find_with_inputs`."""
    return find_with_inputs(what, forward, words).object


def find_with_inputs(
    what: str,
    forward: str | None = None,
    words: Sequence[str] | None = None,
    dtype: str = "",
    *,
    locked: Mapping[str, Any] = MappingProxyType({}),
    uncalled: bool = False,
) -> FoundTarget:
    """Return the object that a word names, and the inputs with which it was captured, or that its
    module states.

    A custom gradient of a framework, or a function that applies one, is converted and called once,
    a Function if nobody called it.

    Args:
        forward: the activation to put a rule under.
        words: the inputs; else those that the module states, or guessed ones. None: the command
            has no option for them.
        dtype: of the words that name none, float32 if it is "". With a dtype the gradient has to
            run, too.
        locked: all arguments of a lock by their names, `...` where it does not hold the input.
        uncalled: whether a Function is captured with these inputs alone, whatever it was called
            with; as it was called if no inputs are found.
    """
    name, *others = names = names_of(what)
    if others:
        raise MultigradError(f"{what} has {len(names)} targets; name one of {_listed(names)}")
    target: Any = callable_of(find_target(name))
    stated = None if words else stated_inputs(name)
    is_function, kind = isinstance(target, Function), dtype or "float32"
    if forward is not None:
        if is_function:
            message = f"{what} is a Function, which has a forward of its own; leave --forward out"
            raise MultigradError(message)
        rule = resolve(target) if inspect.isfunction(target) else target
        arrays = read_inputs(words or (), kind) or [*(stated or ())]
        return FoundTarget(xg.activation(find_forward(forward), rule=rule), arrays)
    if isinstance(target, Rule) and words:
        raise MultigradError(f"{what} is a rule, which takes --input only with --forward")
    # Python takes what is a descriptor for a routine.
    is_own = isinstance(target, Function | Rule)
    is_foreign = not is_own and (find_custom(target) is not None or inspect.isroutine(target))
    is_anew = uncalled and isinstance(target, Function) and target.document is None
    needs_call = is_function and (bool(dtype) or not is_known(target))
    if not (words or is_foreign or is_anew or needs_call):
        return FoundTarget(target, [*(stated or ())])
    tried: Any = uncaptured(target) if is_anew and isinstance(target, Function) else target
    function: Any = xg.convert(target) if is_foreign else tried
    if is_anew:
        function = uncaptured(function)  # inputs are tried with one, and the graphs are of another
    as_locked = partial(put_locked, function, locked)
    run_original = lambda fn, inputs: run_where_it_ends(fn, as_locked(inputs))
    try:
        source, inputs = choose_inputs(name, tried, words, stated, run_original, dtype=kind)
    except MultigradError:
        if is_anew and is_known(target):
            return FoundTarget(target, [])
        raise
    inputs = as_locked(inputs)
    try:
        if is_anew and not (words or stated):
            run_original(function, inputs)  # as where they are tried with the Function itself
        capture_with(function, inputs, runs_gradient=bool(dtype))
    except Exception as error:  # of the framework, too
        reason = "; ".join([brief(error).rstrip("."), *number_hints(words or ())])
        raise MultigradError(f"{name} does not run: {reason}") from error
    return FoundTarget(function, inputs, source)


def put_locked(
    function: Function[..., Any], locked: Mapping[str, Any], inputs: Sequence[Any]
) -> list[Any]:
    """Return the inputs with the arguments that a lock holds in their places."""
    signature = function.parameters if locked else None
    parameters = signature.parameters.values() if signature else ()
    positional = [p for p in parameters if p.kind <= p.POSITIONAL_OR_KEYWORD]
    pairs = [*itertools.zip_longest(positional, inputs)]
    # A last argument that the lock lacks had its default; None: one of `*args`.
    while pairs and (p := pairs[-1][0]) and p.name not in locked and p.default is not p.empty:
        pairs.pop()
    return [
        each if p is None or (value := locked.get(p.name, ...)) is ... else value
        for p, each in pairs
    ]


def capture_with(
    function: Function[..., Any], inputs: Sequence[Any], *, runs_gradient: bool
) -> None:
    """Call a Function once, which captures its graph; with its gradient if it has to run, too."""
    function(*inputs)
    if runs_gradient:
        owners = filter(None, map(owner_of, inputs))
        run(function, next(owners, None) or load_backend("numpy"), inputs)


def find_forward(word: str) -> Any:
    """Return an activation's name, or the function that module:name stands for."""
    module, name = split_name(word)
    return find_in(import_target(module), name) if name else word


def stated_inputs(what: str) -> Any:
    """Return the inputs that a module states for one of its names; None: it states none."""
    inputs = getattr(holder_of(what), INPUTS_IN_CODE, {}).get(split_name(what)[1])
    return inputs() if callable(inputs) else inputs


def find_beside(target: str, word: str) -> Any:
    """Return the object that a word names, a name alone where another target is."""
    module, name = split_name(word)
    return find_in(import_target(module if name else split_name(target)[0]), name or word)


def callable_of(target: Any) -> Any:
    """Return a pair of a forward and its VJP as a Function, any other target as it is."""
    return xg.function(*target) if isinstance(target, tuple) else target


# --- one target -----------------------------------------------------------------------------------
def find_target(what: str) -> Any:
    """Return the object that a name refers to: a rule, a Function, a custom gradient, a pair of a
    forward and its VJP, or something else.
    """
    if is_of_library(what):
        if what.endswith(".json"):
            return xg.load(what)
        if what.startswith("estimators."):
            return find_in(xg.estimators, what.removeprefix("estimators."))
        return xg.get(what)
    module, name = split_name(what)
    holder = import_target(module)
    if "::" in name:
        operator = _find_operator(name)
        if operator is None:
            raise MultigradError(f"{module} registers no operator {name!r}")
        return operator
    obj = find_in(holder, name)
    if _is_written_as_rule(obj):
        return resolve(obj)
    return pair_of(holder, name, obj) or _find_operator(obj) or obj


def holder_of(what: str) -> types.ModuleType | None:
    """Return the module of a target, None for a rule, a saved file or a Function of multigrad."""
    return None if is_of_library(what) else import_target(split_name(what)[0])


def is_of_library(what: str) -> bool:
    """Tell a rule's name, estimators.NAME and a saved file from files and modules of code."""
    if split_name(what)[1] or what.endswith(".py"):
        return False
    return what.endswith(".json") or what.startswith("estimators.") or what in xg.rules()


# --- all targets of a file, a module or a package -------------------------------------------------
RULE, GRADIENT, MODEL, UNMADE = "rule", "gradient", "model", "model that needs arguments"
SKIPPED = ("test", "tests", "testing", "conftest", "__main__", "setup")


class Targets(NamedTuple):
    """The targets that a word stands for.

    Attributes:
        kinds: by its name, as `find_target` reads it, what each is: RULE, GRADIENT, MODEL, or
            UNMADE: a class of models that cannot be made without arguments.
        unimported: modules that cannot be imported, with the reason.
        makers: functions that make a custom gradient when they are called, which are no targets.
    """

    kinds: Mapping[str, str]
    unimported: Mapping[str, str] = {}
    makers: Sequence[str] = ()

    def of(self, *kinds: str) -> tuple[str, ...]:
        return tuple(name for name, kind in self.kinds.items() if kind in kinds)

    @property
    def left_out(self) -> str:
        """A sentence on the makers, of which there are some."""
        verb = "makes its custom gradient" if len(self.makers) == 1 else "make a custom gradient"
        names = _listed([each.rpartition(":")[2] for each in self.makers])
        return f"left out: {names}, which {verb} when called: name {self.makers[0]}"


sent(Targets)


def _listed(names: Sequence[str]) -> str:
    return f"{', '.join(names[:MOST_NAMED])}{', ...' if len(names) > MOST_NAMED else ''}"


def names_of(what: str) -> tuple[str, ...]:
    """Return the names of the rules and gradients that a word stands for: at least one."""
    targets = find_targets(what)
    names = targets.of(RULE, GRADIENT)
    if not names:
        message = f"{what} defines no rule, no Function and no custom gradient"
        raise MultigradError(f"{message}; {targets.left_out}" if targets.makers else message)
    return names


def find_targets(what: str, journal: str = "", skipped: Collection[str] = ()) -> Targets:
    """Find what a word stands for: the target that it names, or all of a file, a module or a
    package and its submodules.

    Args:
        journal: a file to which the name of each submodule is written before its import, which may
            end the process.
        skipped: submodules that are not imported.
    """
    word, name = split_name(what)
    if name or is_of_library(what):
        return Targets({what: RULE if isinstance(find_target(what), Rule) else GRADIENT})
    package = _import_word(what)
    home = package.__name__
    unimported: dict[str, str] = {}
    _import_submodules(package, unimported, journal, skipped)
    # The dots keep package `ab` from counting as part of `a`.
    loaded = [(n, m) for n, m in sorted(sys.modules.items()) if f"{n}.".startswith(f"{home}.")]
    modules = [m for n, m in loaded if m and not any(map(_is_test, n[len(home) :].split(".")))]
    kinds: dict[str, str] = {}
    ids, makers = set[int](), list[str]()
    for module in modules:
        for name, value in _without_aliases(module):
            # One object may still have several names; the first one in order stays.
            if id(value) not in ids and (kind := _kind_of(value, name, module, home)):
                ids.add(id(value))
                kinds[f"{module.__name__}:{name}"] = kind
            elif name[0] != "_" and _is_of(value, module) and _makes_gradient(value):
                makers.append(f"{module.__name__}:{name}")
    operators = {name: module for module in reversed(modules) for name in _operators(module)}
    kinds |= {f"{module.__name__}:{name}": GRADIENT for name, module in operators.items()}
    for name, cls in _models(modules, ids):
        kinds[name] = MODEL if _is_made_bare(cls) else UNMADE

    def spelled(name: str) -> str:
        short = name.removeprefix(f"{home}:")
        return short if ":" in short.replace("::", "") else f"{word}:{short}"

    spelled_kinds = {spelled(name): kind for name, kind in kinds.items()}
    return Targets(spelled_kinds, unimported, [*map(spelled, makers)])


def find_apart(process: Apart, what: str, say: Callable[[str], object]) -> Targets:
    """Find targets in another process, and say what cannot be imported; a module that ends the
    process is skipped.
    """
    skipped = dict[str, str]()
    with TemporaryDirectory() as folder:
        journal = Path(folder, "imported")
        while True:
            # Its imports are no part of the time of a call.
            process.first = [(find_targets, what, str(journal), tuple(skipped))]
            try:
                targets: Targets = process.call(*process.first[0])
                break
            except Lost as lost:
                # The journal names the module that ends the process, and the next try skips it.
                if not journal.exists() or (name := journal.read_text()) in skipped:
                    raise MultigradError(f"{what} cannot be imported: {lost}") from lost
                skipped[name] = str(lost)
    process.first = [(find_targets, what, "", tuple(skipped))]  # of the next process
    for name, reason in {**skipped, **targets.unimported}.items():
        say(f"{name} cannot be imported: {reason}")
    if targets.makers:
        say(targets.left_out)
    return targets


def _import_word(what: str) -> types.ModuleType:
    try:
        return import_target(what)
    except MultigradError as error:
        missing = getattr(error.__cause__, "name", None)
        if what.endswith(".py") or not f"{what}.".startswith(f"{missing}."):
            raise  # it exists, and a module that it needs is missing
        try:
            xg.get(what)  # raises: no rule has this name
        except RuleError as no_rule:
            text = f"{no_rule}, and there is no module {what!r} here"
            module, _, name = what.rpartition(".")
            if hasattr(sys.modules.get(module), name):
                text = f"there is no module {what!r} here; did you mean '{module}:{name}'?"
            raise MultigradError(text) from error
        raise


def _import_submodules(
    package: types.ModuleType, unimported: dict[str, str], journal: str, skipped: Collection[str]
) -> None:
    for info in pkgutil.iter_modules(getattr(package, "__path__", ()), f"{package.__name__}."):
        if _is_test(info.name.rpartition(".")[2]):
            continue
        # Before the import, or a crash would leave no name.
        if journal:
            Path(journal).write_text(info.name)
        if info.name not in skipped and (module := _import(info.name, unimported)) is not None:
            _import_submodules(module, unimported, journal, skipped)


def _is_test(name: str) -> bool:
    return name in SKIPPED or name.startswith("test_") or name.endswith("_test")


def _import(name: str, unimported: dict[str, str]) -> types.ModuleType | None:
    if name in sys.modules:
        return sys.modules[name]
    silent = io.StringIO()
    try:
        # Output and warnings of an import would break the table.
        with ignoring_warnings(), redirect_stdout(silent), redirect_stderr(silent):
            return importlib.import_module(name)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # SystemExit, too: scripts lie about in packages
        unimported[name] = f"{type(error).__name__}: {error}".splitlines()[0][:200]
        return None


def _without_aliases(module: types.ModuleType) -> list[tuple[str, Any]]:
    """Return the names of a module in order, but for other names of what has its own there."""
    pairs = [(n, v, getattr(v, "__name__", None) == n) for n, v in sorted(vars(module).items())]
    own = {id(value) for _, value, is_own in pairs if is_own}
    return [(name, value) for name, value, is_own in pairs if is_own or id(value) not in own]


def _kind_of(value: Any, name: str, module: types.ModuleType, home: str) -> str | None:
    if not callable(value):
        return None
    if _is_made_in(home, value):
        if isinstance(value, Rule) or (_is_of(value, module) and _is_written_as_rule(value, True)):
            return RULE
        if isinstance(value, Function) or is_custom(value):
            return GRADIENT
    return GRADIENT if pair_of(module, name, value) else None


def _is_made_in(home: str, value: Any) -> bool:
    # Without `__module__` nobody knows where it was made: it counts as imported.
    maker = f"{getattr(value, '__module__', None)}."
    if maker.startswith(f"{home}.") or not isinstance(value, Rule | Function):
        return maker.startswith(f"{home}.")
    # One without code, such as a loaded one, is of the only package that holds it.
    others = [m for n, m in [*sys.modules.items()] if not f"{n}.".startswith(f"{home}.")]
    held = (each for m in others for each in [*getattr(m, "__dict__", {}).values()])
    return maker.startswith(f"{xg.__name__}.") and not any(each is value for each in held)


def _makes_gradient(value: Any) -> bool:
    if not inspect.isfunction(value):
        return False
    # A forward of its own: what asks for the type of a custom gradient, or decorates, has none.
    names, inner = {*value.__code__.co_names}, nested_codes(value.__code__)[1:]
    is_class = "Function" in names and any(code.co_name == "backward" for code in inner)
    return is_class or (bool(inner) and not MAKERS.isdisjoint(names))


def _is_written_as_rule(value: Any, is_surely: bool = False) -> bool:
    # Functions of three tensors have the same number of arguments; the names tell them apart.
    if not inspect.isfunction(value) or value.__code__.co_argcount < 3:
        return False
    first, second, third = value.__code__.co_varnames[:3]
    if first.strip("_") not in ("", "ctx", "context"):
        return False
    # A step of somebody's Function takes its ctx, too, and inputs or several cotangents.
    return not is_surely or (_is_cotangent(second) and not _is_cotangent(third))


def _is_cotangent(name: str) -> bool:
    return "grad" in name or COTANGENTS.fullmatch(name) is not None


# --- what a module defines beside custom gradients ----------------------------------------------
def pair_of(holder: types.ModuleType, name: str, forward: Any) -> tuple[Any, Any] | None:
    """Return a forward and its VJP, plain NumPy functions, or None: the VJP has the same name with
    an ending of PAIRED.
    """
    if not isinstance(forward, types.FunctionType) or not _is_of(forward, holder):
        return None
    if dialect_of(forward) not in IN_NUMPY:
        return None
    for ending in PAIRED:
        backward = getattr(holder, name + ending, None) if "." not in name else None
        if isinstance(backward, types.FunctionType) and dialect_of(backward) in IN_NUMPY:
            return _as_pair(forward, backward)
    return None


def _as_pair(forward: Any, backward: Any) -> tuple[Any, Any] | None:
    # None if it is not clear which argument is the cotangent.
    arguments, names = (list(read_parameters(each) or ()) for each in (forward, backward))
    if not names:
        return None
    if names[1:] == arguments and names[0] not in arguments:
        return forward, backward
    if names[:-1] == arguments and COTANGENTS.fullmatch(names[-1]):

        def reordered(grad_out: Any, *args: Any) -> Any:
            return backward(*args, grad_out)

        return forward, reordered
    is_clear = len(names) == len(arguments) + 1 and COTANGENTS.fullmatch(names[0])
    return (forward, backward) if is_clear else None


def _is_of(value: Any, module: types.ModuleType) -> bool:
    return getattr(value, "__module__", None) == module.__name__


def _find_operator(what: Any) -> Callable[..., Any] | None:
    finders = filter(None, (backend.imports.find_operator for backend in in_use()))
    return next((operator for find in finders if (operator := find(what)) is not None), None)


def _operators(module: types.ModuleType) -> Iterator[str]:
    text = source_of(module)
    for backend in in_use():
        for full_name in backend.imports.operators() if backend.imports.operators else ():
            space, _, name = full_name.partition("::")
            # Registered under "space::name", or with the namespace and the name as two strings.
            two_strings = rf"[\"']{space}[\"'](?s:.*)\b{name}\b"
            if space in text and re.search(rf"[\"']{full_name}\b|{two_strings}", text):
                yield full_name


def source_of(module: types.ModuleType) -> str:
    try:
        return inspect.getsource(module)
    except (OSError, TypeError):
        return ""


def _models(modules: list[types.ModuleType], ids: set[int]) -> Iterator[tuple[str, type]]:
    for module in modules:
        for name, value in _without_aliases(module):
            if not isinstance(value, type) or not _is_of(value, module):
                continue
            bases = (
                (base.__name__, base.__module__.partition(".")[0]) for base in value.__mro__[1:]
            )
            methods = (each for each in vars(value).values() if inspect.isfunction(each))
            if any(root in MODELS.get(base, ()) for base, root in bases) and any(
                _leads_to(each, ids, DEPTH) for each in methods
            ):
                yield f"{module.__name__}:{name}", value


def _leads_to(function: types.FunctionType, ids: set[int], depth: int) -> bool:
    root = function.__module__.partition(".")[0]
    for _, value in mentioned(function):
        if id(value) in ids or id(getattr(value, "__self__", None)) in ids:
            return True
        # Only functions of the same package are followed, DEPTH calls deep.
        is_own = inspect.isfunction(value) and value.__module__.partition(".")[0] == root
        if depth and is_own and _leads_to(value, ids, depth - 1):
            return True
    return False


def _is_made_bare(cls: type) -> bool:
    with contextlib.suppress(TypeError, ValueError):
        inspect.signature(cls).bind()
        return True
    return False


# --- imports --------------------------------------------------------------------------------------
def import_target(name: str) -> types.ModuleType:
    try:
        module = import_named(name)
    except MultigradError as error:
        cause = error.__cause__
        missing = cause.name or "" if isinstance(cause, ModuleNotFoundError) else ""
        requirements = requirements_of(missing, OWN) if missing else []
        if not requirements:
            raise
        line = install_line(missing, OWN, requirements)
        raise MultigradError(f"{error}; type: {line}") from error
    place_inputs()
    return module


# By library: a module of a backend's package, which makes inputs where the library's kernels run.
PLACES = {"triton": "multigrad_torch.triton_inputs"}


def place_inputs() -> None:
    for library, name in PLACES.items():
        if library in sys.modules:
            with contextlib.suppress(ImportError):  # the backend's framework is not installed
                load_alone(name).place_inputs()
