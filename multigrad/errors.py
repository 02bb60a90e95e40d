"""Every error that multigrad raises on purpose.

All are `MultigradError`; where Python has a built-in class that users already catch (KeyError for
an unknown rule, ImportError for a missing framework), the error is that class too. So is one in the
place of a framework's error (`explaining`).
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any, Self, TypeVar


class MultigradError(Exception):
    """Base class of all errors raised by multigrad.

    Examples:
        >>> try:
        ...     xg.get("triangluar")
        ... except xg.MultigradError as error:
        ...     print(type(error).__name__)
        RuleError
    """

    # Also of those that are a built-in class or a framework's. TensorFlow's AutoGraph makes an
    # exception anew in tf.function, of the same class only where that has this constructor.
    __init__ = Exception.__init__

    def __str__(self) -> str:
        # KeyError.__str__ would show the repr of the message, in quotes.
        return " ".join(str(part) for part in self.args)


class RuleError(MultigradError, KeyError):
    """A rule is unknown, registered twice, has a wrong signature or got wrong parameters.

    Examples:
        >>> xg.get("triangluar")
        Traceback (most recent call last):
            ...
        multigrad.errors.RuleError: no rule named 'triangluar'; did you mean 'triangular'? (...
    """


class RuleValueError(RuleError, ValueError):
    """A RuleError about a value: an unknown activation, scope or key.

    Examples:
        >>> xg.activation("Hevyside")
        Traceback (most recent call last):
            ...
        multigrad.errors.RuleValueError: no activation 'Hevyside'; did you mean 'Heaviside'? ...

    Attributes:
        handle: of the rules that are in the way of `xg.attach`, if they are the reason.
    """

    handle: Any = None


class RuleTypeError(RuleError, TypeError):
    """A RuleError about a parameter or an argument of the wrong kind.

    Examples:
        >>> xg.get("triangular").with_params(witdh=2.0)
        Traceback (most recent call last):
            ...
        multigrad.errors.RuleTypeError: rule 'triangular' has no param 'witdh'; did you mean ...
    """


class TraceError(MultigradError):
    """A rule could not be captured as a graph; the message names the user's file and line.

    Made of the message and, where they are known, of that file and line.

    Examples:
        >>> @xg.register("adaptive", native=False)
        ... def adaptive(ctx, grad_out, tin):
        ...     return grad_out / max(1.0, float(grad_out.sum()))
        >>> adaptive(None, np.ones(2), np.ones(2))
        Traceback (most recent call last):
            ...
        multigrad.errors.TraceError: rule 'adaptive' (...) turns a tensor into a Python number...

    Attributes:
        place: that file and line.
    """

    # Kept in `args`, which AutoGraph passes on.
    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""

    @property
    def place(self) -> tuple[str, int] | None:
        return self.args[1] if len(self.args) > 1 else None

    def to_keep(self) -> Self:
        """Return this error without the frames that led to it, which hold the call's tensors."""
        # A copy has no traceback.
        return copy.copy(self)


class DisprovedError(TraceError):
    """A captured graph does not compute what the code that it was captured from does, so it is not
    used.

    Made of a message, a place and a framework.

    Examples:
        >>> issubclass(xg.errors.DisprovedError, xg.TraceError)  # whoever catches that has both
        True

    Attributes:
        home: the framework on which that code runs as it is; "" where it runs on all.
    """

    @property
    def home(self) -> str:
        # In `args`, as the place is, so that it survives when AutoGraph makes the exception anew.
        return self.args[2] if len(self.args) > 2 else ""


class UnsupportedOp(MultigradError):
    """An op that the chosen backend (or dialect) lacks.

    Examples:
        >>> xg.lower("clip_norm", "numpy", forward_mode=True)
        Traceback (most recent call last):
            ...
        multigrad.errors.UnsupportedOp: rule 'clip_norm' is not linear in grad_out, so it has no ...
    """


class BackendNotFound(MultigradError, ImportError):
    """A framework is unknown or not installed, or a value belongs to none.

    Examples:
        >>> xg.lower("triangular", "tensorflw")
        Traceback (most recent call last):
            ...
        multigrad.errors.BackendNotFound: no backend named 'tensorflw'; did you mean ...
    """


class StaleTraceError(MultigradError):
    """Compiled code was traced under another rule than the one now in force.

    Examples:
        >>> import tensorflow as tf
        >>> act, x = xg.activation("Heaviside"), tf.constant([0.25])
        >>> step = tf.function(lambda x: act(x))
        >>> with xg.use("triangular"):
        ...     y = step(x)
        >>> with xg.use("rectangular"):  # xg.jit traces again by itself
        ...     y = step(x)
        Traceback (most recent call last):
            ...
        multigrad.errors.StaleTraceError: tf.function '<lambda>' was traced under the rule ...
    """


class GradientError(MultigradError, RuntimeError, ValueError):
    """A gradient has another shape, dtype or count than its input, or ranks apply different rules
    to it. PyTorch raises a RuntimeError for such a gradient, TensorFlow a ValueError.

    Examples:
        >>> short = xg.function(lambda x: x, lambda grad_out, x: grad_out[:1])
        >>> y, pull = xg.vjp(short, np.ones(3))
        >>> pull(np.ones(3))
        Traceback (most recent call last):
            ...
        multigrad.errors.GradientError: function '<lambda>' returned a gradient of shape (1,) ...
    """


class PlaceError(MultigradError, IndexError):
    """An index points outside a tensor, in code whose library refuses that.

    Examples:
        >>> xg.convert(lambda x: x[5])(np.ones(3))
        Traceback (most recent call last):
            ...
        multigrad.errors.PlaceError: function '<lambda>' (...): index 5 is out of bounds for ...
    """


class FormatError(MultigradError, ValueError):
    """A saved file or document is damaged, too large, of a newer version, or could not be saved.

    Examples:
        >>> xg.from_dict({"format": "multigrad", "version": 99})
        Traceback (most recent call last):
            ...
        multigrad.errors.FormatError: version: the document has version 99, newer than 2, ...
    """


class NativeRuleWarning(UserWarning):
    """A rule could not be captured and runs as it is, in one framework only.

    Examples:
        >>> import warnings
        >>> @xg.register("by sign")
        ... def by_sign(ctx, grad_out, tin):
        ...     return grad_out if float(grad_out.sum()) > 0 else -grad_out
        >>> with warnings.catch_warnings(record=True) as said:
        ...     warnings.simplefilter("always")
        ...     by_sign(None, np.array([-1.0]), None)
        array([1.])
        >>> said[0].category.__name__
        'NativeRuleWarning'
    """


class NotProvenWarning(UserWarning):
    """Under MULTIGRAD_PROVE=all: a capture could not be compared with the code it came from.

    Examples:
        >>> import warnings
        >>> with warnings.catch_warnings():
        ...     warnings.simplefilter("error", xg.errors.NotProvenWarning)  # in a test suite
        ...     xg.get("triangular")(None, np.ones(1), np.array([0.25]))
        array([0.75])
    """


# --- errors instead of a framework's --------------------------------------------------------------
E = TypeVar("E", bound=MultigradError)


def explaining(theirs: Exception, ours: E) -> E:
    """Return our error instead of a framework's: it says both, and has the class of both."""
    error = as_class(type(ours)(f"{theirs}\n{ours}", *ours.args[1:]), type(theirs))
    error.__dict__.update(vars(theirs))
    return error


def as_class(ours: E, theirs: type[Exception]) -> E:
    """Return an error of ours of another class too, for code that catches that one."""
    return _made(type(ours), theirs, ours.args)


def _made(ours: type[Any], theirs: type[Exception], args: tuple[Any, ...]) -> Any:
    if issubclass(ours, theirs):
        return ours(*args)

    def __reduce__(self: Any) -> Any:
        return _made, (ours, theirs, self.args), self.__dict__

    names = {"__module__": ours.__module__, "__reduce__": __reduce__}
    try:  # made anew each time: kept, it would keep a class of the user's, and what that refers to
        return type(ours.__name__, (ours, theirs), names)(*args)
    except TypeError:  # a class that allows no second base
        return ours(*args)


def suggest(given: str, known: Iterable[str]) -> str:
    """Return "; did you mean 'x'?" for the closest known word, or an empty string."""
    close = closest(given, known)
    return f"; did you mean {close!r}?" if close else ""


def closest(given: str, known: Iterable[str]) -> str | None:
    """Return the closest known word, None where none is close."""
    import difflib  # 2 ms, and only errors need it

    # Read twice, and it may be an iterator.
    words = list(known)
    # Without case first: "relu" is close to "ReLU".
    close = difflib.get_close_matches(str(given).lower(), map(str.lower, words), n=1, cutoff=0.6)
    # of names that differ by case alone, as `activation` and `Activation`, the nearer one
    same = [word for word in words if close and word.lower() == close[0]]
    found = difflib.get_close_matches(str(given), same, n=1, cutoff=0.0)
    return found[0] if found else None


class ActsNowhereWarning(UserWarning):
    """A rule that `xg.attach` put on a layer has never met a gradient; or, beside rules that share
    out relevance, an operation that may multiply it has none.

    Examples:
        >>> import warnings
        >>> with warnings.catch_warnings():
        ...     warnings.simplefilter("error", xg.errors.ActsNowhereWarning)  # in a test suite
    """
