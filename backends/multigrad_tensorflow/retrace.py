"""A model of users has other rules: the `tf.function`s that were traced with it are traced anew.

Nothing in a graph tells of rules to come, so that what was traced before them is looked for: by the
variables that it reads.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable
from typing import Any

import tensorflow as tf
from tensorflow.python.eager.polymorphic_function.polymorphic_function import Function


def forget_traces(variables: Iterable[Any]) -> None:
    """Let each `tf.function` that was traced with one of these variables forget its traces."""
    names = {each._unique_id for each in variables if isinstance(each, tf.Variable)}
    if not names:
        return
    for each in gc.get_objects():
        if type(each) is not Function:
            continue
        with each._lock:
            for cache in caches_of(each):
                if any(reads(concrete.graph, names) for concrete in cache.values()):
                    cache.clear()


def caches_of(function: Function) -> list[Any]:
    """Return what holds a function's traces."""
    options = (function._variable_creation_config, function._no_variable_creation_config)
    return [each.function_cache for each in options if each is not None]


def reads(graph: Any, names: set[str]) -> bool:
    """Return whether a graph reads one of some variables."""
    return any(getattr(each, "_unique_id", None) in names for each in graph.variables)
