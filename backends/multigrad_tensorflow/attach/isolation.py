"""Code that runs apart from the call around it, as proofs do."""

from __future__ import annotations

import contextvars
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import tensorflow as tf
from tensorflow.python import pywrap_tfe

from ..distributed import ALONE


def isolate(run: Callable[[], Any], is_random: bool) -> Any:
    """Run a function eagerly and return its result, on its own thread where this one is not free.

    That is so where a graph is built: `tf.init_scope` would also stop tapes that begin inside it;
    within a strategy, whose other replicas would be waited for; and where tapes are stopped, as in
    the forward of `tf.recompute_grad`.
    """
    ALONE.set(True)  # never reset: the context is a copy for this proof
    if (
        tf.executing_eagerly()
        and not tf.distribute.has_strategy()
        and not pywrap_tfe.TFE_Py_TapeSetIsStopped()
    ):
        return run()
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(contextvars.copy_context().run, run).result()
