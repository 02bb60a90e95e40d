"""Rules: a function with params, its graphs, its names, itself under an activation.

What an activation needs of them loads with the first rule, or the first call: it pulls in half of
the package.
"""

from typing import TYPE_CHECKING

from ...graph.support.lazy_modules import later

if TYPE_CHECKING:
    from .activation_function import ForwardOfCode as ForwardOfCode
    from .activation_function import as_forward as as_forward
    from .activation_function import forward_on as forward_on
    from .activation_function import put_under as put_under
    from .activation_function import record_under as record_under
    from .lookup import apply_now as apply_now
    from .lookup import refuse_misplaced as refuse_misplaced
    from .lookup import with_choices as with_choices
    from .rule_in_force import read_number as read_number
else:
    __getattr__, __dir__ = later(
        __name__,
        {
            "activation_function": (
                "ForwardOfCode", "as_forward", "forward_on", "put_under", "record_under",
            ),
            "lookup": ("apply_now", "refuse_misplaced", "with_choices"),
            "rule_in_force": ("read_number",),
        },
    )  # fmt: skip
