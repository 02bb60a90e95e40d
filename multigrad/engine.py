"""What stands above the core and registers with it: for each function of the core that something
above provides, its place. Nothing is loaded before it is called.
"""

from __future__ import annotations

from .graph.support.provided import provide

provide(
    {
        "multigrad.graph.ops:list_families": "multigrad.graph.ops.arrays.families:list_families",
        "multigrad.lowering.emit:write_loop": "multigrad.lowering.loops:write_loop",
        "multigrad.lowering.function_graph:run_scans_of_backward": (
            "multigrad.lowering.loops:run_scans_of_backward"
        ),
        "multigrad.capture:check_dialect": "multigrad.capture.dialect:check_dialect",
        "multigrad.rules.model.activation_function:forward_of_code": (
            "multigrad.rules.model.forward_of_code:forward_of_code"
        ),
        "multigrad.capture.dialects.xp:find": "multigrad.capture.dialects.array_api:find",
        "multigrad.rules.model.rule:encode_rule": "multigrad.functions.documents.rules:encode_rule",
        "multigrad.rules.model.specialization:over_shards": (
            "multigrad.trace.derived.shards:over_shards"
        ),
        "multigrad.rules.model.specialization:run_as_written": (
            "multigrad.functions.calls.as_written:run_rule_as_written"
        ),
        "multigrad.rules.model.specialization:run_rule": (
            "multigrad.capture.copies.run_or_import:run_rule"
        ),
        "multigrad.rules.registry:chain": "multigrad.functions.chain:chain",
        "multigrad.trace.derived.derivatives:find_scans": "multigrad.trace.derived.scans:Scans",
        "multigrad.trace.python_protocols:asserted": "multigrad.trace.assertions:asserted",
        "multigrad.trace.xp.all:other_modules": "multigrad.trace.xp.others:other_modules",
        "multigrad.rules.vjp:as_derived": "multigrad.rules.vjp_of_code:as_derived",
        "multigrad.rules.vjp:entry_of": "multigrad.rules.vjp_of_code:entry_of",
        "multigrad.rules.vjp:vjp_as_written": "multigrad.rules.vjp_of_code:vjp_as_written",
    }
)
