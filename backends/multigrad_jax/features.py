"""What JAX's backend offers above the core; each part loads as it is called."""

from __future__ import annotations

import jax

from multigrad.core.support.lazy_modules import late_function, late_value
from multigrad.engine.backend.features import Imports, Interop, Models, Modes

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
