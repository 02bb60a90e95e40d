"""The names of rules: what they mean now, how often that has changed, and what is like a name.

`registry.register` and `unregister` change what a name means, within `renaming`; nothing else does.
`get` looks a name up: a user's rule, else the library's, which the first look-up imports.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ...errors import RuleError, RuleTypeError, RuleValueError, closest
from ..backend.compiler_events import tell_registered
from ..support.lazy_modules import imported_module, late_function, provided
from ..support.threads import SERIALS, load_module, make_lock
from ..trace.active_rules import meant, note_renamed
from ..trace.lookups import NUMBERS, Lookup, note_lookup

if TYPE_CHECKING:
    from ..lowering.forwards import Forward

find_activation = late_function("multigrad.core.lowering.forwards:find_forward")
RULES: dict[str, Any] = {}  # the Rules, by name
LIBRARY: dict[str, Any] = {}  # multigrad's own, also where a user's rule has the name now
# Those of version 0.1.0: to register one of these names again is an error. The others give way to a
# user's, also where that is registered before the library is imported.
PROTECTED = frozenset({
    "arctan", "centralize", "clip_norm", "clipped_straight_through", "d(Linear)", "d(ReLU)",
    "fast_sigmoid", "full_jam", "gradient_reversal", "noise", "positive_jam", "rectangular",
    "rectangular_jam", "scale", "sigmoid_surrogate", "straight_through", "triangular",
})  # fmt: skip
# What names with params mean (`lookup.Template`, which says by what they are found);
# emptied when a name changes its meaning.
TEMPLATES: dict[Any, Any] = {}
# What limits the norm of all gradients together, in several packages.
GLOBAL = ("clip_by_global_norm", "clip_grad_norm", "clip_grad_norm_", "global_clipnorm")
lock = make_lock()
# The rules of each file of the library, which loads when one of them is looked up.
FILES = {
    "surrogate": "arctan beta_smooth d(ReLU) deconvnet fast_sigmoid guided rectangular "
    "sigmoid_surrogate triangular",
    "transforms": "adaptive_clip centralize clip_norm clip_rms clip_value full_jam "
    "gradient_reversal noise noisy_threshold normalize positive_jam rectangular_jam scale sign "
    "sign_jam stop",
    "quantization": "absolute_binary_sign approx_sign clamp_with_grad clipped_straight_through "
    "d(Linear) dorefa_activations dorefa_weights magnitude_aware_sign pass quantization_noise "
    "straight_through swish_sign",
    "spiking": "circle erf_surrogate exponential fake_numerical_gradient gaussian leaky_k_relu "
    "leaky_spike log_tailed_relu multi_gaussian nonzero_sign_log periodic_exponential "
    "piecewise_leaky_relu piecewise_quadratic q_pseudo_spike s2nn soft_sign_surrogate "
    "sparse_fast_sigmoid spike_rate_escape squarewave_fourier stochastic_spike tanh_surrogate "
    "unit_rectangular",
}
ROOMS = {file: f"multigrad.core.rules.library.{file}" for file in FILES}
# What the modules of our own rules begin with.
OWN = ("multigrad.core.rules.library.", "multigrad.engine.rules.peers")
ROOM_OF = {name: ROOMS[file] for file, names in FILES.items() for name in names.split()}


class Epoch:
    number = 0


def get(rule: str | Callable[..., Any]) -> Any:
    """Return the rule of a name; a Rule or a callable is returned itself (`xg.get`, untyped)."""
    if isinstance(rule, str):
        if rule not in RULES:
            load_library(rule)
        number = NUMBERS.get(rule)
        registered, number = meant(rule, (RULES.get(rule), number))
        if registered is None:
            registered_name = as_registered(rule)
            if registered_name is None:
                raise unknown_rule_error(rule)
            note_lookup(Lookup(rule, number))
            return get(registered_name)
        note_lookup(Lookup(rule, number))
        return registered
    if callable(rule) and not isinstance(rule, type):
        return rule
    advice = ""
    match rule:
        case type():
            advice = ": xg.convert takes the class of a custom gradient"
        case (str(name), {**params}):
            words = ", ".join(f"{word}={value!r}" for word, value in params.items())
            advice = f": for its params write xg.get({name!r}).with_params({words})"
        case [*_]:
            advice = ": for several in series write xg.compose(...)"
    raise RuleTypeError(
        f"a rule is a name, a Rule or a function, got {type(rule).__name__} {rule!r:.60}{advice}"
    )


def as_registered(name: str) -> str | None:
    """Return the registered name of a package's surrogate gradient for another spelling of it.

    A package's classes and functions differ in case and underscores. None: there is none.
    """
    if "." not in name:
        return None
    load_library(name)
    plain = name.lower().replace("_", "")
    return next((n for n in RULES if "." in n and n.lower().replace("_", "") == plain), None)


def load_library(name: str = ".") -> None:
    """Register the rules of the library among which a name may be: importing them costs time."""
    for room in [ROOM_OF[name]] if name in ROOM_OF else ROOMS.values():
        if imported_module(room) is None:
            load_module(room)  # another thread waits here until it is complete
            # Its own rules call register: they find it half imported.
            if imported_module(room) is None:
                return
    if "." in name:
        load_peers()


@provided
def load_peers() -> None:
    """Register other packages' rules, by their names for them, which have a dot."""


def is_of_library(rule: Any) -> bool:
    """Return whether a rule is registered by a part of the library whose import goes on."""
    return rule.__module__.startswith(OWN) and imported_module(rule.__module__) is None


def may_be_replaced(name: str) -> bool:
    """Return whether a name is that of a library rule which a user's rule may replace."""
    # The library grows: code that was written for a smaller one registers what it likes.
    return name not in PROTECTED and LIBRARY.get(name) is RULES[name]


def epoch() -> int:
    """Return how often a name changed its meaning; compiled code is keyed by it.

    Examples:
        >>> from multigrad.registry import epoch
        >>> before = epoch()
        >>> @xg.register("triangular", override=True)
        ... def triangular(ctx, grad_out, tin, width=1.0):
        ...     return grad_out
        >>> epoch() > before  # what was made for the old rule is out of date
        True
        >>> xg.unregister("triangular")
    """
    return Epoch.number


@contextmanager
def renaming(name: str) -> Iterator[None]:
    """Let a name mean the rule that is put into `RULES` within; an error undoes it."""
    previous, number = RULES.get(name), NUMBERS.get(name)
    with lock:
        # Or it was another spelling of a package's rule until now.
        is_known = previous is not None or as_registered(name) is not None
        note_renamed(name, previous, number)
        try:
            yield
            NUMBERS[name] = next(SERIALS)  # last: who reads it first cannot miss the change
            if is_known:
                Epoch.number += 1
                TEMPLATES.clear()
                tell_registered(Epoch.number)
        except BaseException:
            tables: tuple[tuple[dict[str, Any], Any], ...] = (RULES, previous), (NUMBERS, number)
            for table, row in tables:
                if row is None:
                    table.pop(name, None)
                else:
                    table[name] = row
            raise


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


def find_forward(name: str, *settings: float | None) -> Forward:
    """Act as `forwards.find_forward`; the error says it where the name is that of a rule."""
    try:
        return find_activation(name, *settings)
    except RuleValueError as error:
        load_library()
        last = plain(name)  # "atan" is the name of packages' surrogates, and of a function
        same = sorted(rule for rule in RULES if plain(rule.rpartition(".")[2]) == last)
        names = [name] if name in RULES else same
        if not names:
            raise
        advice = f"it is a rule: write xg.activation('Heaviside', {names[0]!r}), or another forward"
        rest = "" if name in RULES else str(error).removeprefix(f"no activation {name!r}")
        raise RuleValueError(f"no activation {name!r}: {advice}{rest}") from error


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
