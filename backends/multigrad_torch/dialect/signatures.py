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
    """Return a function's signature; of one written in C, merged from its overloads.

    The overload with the most positional parameters gives these; the other overloads' own become
    keywords. A parameter that any overload lacks is optional.

    Raises:
        ValueError: torch knows no signature.
    """
    try:
        return inspect.signature(function)
    except ValueError:
        overloads = find_overloads(function.__name__)
        if not overloads:
            raise
    overloads.sort(key=lambda arguments: sum(not a.kwarg_only for a in arguments), reverse=True)
    longest = overloads[0]
    params: dict[str, Parameter] = {}
    for arguments in overloads:
        for argument in arguments:
            name = _python_name(argument)
            if name not in params:
                is_keyword = argument.kwarg_only or arguments is not longest
                kind = Parameter.KEYWORD_ONLY if is_keyword else Parameter.POSITIONAL_OR_KEYWORD
                params[name] = Parameter(name, kind)
            if argument.has_default_value():
                params[name] = params[name].replace(default=argument.default_value)
    for name, param in params.items():
        is_needed = all(name in map(_python_name, arguments) for arguments in overloads)
        if param.default is Parameter.empty and not is_needed:
            params[name] = param.replace(default=NOT_GIVEN)
    if "pin_memory" in params:  # a function that makes a tensor
        params["requires_grad"] = Parameter("requires_grad", Parameter.KEYWORD_ONLY, default=False)
    return inspect.Signature(sorted(params.values(), key=lambda param: param.kind))


def _python_name(argument: Any) -> str:
    return "input" if argument.name == "self" else argument.name


def find_overloads(name: str) -> list[Any]:
    """Return the schema's arguments of each overload that takes tensors and returns a new one."""
    schemas = torch._C._jit_get_schemas_for_operator(f"aten::{name}")
    return [
        arguments
        for arguments in (schema.arguments for schema in schemas)
        if any(str(each.type) in ("Tensor", "List[Tensor]") for each in arguments)
        and not any(each.is_out or "Dimname" in str(each.type) for each in arguments)
        and not any(each.alias_info and each.alias_info.is_write for each in arguments)
    ]


# NumPy's names of parameters -> torch's: its functions that are written in C take both.
NUMPY_NAMES = {
    "axis": "dim",
    "keepdims": "keepdim",
    "x": "input",
    "a": "input",
    "x1": "input",
    "x2": "other",
}
# The names that handlers are registered by: of functions (`torch.`, `F.`), and of tensors' methods.
TORCH = Library(torch, {"F": F}, signature_of, also=NUMPY_NAMES)
TENSOR = Library(torch.Tensor, signature_of=signature_of, also=NUMPY_NAMES)
