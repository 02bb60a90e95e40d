"""Errors and warnings that say what was probably meant, for what is no rule, no activation and no
keyword, and where a rule is in force for others.
"""

from __future__ import annotations

import ast
import functools
import inspect
import re
import textwrap
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from numbers import Real
from types import CodeType, FrameType
from typing import Any

from ...core import ops
from ...core.lowering.forwards import ACTIVATIONS, ALIASES, plainly
from ...core.rules.context import use
from ...core.rules.registry import resolve
from ...core.rules.rule import Rule
from ...core.rules.rule_names import RULES, load_library
from ...core.rules.signature import Signature, name_of
from ...core.support.lazy_modules import provided
from ...errors import RuleError, RuleTypeError, RuleValueError, closest, suggest

# What limits the norm of all gradients together, in several packages.
GLOBAL = ("clip_by_global_norm", "clip_grad_norm", "clip_grad_norm_", "global_clipnorm")


def unknown_rule_error(name: str) -> RuleError:
    load_library()
    if hint := estimator_hint(name):
        return RuleError(f"no rule named {name!r}{hint}")
    if name.endswith(".json"):
        return RuleError(f"no rule named {name!r}; a rule from a file is xg.load({name!r})")
    if name.endswith(".py") or ":" in name:
        return RuleTypeError(
            f"no rule named {name!r}: import what it names, and give that. Commands take such "
            f"names: multigrad audit {name}"
        )
    plain = name.lower().replace("-", "_").rpartition(".")[2]
    if plain in GLOBAL:
        return RuleError(
            f"no rule named {name!r}: a rule sees one gradient at a time, and 'clip_norm' limits "
            f"the norm of each; for the norm of all together use {plain} of your framework"
        )
    names = near_names(name, {word: rule.__doc__ or "" for word, rule in RULES.items()})
    *others, last = map(repr, names) if names else [""]
    hint = f"; did you mean {', '.join(others)}{' or ' if others else ''}{last}?" if names else ""
    return RuleError(
        f"no rule named {name!r}{call_hint(name)}{hint} ({len(RULES)} rules: multigrad rules)"
    )


@provided
def estimator_hint(name: str) -> str:
    """Return advice for a name that is none of a rule but of an estimator, or ""."""
    return ""


@provided
def call_hint(name: str) -> str:
    """Return advice for a name that is none of a rule but of what is called, or ""."""
    return ""


def unknown_activation_error(name: Any) -> RuleValueError:
    """Return the error for a name that no activation has; it may be that of a rule, or of a
    function of one tensor.
    """
    load_library()
    last = plain(str(name))  # "atan" is the name of packages' surrogates, and of a function
    same = sorted(rule for rule in RULES if plain(rule.rpartition(".")[2]) == last)
    names = [name] if name in RULES else same
    # Without functions that only VJPs call.
    rows = [each for each in ops.CALLABLE_OPS if len(each.operands) == 1 and not each.in_vjps]
    function = {plainly(each.in_xp): each.in_xp for each in rows}.get(plainly(str(name)))
    hint = f"; write the function itself: xg.activation(xg.xp.{function})"
    hint = hint if function else suggest(str(name), (*ACTIVATIONS, *ALIASES))
    hint += f" (activations: {', '.join(ACTIVATIONS)}; or any function of one tensor)"
    if names:
        advice = f"it is a rule: write xg.activation('Heaviside', {names[0]!r}), or another forward"
        hint = f": {advice}{'' if name in RULES else hint}"
    return RuleValueError(f"no activation {name!r}{hint}")


def explain_no_rule(given: Any, error: RuleTypeError) -> RuleTypeError:
    """Return an error that says what to write instead."""
    match given:
        case type():
            return RuleTypeError(f"{error}: xg.convert takes the class of a custom gradient")
        case (str(name), {**params}):
            words = ", ".join(f"{word}={value!r}" for word, value in params.items())
            advice = f"for its params write xg.get({name!r}).with_params({words})"
            return RuleTypeError(f"{error}: {advice}")
        case [*_]:
            return RuleTypeError(f"{error}: for several in series write xg.compose(...)")
    if hasattr(given, "recipe"):
        return RuleTypeError(
            f"expected a rule, got the Function {name_of(given)!r}, whose gradient is its own: "
            "call it"
        )
    own_rule = getattr(given, "rule", None)
    own_name = getattr(own_rule, "name", own_rule)
    params = getattr(given, "params", None)
    if not isinstance(params, Mapping):
        return error
    said = f"expected a rule, got an activation, {given!r}"
    forward = getattr(given, "_activation", given).forward
    under = f".under({forward.name!r})"
    if not isinstance(own_name, str):
        whole = f"give xg.get(NAME){under}"
        return RuleTypeError(f"{said}, which has no rule of its own; {whole}")
    # A schedule's own text is no Python: it ends in its step and value.
    bindings = [
        f"{name}=xg.schedule.{v.formula}" if hasattr(v, "formula") else f"{name}={v!r}"
        for name, v in {**getattr(own_rule, "bound", {}), **params}.items()
    ]
    bound = f".with_params({', '.join(bindings)})" if bindings else ""
    rule = f"xg.get({own_name!r}){bound}"
    whole = f"as a Function it is {rule}{under}"
    return RuleTypeError(f"{said}; {whole}, and its rule is {rule}")


def unknown_keyword_error(
    function: Callable[..., Any],
    name: str,
    rule: str | Rule | Callable[..., Any] | None,
    unknown: Mapping[str, Any],
) -> RuleTypeError:
    """Return the error for keywords that a function does not take.

    It says how to write what was probably meant: a param of the rule, which belongs into `params=`,
    or a misspelled keyword.
    """
    keyword, value = next(iter(unknown.items()))
    signature = _signature_of(rule)
    if signature is not None and all(map(signature.takes, unknown)):
        params = ", ".join(f'"{key}": {each!r}' for key, each in unknown.items())
        return RuleTypeError(
            f"{name} takes no {keyword!r}, which is a param of {_describe(rule)}: write "
            f"params={{{params}}}"
        )
    parameters = inspect.signature(function).parameters.values()
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    keywords = [p.name for p in parameters if p.kind not in variadic and p.name != "self"]
    hint = _suggest(keyword, value, keywords, signature, rule)
    return RuleTypeError(f"{name} takes no {keyword!r}{hint}")


def _suggest(
    keyword: str, value: Any, keywords: list[str], signature: Signature | None, rule: Any
) -> str:
    # `keywords` are those that the function takes; the signature is the rule's, if there is a rule.
    params = [] if signature is None else sorted(signature.params)
    nearest = closest(keyword, [*params, *keywords])
    if nearest is None and len(params) == 1 and isinstance(value, Real):
        nearest = params[0]
    if nearest in params:
        return f'; did you mean params={{"{nearest}": {value!r}}}, of {_describe(rule)}?'
    if nearest is not None:
        return f"; did you mean {nearest!r}?"
    if signature is None:
        return f"; a rule's params are given as params={{{keyword!r}: {value!r}}}, beside the rule"
    takes = ", ".join(params) or "no params"
    return f", and {_describe(rule)} has no such param (it takes {takes}, given as params={{...}})"


def _describe(rule: Any) -> str:
    return f"rule {resolve(rule).name!r}"


def _signature_of(rule: str | Rule | Callable[..., Any] | None) -> Signature | None:
    # A name that has no rule is reported by its own look-up, not here.
    try:
        return None if rule is None else resolve(rule).signature
    except RuleError:
        return None


# --- names that are like a word: misspelled ones, those of packages and those of the field --------
# A word is compared with names, with their last parts ("snntorch.atan"), with the initials of their
# parts and with the words of docstrings, where the names that others use stand.
MOST_SUGGESTED = 3
MOST_MENTIONS = 4  # a word in the docstrings of more rules than that says nothing


def near_names(word: str, docstrings: Mapping[str, str]) -> list[str]:
    """Return the names that a word may have meant, the likeliest first, at most three.

    Args:
        docstrings: the known names with their docstrings.
    """
    nearest = closest(word, docstrings)
    names = named_elsewhere(word, docstrings) or ([nearest] if nearest else [])
    return names[:MOST_SUGGESTED]


def named_elsewhere(word: str, docstrings: Mapping[str, str]) -> list[str]:
    """Return the names that are called so elsewhere: plain names first, then those of packages."""
    last = plain(word.rpartition(".")[2])
    if len(last) < 2:
        return []
    mentions = [name for name, text in docstrings.items() if last in words_of(text)]
    named = [name for name in docstrings if plain(name.rpartition(".")[2]) == last]
    short = [name for name in docstrings if is_short_for(last, name)]
    part = [name for name in docstrings if "." not in name and last in name.lower().split("_")]
    names = {*named, *short, *part, *(mentions if len(mentions) <= MOST_MENTIONS else ())}
    first = [name for name in names if plain(name).startswith(last)]
    return sorted(names, key=lambda name: ("." in name, name not in named, name not in first, name))


def plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def words_of(text: str) -> set[str]:
    return {plain(word) for word in re.findall(r"\w+", text)}


def is_short_for(word: str, name: str) -> bool:
    """Return whether a word is the initials of a name's parts, or one letter more, as STE; the
    first parts may be whole, as in clipped_ste.
    """
    first, _, others = name.rpartition(".")[2].lower().partition("_")
    if others and word.startswith(first):
        return is_short_for(word[len(first) :], others)
    initials = "".join(part[0] for part in name.rpartition(".")[2].lower().split("_") if part)
    return len(initials) > 1 and word in (initials, *(initials + letter for letter in "el"))


# --- generators: Python has no context of their own for them -------------------------------------
# Their code runs a generator up to its `yield` because what is in force there is meant for others.
MANAGERS = frozenset({"_pytest", "anyio", "contextlib", "pluggy", "pytest_asyncio"})


def undecorated(given: Any) -> RuleTypeError:
    """Return the error for what `use` cannot decorate, which says what to decorate instead."""
    if inspect.isclass(given):
        return RuleTypeError(
            f"use cannot decorate the class {given.__name__!r}: the rule would be in force "
            "while an object is made, not in its methods. Decorate the method that runs "
            "forward, or give the layer its rule: xg.activation(forward, rule)"
        )
    if not callable(given):
        return RuleTypeError(
            f"use decorates a function, got {type(given).__name__} {given!r}; or write "
            "`with xg.use(...):`"
        )
    return RuleTypeError(
        f"use cannot decorate the generator function {given.__name__!r}: between its "
        "steps the rule would be in force for the caller. Put `with xg.use(...)` inside it "
        "around the work between two yields: around a `yield` it would be in force "
        "for the caller too"
    )


def warn_of_yield(entered: use, frame: FrameType) -> None:
    caller = "" if frame.f_back is None else frame.f_back.f_globals.get("__name__", "")
    if caller.partition(".")[0] in MANAGERS or not has_yield(frame.f_code, frame.f_lineno):
        return
    warnings.warn(
        f"generator {frame.f_code.co_name!r} yields within {entered!r}: between its steps the rule "
        "is in force for the code that iterates over it. Put `with xg.use(...)` around the work "
        "between two yields; if it is meant for that code, make the generator a context manager, "
        "by contextlib.contextmanager",
        UserWarning,
        stacklevel=4,
    )


@functools.lru_cache(256)
def has_yield(code: CodeType, line: int) -> bool:
    """Return whether a `with` on a line of a generator's code contains a `yield`."""
    with suppress(OSError, TypeError, SyntaxError):  # its source may be unknown, as in `exec`
        tree = ast.parse(textwrap.dedent(inspect.getsource(code)))
        place = line - code.co_firstlineno + 1
        return any(
            any(map(yields, node.body))
            for node in ast.walk(tree)
            if isinstance(node, ast.With | ast.AsyncWith)
            and node.lineno <= place <= (node.items[-1].context_expr.end_lineno or 0)
        )
    return False


def yields(node: ast.AST) -> bool:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        return False
    return isinstance(node, ast.Yield | ast.YieldFrom) or any(
        map(yields, ast.iter_child_nodes(node))
    )
