"""What stands above the core and registers with it: for each function of the core that something
above provides, its place. Nothing is loaded before it is called.
"""

from __future__ import annotations

from .graph.support.provided import provide

provide(
    {
        "multigrad.graph.ops:list_families": "multigrad.graph.ops.arrays.families:list_families",
        "multigrad.capture:check_dialect": "multigrad.capture.dialect:check_dialect",
        "multigrad.rules.model.rule:encode_rule": "multigrad.functions.documents.rules:encode_rule",
        "multigrad.rules.registry:chain": "multigrad.functions.chain:chain",
        "multigrad.trace.derived.derivatives:find_scans": "multigrad.trace.derived.scans:Scans",
        "multigrad.trace.python_protocols:asserted": "multigrad.trace.assertions:asserted",
        "multigrad.trace.xp.all:other_modules": "multigrad.trace.xp.others:other_modules",
    }
)
