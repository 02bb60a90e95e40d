"""The signatures of torch's functions, and the libraries of names that read them.

Functions that are written in C have none of their own: theirs come from the schemas of their
overloads.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
import torch.nn.functional as F

from multigrad.capture.name_tables import NOT_GIVEN, Library

Parameter = inspect.Parameter


def signature_of(function: Any) -> inspect.Signature:
    """Return a function's signature, merged from its overloads: that of the one with the most
    positional parameters, with those of the others as keywords. Parameters that an overload lacks
    are optional.

    Raises:
        ValueError: torch knows no signature.
    """
    try:
        return inspect.signature(function)
    except ValueError:
        overloads = find_overloads(function.__name__)
        if not overloads:
            raise
    # `overloads[0]` has the most positional parameters from here on.
    overloads.sort(key=lambda rows: sum(not each.kwarg_only for each in rows), reverse=True)
    params: dict[str, Parameter] = {}
    for rows in overloads:
        for each in rows:
            is_keyword = each.kwarg_only or rows is not overloads[0]
            name = "input" if each.name == "self" else each.name
            if name not in params:
                kind = Parameter.KEYWORD_ONLY if is_keyword else Parameter.POSITIONAL_OR_KEYWORD
                params[name] = Parameter(name, kind)
            if each.has_default_value():
                params[name] = params[name].replace(default=each.default_value)
    for name, each in params.items():
        is_needed = all(
            name in (row.name.replace("self", "input") for row in rows) for rows in overloads
        )
        if each.default is Parameter.empty and not is_needed:
            params[name] = each.replace(default=NOT_GIVEN)
    if "pin_memory" in params:  # a function that makes a tensor
        params["requires_grad"] = Parameter("requires_grad", Parameter.KEYWORD_ONLY, default=False)
    return inspect.Signature(sorted(params.values(), key=lambda each: each.kind))


def find_overloads(name: str) -> list[Any]:
    """Return the parameters of an operator's overloads that take tensors and return a new one."""
    schemas = torch._C._jit_get_schemas_for_operator(f"aten::{name}")
    return [
        rows
        for rows in (schema.arguments for schema in schemas)
        if any(str(each.type) in ("Tensor", "List[Tensor]") for each in rows)
        and not any(each.is_out or "Dimname" in str(each.type) for each in rows)
        and not any(each.alias_info and each.alias_info.is_write for each in rows)
    ]


# NumPy's names of parameters, which torch accepts in all its functions that are written in C.
NUMPYS = {
    "axis": "dim",
    "keepdims": "keepdim",
    "x": "input",
    "a": "input",
    "x1": "input",
    "x2": "other",
}
# The names that handlers are registered by: of functions (`torch.`, `F.`), and of tensors' methods.
TORCH = Library(torch, {"F": F}, signature_of, also=NUMPYS)
TENSOR = Library(torch.Tensor, signature_of=signature_of, also=NUMPYS)
