"""Code that runs apart from the call around it: eagerly, whatever graph or tape there is."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python import pywrap_tfe

from ..distributed import ALONE


def isolate(run: Callable[[], Any], is_random: bool) -> Any:
    """Run a function eagerly and return its result, on its own thread where this one is not free.

    That is so where a graph is built: `tf.init_scope` would also stop tapes that begin inside it.
    Also within a strategy, which the other thread does not see: the other replicas have nothing to
    prove and would be waited for. And where tapes are stopped on this thread, as in the forward of
    `tf.recompute_grad`.
    """
    ALONE.set(True)  # never reset: the context is a copy for this proof
    if (
        tf.executing_eagerly()
        and not tf.distribute.has_strategy()
        and not pywrap_tfe.TFE_Py_TapeSetIsStopped()
    ):
        return run()
    results: list[Any] = []
    failures: list[BaseException] = []

    def work() -> None:
        try:
            results.append(run())
        except BaseException as failure:  # noqa: BLE001 (raised again in the caller's thread)
            failures.append(failure)

    thread = threading.Thread(target=contextvars.copy_context().run, args=(work,), daemon=True)
    thread.start()
    thread.join()
    if failures:
        raise failures[0]
    return results[0]
