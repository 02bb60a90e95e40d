"""Rules by what users name them with: a registered name, a Rule or a plain function.

`resolve` returns the Rule that is meant now. `with_choices` attaches `over=`, `residuals=` and
`fused=` to a rule that need not be resolved yet. `unknown_keyword_error` is for calls that take a
rule, and were given one of its params as a keyword of their own.
"""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Callable, Mapping
from numbers import Real
from typing import Any

from ...capture.user_code.signature import Signature, called_method, name_of
from ...errors import RuleError, RuleTypeError, closest
from ...graph.support.params import Fused, read_fused, read_shards
from ...lowering.function_graph import read_way
from ...trace.identity import function_key
from . import rule_names
from .rule import Rule

# The Rules of plain functions, by the identity of the function. Weak: a rule goes with the last who
# holds it; its graphs and code (`rule_code.code_of`) stay as long as the function.
_of_functions: weakref.WeakValueDictionary[Any, Rule] = weakref.WeakValueDictionary()


def resolve(rule: str | Rule | Callable[..., Any]) -> Rule:
    """Return the Rule for which a name, a Rule or a plain function currently stands.

    Examples:
        >>> from multigrad.registry import resolve
        >>> resolve(lambda ctx, grad_out, tin: grad_out).params  # a function is a rule
        {}
    """
    found: Any = rule_names.get(rule)
    if isinstance(found, Rule):
        return found
    name, function = name_of(found), called_method(found)
    key = function_key(function)
    return _of_functions.get(key) or _of_functions.setdefault(
        key, Rule(name=name, function=function)
    )


# --- a rule with `over=`, `residuals=` or `fused=` -----------------------------------------------
def with_choices(
    rule: Any,
    over: Any = None,
    axis_name: Any = None,
    residuals: str | None = None,
    fused: Fused = "auto",
) -> Any:
    """Return a rule with these choices: `rule` itself if none is made, else a Rule.

    A name is not resolved: the result looks it up at each use, as the name alone would be.

    Args:
        over: which array a tensor is a part of, as `axis_name` is; see `Rule.over`.
        residuals: what forward keeps; None: the rule's own choice.
        fused: whether it runs as one kernel; "auto": the rule's own choice.
    """
    shards = read_shards(over, axis_name)
    choices: dict[str, Any] = {}
    if residuals is not None:
        choices["residuals"] = read_way(residuals, "a rule")
    if shards is not None:
        choices["shards"] = shards
    if read_fused(fused) != "auto":
        choices["fused"] = fused
    if not choices:
        return rule
    if rule is None:
        name, value = next(iter(choices.items()))
        choice = str(value) if name == "shards" else f"{name}={value!r}"
        raise RuleError(f"{choice} needs a rule: name the rule here too")
    if isinstance(rule, str):
        return _named(rule, **choices)
    choices.pop("shards", None)
    rule = resolve(rule).copy(**choices) if choices else resolve(rule)
    return rule if shards is None else rule._over_shards(shards)


@functools.lru_cache(768)
def _named(name: str, **choices: Any) -> Rule:
    # A composition of one part, so that the name is looked up at each use; cached, as it owns code.
    return Rule(name=name, parts=(name,), **choices)


# --- the error for a keyword that a call does not take -------------------------------------------
def unknown_keyword_error(
    function: Callable[..., Any],
    name: str,
    rule: str | Rule | Callable[..., Any] | None,
    unknown: Mapping[str, Any],
) -> RuleTypeError:
    """Return the error for keywords that a function does not take.

    It says how to write what was probably meant: a param of the rule, which belongs into `params=`,
    or a misspelled keyword.

    Args:
        function: whose own keywords are suggested.
        name: what people call it.
        rule: the rule whose params the keywords may be.
        unknown: the keywords with their values.
    """
    keyword, value = next(iter(unknown.items()))
    signature = _signature_of(rule)
    if signature is not None and all(map(signature.takes, unknown)):
        params = ", ".join(f'"{key}": {each!r}' for key, each in unknown.items())
        return RuleTypeError(
            f"{name} takes no {keyword!r}, which is a param of {_describe(rule)}: write "
            f"params={{{params}}}"
        )
    hint = _suggest(keyword, value, _keywords_of(function), signature, rule)
    return RuleTypeError(f"{name} takes no {keyword!r}{hint}")


def _suggest(
    keyword: str, value: Any, keywords: list[str], signature: Signature | None, rule: Any
) -> str:
    # `keywords` are those that the function takes; the signature is the rule's, if there is a rule.
    params = [] if signature is None else sorted(signature.params)
    close = closest(keyword, [*params, *keywords])
    if close is None and len(params) == 1 and isinstance(value, Real):
        close = params[0]
    if close in params:
        return f'; did you mean params={{"{close}": {value!r}}}, of {_describe(rule)}?'
    if close is not None:
        return f"; did you mean {close!r}?"
    if signature is None:
        return f"; a rule's params are given as params={{{keyword!r}: {value!r}}}, beside the rule"
    takes = ", ".join(params) or "no params"
    return f", and {_describe(rule)} has no such param (it takes {takes}, given as params={{...}})"


def _keywords_of(function: Callable[..., Any]) -> list[str]:
    parameters = inspect.signature(function).parameters.values()
    spread = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [p.name for p in parameters if p.kind not in spread and p.name != "self"]


def _describe(rule: Any) -> str:
    return f"rule {resolve(rule).name!r}"


def _signature_of(rule: str | Rule | Callable[..., Any] | None) -> Signature | None:
    # A name that has no rule is reported by its own look-up, not here.
    try:
        return None if rule is None else resolve(rule).signature
    except RuleError:
        return None
