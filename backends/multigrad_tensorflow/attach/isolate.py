"""Code that runs for a proof: eagerly, whatever graph is built around it, and on one replica."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python import pywrap_tfe

from ..distributed.collectives import ALONE


def isolate(run: Callable[[], Any], is_random: bool) -> Any:
    """Return what a function returns, run eagerly.

    While a graph is built it runs on a thread of its own: `tf.init_scope` would stop tapes that
    begin inside of it too. So it does within a strategy, of which a thread knows nothing: the other
    replicas have nothing to prove, and would be waited for. And so it does where tapes are stopped
    on this thread, as in the forward of `tf.recompute_grad`.
    """
    ALONE.set(True)  # the context is a copy, of the proof's own
    if tf.executing_eagerly() and not tf.distribute.has_strategy() and not _is_stopped():
        return run()
    results: list[Any] = []
    failures: list[BaseException] = []

    def work() -> None:
        try:
            results.append(run())
        except BaseException as failure:
            failures.append(failure)

    thread = threading.Thread(target=contextvars.copy_context().run, args=(work,), daemon=True)
    thread.start()
    thread.join()
    if failures:
        raise failures[0]
    return results[0]


def _is_stopped() -> bool:
    """Return whether no tape of this thread records."""
    return bool(pywrap_tfe.TFE_Py_TapeSetIsStopped())
