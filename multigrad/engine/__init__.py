"""What the engine and features register with the core: the functions of the core that they provide,
under their own names. The core says what each returns. Nothing is loaded before it is called.
"""

from __future__ import annotations

from ..core.support.lazy_modules import provide

provide("multigrad", {
    # public names of rooms, what tracebacks show, and arrays that are split over devices
    "core.support.lazy_modules": {
        "engine.support.public_modules": "find_room hint_at"
    },
    "core.support.tracebacks": {"engine.support.tracebacks": "shorten"},
    "core.support.params": {"engine.support.shards": "read_shards"},
    "core.backend.discovery": {
        "engine.backend.statuses": "admit unknown_backend_error unloadable_error",
    },
    # ops of whole arrays, and functions of xg.xp that no elementwise rule needs
    "core.ops": {"engine.ops.families": "list_families"},
    "core.trace.xp.all": {"engine.trace.xp": "other_modules"},
    "core.lowering.derivatives": {
        "engine.lowering.calls": "draw_in split_calls pull_joined retyped"
    },
    "core.passes.decisions": {"engine.passes.turns": "sources_of_turns"},
    "core.trace.trace": {"engine.trace.coercion": "power_of_integer"},
    "core.passes.facts": {
        "engine.passes.shapes": "needed_shapes computed_shape shape_by_operands"
    },
    "core.trace.identity": {"engine.trace.contents": "key_of_object"},
    "core.trace.lookups": {
        "engine.trace.moving_numbers": "read numbers_of as_it_stands is_handed_along hand_along"
    },
    "core.trace.coercion": {
        "engine.trace.coercion": "coerce_integers in_common_dtype lift_array result_of_small"
    },
    "core.trace.active_rules": {
        "engine.trace.random_keys": "draw_next keyed key_token",
        "engine.trace.ranks": "note_for_ranks compare name_rank",
    },
    "core.lowering.emit": {
        "engine.lowering.loops": "write_loop",
        "engine.lowering.places": "write_into_place is_held by_mask",
    },
    "core.lowering.function_graph": {"engine.lowering.cuts": "cut_otherwise"},
    "core.lowering.forwards": {"engine.rules.advice": "unknown_activation_error"},
    "core.lowering.lower": {"engine.lowering.lower": "lower_any lower_dual"},
    "core.lowering.checks": {"engine.lowering.checks": "second_refusal find_lacking_in"},
    "core.xp": {"engine.capture.dialects.array_api": "find"},
    # code that is not plain: its capture, its proof, what it is read as
    "core.rules.capture": {"engine.capture.dialect": "check_dialect"},
    "core.functions.recipe": {
        "engine.capture.user_code.libraries": "library_of",
        "engine.functions.calls.arguments": "read_layout",
        "engine.functions.calls.as_written": "warn_native warn_disproved",
    },
    "core.functions.captures": {
        "engine.functions.code_proof": "capture_code prove_code read_otherwise",
        "engine.functions.calls.facts": "asks_more",
        "engine.functions.proof.memory": "as_placed",
    },
    # calls of it: as written, of numbers that it reads, with what it assumes
    "core.functions.facts": {
        "engine.functions.calls.facts": "answer_of_tensor answer_of_code question_of"
    },
    # documents, and models that are being built
    "core.functions.function": {
        "engine.functions.calls.binding": "bind_leaves_of_code",
        "engine.functions.entries": "native_entry decided_entry proving_each_call",
        "engine.functions.known_forms": "entries_by_facts",
        "engine.functions.saving": "encode_function _rebuild",
        "engine.functions.nested_calls": "inline",
    },
    "core.rules.rule": {
        "engine.functions.documents.rules": "encode_rule",
        "engine.functions.function": "as_function",
    },
    # rules of such code, over shards, under forwards that are functions, and their vjp
    "core.rules.rule_captures": {
        "engine.capture.copies.run_or_import": "run_rule",
        "engine.functions.decision": "find_omission",
        "engine.trace.derived.shards": "over_shards",
    },
    "core.rules.specialization": {"engine.functions.calls.as_written": "run_as_written"},
    "core.rules.activation_function": {
        "engine.rules.model.forward_of_code": "forward_of_code"
    },
    "core.rules.rule_names": {
        "engine.rules.peers": "load_peers",
        "engine.rules.advice": "unknown_rule_error explain_no_rule",
    },
    "engine.rules.advice": {
        "estimators": "estimator_hint",
        "models.attribution.composites": "call_hint",
    },
    "core.rules.activation": {"engine.functions.nested_calls": "record_activation"},
    "core.rules.context": {"engine.rules.advice": "undecorated warn_of_yield"},
    "core.rules.registry": {
        "engine.rules.advice": "unknown_keyword_error",
        "engine.support.shards": "with_choices",
        "engine.functions.chain": "chain",
    },
    "core.rules.rule_in_force": {
        "engine.support.parts": "bind_addressed",
        "engine.rules.model.rule_graphs": "graph_of",
    },
    "core.rules.vjp": {
        "engine.rules.jvp": "vjp_by_framework as_derived entry_of vjp_as_written",
        "engine.functions.calls.arguments": "open_leaves",
        "engine.functions.calls.assumptions": "check_call explain_places",
        "engine.functions.known_forms": "decide_vjp",
    },
})  # fmt: skip
