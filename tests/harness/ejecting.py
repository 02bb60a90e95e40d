"""Files that were ejected, as functions, beside the lowered objects that they are compared with."""

from __future__ import annotations

import sys
import types
from typing import Any

import numpy as np

import multigrad as xg
from multigrad.core.rules.rule_names import OWN
from multigrad.engine.rules.model.rule_graphs import likely_graph

KEY = (3, 2**31 + 7)
# What `rules_by_rank` gives, which is asked when tests run: it captures every rule.
BY_RANK = {
    "adaptive_clip",
    "larq.MagnitudeAwareSign",
    "magnitude_aware_sign",
    "optax.adaptive_grad_clip",
    "optax.centralize",
}
X = np.linspace(-2.0, 2.0, 12, dtype=np.float32).reshape(3, 4)


def native(obj: Any, backend: str, **options: Any) -> Any:
    lowered = xg.lower(obj, backend, **options)
    return lowered.apply if backend == "torch" else lowered


def load(text: str, name: str = "ejected_file") -> Any:
    module = types.ModuleType(name)
    sys.modules[name] = module  # where torch.compile looks for it
    exec(compile(text, f"{name}.py", "exec"), module.__dict__)  # noqa: S102
    (public,) = module.__all__
    return getattr(module, public)


def random_values(rule: str) -> tuple[Any, ...]:
    """Return the values of a random rule's params, its key last; none for another."""
    if "uniform_like" not in xg.show(rule) and "normal_like" not in xg.show(rule):
        return ()
    return (*[value for _, value in sorted(xg.get(rule).params.items())], KEY)


def rules_by_rank() -> list[str]:
    """Return the rules of the library whose graph is another for another number of axes."""
    return [
        name
        for name in xg.rules()
        if xg.get(name).__module__.startswith(OWN)
        and likely_graph(xg.get(name).bound_rule(), True)[1]
    ]
