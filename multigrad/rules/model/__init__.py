"""Rules: a function with params, its graphs, its names, itself under an activation.

What an activation needs of them loads with the first rule, or the first call: it pulls in half of
the package.
"""

from typing import TYPE_CHECKING

from ...graph.support.lazy_modules import later

if TYPE_CHECKING:
    from .acting import apply_now as apply_now
    from .acting import refuse_misplaced as refuse_misplaced
    from .acting import rule_fused as rule_fused
    from .acting import rule_over as rule_over
    from .forwards_of_code import ForwardOfCode as ForwardOfCode
    from .forwards_of_code import as_forward as as_forward
    from .specialization import read_number as read_number
    from .under import forward_on as forward_on
    from .under import put_under as put_under
    from .under import record_under as record_under
else:
    __getattr__, __dir__ = later(
        __name__,
        {
            "acting": ("apply_now", "refuse_misplaced", "rule_fused", "rule_over"),
            "forwards_of_code": ("ForwardOfCode", "as_forward"),
            "specialization": ("read_number",),
            "under": ("forward_on", "put_under", "record_under"),
        },
    )
