"""What TensorFlow's backend offers above the core; each part loads as it is called."""

from __future__ import annotations

import tensorflow as tf

from multigrad.core.support.lazy_modules import late_function, late_value
from multigrad.engine.backend.features import Imports, Interop, Models, Modes, Ranks

INTEROP = Interop(
    lend=late_function("multigrad_tensorflow.attach.guests:lend"),
    borrow=late_function("multigrad_tensorflow.attach.guests:borrow"),
    bridge=late_function("multigrad_tensorflow.attach.guests:bridge"),
)
IMPORTS = Imports(
    dialect=late_value("multigrad_tensorflow.dialect.table:DIALECT"),
    import_function=late_function("multigrad_tensorflow.importers:import_function"),
)
MODELS = Models(
    override=late_function("multigrad_tensorflow.models.override:override_calls"),
    is_operation=late_function("multigrad_tensorflow.models:is_operation"),
    kept_by_call=late_function("multigrad_tensorflow.models:kept_by_call"),
)
MODES = Modes(
    jvp=late_function("multigrad_tensorflow.attach.modes:jvp"),
    checkpoints={
        "tf.recompute_grad": late_function("multigrad_tensorflow.attach.modes:checkpointed")
    },
    mapped=late_function("multigrad_tensorflow.attach.modes:mapped"),
    whole=tf.function,
    seed=late_function("multigrad_tensorflow.attach.modes:set_seed"),
    lacks={
        "autocast": "TensorFlow has no autocast: layers of Keras choose their dtypes",
        "kept": "a backward is a closure, which holds what it reads",
    },
)
RANKS = Ranks(group=late_function("multigrad_tensorflow.replicas:rank_group"))
