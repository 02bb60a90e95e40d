"""What the rest of this package registers: with its core, the place of a function that it provides;
with TensorFlow, that the replicas of its strategies run in the context of the call.
"""

from __future__ import annotations

import functools

from tensorflow.python.distribute import mirrored_run  # pyright: ignore[reportAttributeAccessIssue]

from multigrad.core.support.lazy_modules import late_function, provide

provide("multigrad_tensorflow", {
    "core.compile": {"recomputed_regions": "call_noted note_regions"},
})  # fmt: skip
stands_in = functools.wraps(mirrored_run._call_for_each_replica)
mirrored_run._call_for_each_replica = stands_in(
    late_function("multigrad_tensorflow.replicas:call_for_each_replica")
)
stands_in = functools.wraps(mirrored_run._MirroredReplicaContext._merge_call)
mirrored_run._MirroredReplicaContext._merge_call = stands_in(
    late_function("multigrad_tensorflow.replicas:merge_call")
)
