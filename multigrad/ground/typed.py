"""What stands for the types of a user's own function: `P` its parameters, `R` what it returns.

A bare `Function` in an annotation means one of any parameters; a typing module of Python 3.11 knows
no such defaults, and only checkers read them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import ParamSpec, TypeVar

    P = ParamSpec("P", default=...)
    R = TypeVar("R", default=Any)
else:
    from typing import ParamSpec, TypeVar

    P, R = ParamSpec("P"), TypeVar("R")

__all__ = ["P", "R"]
