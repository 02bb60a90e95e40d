"""What stands above the core and registers with it: the functions of the core that something above
provides, under their own names. Nothing is loaded before it is called.
"""

from __future__ import annotations

from .graph.support.provided import provide

# By the core's module, then by the module that provides them.
PROVIDERS = {
    # ops of whole arrays, and functions of xg.xp that no elementwise rule needs
    "graph.ops": {"graph.ops.arrays.families": "list_families"},
    "trace.xp.all": {"trace.xp.others": "other_modules"},
    "trace.derived.derivatives": {"trace.derived.scans": "find_scans"},
    "trace.python_protocols": {"trace.assertions": "asserted"},
    "lowering.emit": {"lowering.loops": "write_loop"},
    "lowering.function_graph": {"lowering.loops": "run_scans_of_backward"},
    "capture.dialects.xp": {"capture.dialects.array_api": "find"},
    # code that is not plain: its capture, its proof, what it is read as
    "capture": {"capture.dialect": "check_dialect"},
    "functions.calls.recipe": {"capture.user_code.libraries": "library_of"},
    "functions.captures": {
        "functions.code_proof": "capture_code prove_code read_otherwise facts_of_indices",
        "functions.proof.memory": "as_placed",
        "functions.nested_calls": "inline",
    },
    # calls of it: as written, of numbers that it reads, with what it assumes
    "functions.entries": {
        "functions.native_entries": "leaves_numbers_to_original original_entry native_entry "
        "entry_under_transforms follow_library",
        "functions.open_forms": "find_form entries_by_facts",
        "functions.calls.assumptions": "check_assumptions",
    },
    "functions.calls.binding": {
        "functions.calls.library_dtypes": "weakened",
        "functions.calls.assumptions": "explain_places",
    },
    "functions.calls.facts": {"capture.values.memory": "is_known_contiguous"},
    # documents, and models that are being built
    "functions.function": {
        "functions.saving": "encode_function _rebuild",
        "functions.placeholders": "call_with_placeholders",
    },
    "rules.model.rule": {"functions.documents.rules": "encode_rule"},
    # rules of such code, over shards, under forwards that are functions, and their vjp
    "rules.model.specialization": {
        "capture.copies.run_or_import": "run_rule",
        "functions.calls.as_written": "run_as_written",
        "trace.derived.shards": "over_shards",
    },
    "rules.model.activation_function": {"rules.model.forward_of_code": "forward_of_code"},
    "rules.model.rule_names": {
        "rules.estimators": "estimator_hint",
        "models.attribution.composites": "call_hint",
    },
    "rules.registry": {"functions.chain": "chain"},
    "rules.vjp": {"rules.vjp_of_code": "as_derived entry_of vjp_as_written"},
}

provide(
    {
        f"multigrad.{home}:{name}": f"multigrad.{provider}:{name}"
        for home, rows in PROVIDERS.items()
        for provider, names in rows.items()
        for name in names.split()
    }
)
