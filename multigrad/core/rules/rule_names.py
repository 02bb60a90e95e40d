"""The names of rules: what they mean now, and how often that has changed.

`registry.register` and `unregister` change what a name means, within `renaming`; nothing else does.
`get` looks a name up: a user's rule, else the library's, which the first look-up imports.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ...errors import RuleError, RuleTypeError, suggest
from ..backend.compiler_events import tell_registered
from ..support.lazy_modules import imported_module, provided
from ..support.threads import SERIALS, load_module, make_lock
from ..trace.active_rules import meant, note_renamed
from ..trace.lookups import NUMBERS, Lookup, note_lookup

RULES: dict[str, Any] = {}  # the Rules, by name
LIBRARY: dict[str, Any] = {}  # multigrad's own, also where a user's rule has the name now
# Those of version 0.1.0: to register one of these names again is an error. The others give way to a
# user's, also where that is registered before the library is imported.
PROTECTED = frozenset({
    "arctan", "centralize", "clip_norm", "clipped_straight_through", "d(Linear)", "d(ReLU)",
    "fast_sigmoid", "full_jam", "gradient_reversal", "noise", "positive_jam", "rectangular",
    "rectangular_jam", "scale", "sigmoid_surrogate", "straight_through", "triangular",
})  # fmt: skip
# What names with params mean (`registry.Template`, which says by what they are found);
# emptied when a name changes its meaning.
TEMPLATES: dict[Any, Any] = {}
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
MODULES = {file: f"multigrad.core.rules.library.{file}" for file in FILES}
# What the modules of our own rules begin with.
OWN = ("multigrad.core.rules.library.", "multigrad.engine.rules.peers")
MODULE_OF = {name: MODULES[file] for file, names in FILES.items() for name in names.split()}


class Epoch:
    """How often a name has changed its meaning; a class, so that modules share the number."""

    number = 0


def get(rule: str | Callable[..., Any]) -> Any:
    """Return the rule of a name; a Rule or a callable is returned itself (`xg.get`, untyped)."""
    if isinstance(rule, str):
        if rule not in RULES:
            load_library(rule)
        number = NUMBERS.get(rule)
        # Code that runs a second time gets the rule that the name meant in its first run.
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
    error = f"a rule is a name, a Rule or a function, got {type(rule).__name__} {rule!r:.60}"
    raise explain_no_rule(rule, RuleTypeError(error))


@provided
def explain_no_rule(given: Any, error: RuleTypeError) -> RuleTypeError:
    """Return an error that says more for what is no rule; the given one if there is none."""
    return error


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
    for module in [MODULE_OF[name]] if name in MODULE_OF else MODULES.values():
        if imported_module(module) is None:
            load_module(module)  # another thread waits here until it is complete
            # Still missing: this thread is importing it, and its rules call `register` now.
            if imported_module(module) is None:
                return
    if "." in name:
        load_peers()


@provided
def load_peers() -> None:
    """Register other packages' rules, by their names for them, which have a dot."""


def is_being_imported(rule: Any) -> bool:
    """Return whether a rule is registered by a module of ours that is still being imported."""
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
            # Set last: whoever still reads the old number looks the name up again.
            NUMBERS[name] = next(SERIALS)
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


@provided
def unknown_rule_error(name: str) -> RuleError:
    """Return the error for a name that no rule has."""
    load_library()
    return RuleError(f"no rule named {name!r}{suggest(name, RULES)} ({len(RULES)} rules)")
