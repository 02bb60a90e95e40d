"""What a rule is: the `Rule` (`rule.py`), its captured code, its names, its values in force, and
the Function that it makes under an activation.

`rules/activation.py` uses the names below. Their files import half of the package, so each loads
when one of its names is first used.
"""

from typing import TYPE_CHECKING

from ...support.lazy_modules import lazy_names

# Keep both lists equal: the first is for type checkers, the second runs. See
# tests/graph/support/test_lazy_modules.py.
if TYPE_CHECKING:
    from .activation_function import as_forward as as_forward
    from .activation_function import forward_on as forward_on
    from .activation_function import put_under as put_under
    from .activation_function import record_under as record_under
    from .lookup import apply_now as apply_now
    from .lookup import unknown_keyword_error as unknown_keyword_error
    from .lookup import with_choices as with_choices
    from .rule_in_force import read_number as read_number
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "activation_function": (
                "as_forward", "forward_on", "put_under", "record_under",
            ),
            "lookup": ("apply_now", "unknown_keyword_error", "with_choices"),
            "rule_in_force": ("read_number",),
        },
    )  # fmt: skip
