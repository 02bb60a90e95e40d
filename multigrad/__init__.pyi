# ruff: noqa: I001
# fmt: off
# The public names, and the file that has each: for type checkers, and for `__init__.py`, which
# reads this file.


from . import (
    compat as compat, estimators as estimators, keras as keras, schedule as schedule,
    testing as testing,
)
from .audit.audit import audit as audit, check as check
from .audit.doctor import doctor as doctor
from .audit.gate import gate as gate
from .audit.same import same as same
from .compat import (
    functional as functional, hook as hook, optax as optax, transforms as transforms,
    wrappers as wrappers,
)
from .compat.wrappers import Activation as Activation
from .core import xp as xp
from .core.lowering.forwards import activations as activations
from .core.rules.activation import activation as activation
from .core.rules.capture import Capture as Capture
from .core.rules.context import use as use
from .core.rules.registry import (
    compose as compose, get as get, register as register, rules as rules,
    unregister as unregister,
)
from .core.rules.rule import Rule as Rule
from .core.rules.vjp import vjp as vjp
from .engine.backend.statuses import backends as backends
from .engine.functions.custom_gradient import (
    custom_gradient as custom_gradient, function as function,
)
from .engine.functions.function import Function as Function
from .engine.functions.implicit.implicit import implicit as implicit
from .engine.functions.importers import (
    convert as convert, from_autograd_function as from_autograd_function,
    from_custom_jvp as from_custom_jvp, from_custom_vjp as from_custom_vjp,
    from_tf_custom_gradient as from_tf_custom_gradient,
)
from .engine.rules.gradients import apply_to_gradients as apply_to_gradients
from .engine.rules.jit import jit as jit
from .engine.rules.jvp import jvp as jvp
from .engine.rules.opaque import opaque as opaque
from .engine.rules.saving import from_dict as from_dict, load as load, save as save
from .engine.rules.transpose import linear_transpose as linear_transpose
from .engine.support.c_libraries import enable as enable
from .errors import (
    BackendNotFound as BackendNotFound, FormatError as FormatError,
    GradientError as GradientError, MultigradError as MultigradError,
    NativeRuleWarning as NativeRuleWarning, RuleError as RuleError,
    StaleTraceError as StaleTraceError, TraceError as TraceError,
    UnsupportedOp as UnsupportedOp,
)
from .look.export import export as export, load_operators as load_operators
from .look.figure import heatmap as heatmap, plot as plot
from .look.memory import memory as memory
from .look.parity import parity as parity
from .look.source import lower as lower, show as show, source as source
from .models import attribution as attribution
from .models.attach import attach as attach, quantize as quantize
from .models.attribution import composites as composites
from .models.override import override as override

__version__: str
