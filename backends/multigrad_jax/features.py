"""What JAX's backend offers above the core; each part loads as it is called."""

from __future__ import annotations

import threading

import jax

from multigrad.core.support.lazy_modules import late_function, late_value
from multigrad.engine.backend.features import Group, Imports, Interop, Models, Modes, Ranks

from .core import versions


def find_ranks() -> Group | None:
    """Return the processes of `jax.distributed`; None for one alone, and off the main thread."""
    state = versions.distributed.global_state
    if state.client is None or (state.num_processes or 1) < 2:
        return None
    # Only the main thread's calls have an order that all processes share.
    if threading.current_thread() is not threading.main_thread():
        return None
    return make_group(state.client, state.process_id, state.num_processes)


make_group = late_function("multigrad_jax.distributed:make_group")
INTEROP = Interop(
    lend=late_function("multigrad_jax.attach.guests:lend"),
    borrow=late_function("multigrad_jax.attach.guests:borrow"),
    outside=jax.jit,
    bridge=late_function("multigrad_jax.attach.guests:bridge"),
)
IMPORTS = Imports(
    dialect=late_value("multigrad_jax.dialect.table:DIALECT"),
    import_function=late_function("multigrad_jax.importers:import_function"),
    container=late_function("multigrad_jax.models:container"),
)
MODELS = Models(
    override=late_function("multigrad_jax.models.override:override_calls"),
    is_operation=late_function("multigrad_jax.models.operations:is_operation"),
    kept_by_call=late_function("multigrad_jax.models.layer_memory:kept_by_call"),
    leaves=jax.tree.leaves,
)
MODES = Modes(
    jvp=late_function("multigrad_jax.attach.modes:jvp"),
    checkpoints={"jax.checkpoint": late_function("multigrad_jax.attach.modes:checkpointed")},
    mapped=late_function("multigrad_jax.attach.modes:mapped"),
    whole=late_function("multigrad_jax.attach.modes:whole"),
    transforms={"jit(vmap(grad))": late_function("multigrad_jax.attach.modes:jit_vmap_grad")},
    compiles_each_shape=True,
    lacks={
        "autocast": "JAX has no autocast",
        "kept": "what is kept are the arrays that fwd returns, of which jit drops those that are "
        "not read",
    },
)
RANKS = Ranks(group=find_ranks)
