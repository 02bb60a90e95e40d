"""A call of a user's or a library's function within a capture.

A copy of the function runs with substitutes for what Python hides from symbolic values. Where that
fails, the library's own tracing may import the function. NumPy's functions that have no row run by
their own code in the same way.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from types import FunctionType
from typing import Any

from ....core.ir import questions
from ....core.trace.source import Reading
from ....core.trace.trace import NeedsConcrete, setting
from ....errors import MultigradError, TraceError
from ...trace.code_trace import CodeTrace, lend, note_read
from ..dialect import OwnTrace, find_dialect, register_dialect, registered_dialects, require_dialect
from ..dialects import numpy as _numpy_dialect  # noqa: F401 - it registers NumPy's table
from ..foreign_calls import symbols_in
from ..user_code.inspection import catches_errors, plain_function
from ..user_code.libraries import is_library_file, reading_of
from ..user_code.reachable import find_reads, noting_reads
from .substitute import substitute


def run_written_in(
    library: str, function: Callable[..., Any], trace: CodeTrace, /, *args: Any, **kwargs: Any
) -> Any:
    """Call a function in a trace, replacing what Python hides from symbolic values.

    If substitution cannot see through the function, its dialect may import it in another way. The
    code tells its library where that is "".
    """
    return run_or_import(library, function, trace, args, kwargs)


def run_rule(
    library: str, function: Callable[..., Any], trace: CodeTrace, /, *args: Any, **params: Any
) -> Any:
    """Call a rule's function as `run_written_in` does; what calls it does not find by itself what
    it reads.
    """
    with noting_reads(find_reads((function,), takes_defaults=False)):
        return run_or_import(library, function, trace, args, params)


def run_or_import(
    library: str,
    function: Callable[..., Any],
    trace: CodeTrace,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    whole: tuple[Callable[..., Any], tuple[Any, ...]] | None = None,
) -> Any:
    """Call a function as `run_written_in` does; its arguments are a tuple and a mapping.

    Args:
        whole: the function to import if substitution fails, with its arguments. A copy finds the
            tensors that it reads from an object there; an importer gets them as arguments.
    """
    plain = plain_function(function)
    if library:
        require_dialect(library)
    siblings = trace.source.siblings
    reading = Reading((library,)) if library else reading_of(plain, trace.facts, siblings)
    with setting(trace, reading=reading):
        try:
            return _substitute_or_import(trace, function, args, kwargs, whole=whole)
        finally:
            note_read(trace.source, trace.reading)


def _substitute_or_import(
    trace: CodeTrace,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    whole: tuple[Callable[..., Any], tuple[Any, ...]] | None,
) -> Any:
    reading = trace.reading
    if reading.dialect:
        trace.source.routes.setdefault(reading.dialect, "")
    # A failed attempt is undone with these.
    draws, routes, question_count = trace.draws, dict(trace.source.routes), questions.count()
    dialect = find_dialect(reading.dialect)
    at_once = None if dialect is None else dialect.calls.at_once
    try:
        # Constants meet through operators too, while a compiler may be tracing the same code.
        with nullcontext() if at_once is None else at_once():
            return substitute(function, trace)(*args, **kwargs)
    except NeedsConcrete:
        raise
    except Exception as error:
        lend(trace)  # or NeedsConcrete: code that leans is read anew, as the tensors' library's
        calls = _importer_of(trace, error)
        if calls is None or trace.draws != draws:  # an import would draw once more
            raise
        # The failed attempt's questions and routes do not count for the import.
        questions.forget(question_count)
        imported, arguments = whole or (function, args)
        try:
            result = calls.import_function(imported, trace, arguments, kwargs)
        except TraceError as other:
            questions.forget(question_count)
            if isinstance(error, TraceError):
                # "rule 'f' calls jnp.foo, ...; it was traced to the primitive foo"
                lacks = getattr(other.__cause__, "lacks", "")
                if lacks and " calls " in str(error):
                    error.args = (f"{error}; it was traced to {lacks}", *error.args[1:])
                questions.note(error)
            raise error from None  # of the two errors, the one that names the user's line
        trace.source.routes = {**routes, reading.dialect: calls.import_route}
        return result


def _importer_of(trace: CodeTrace, error: Exception) -> Any:
    """Return the calls of the dialect that may import code whose substitution failed; None: the
    error stands.

    Where the code's own library has no importer, the code is from now on read as written in that in
    which it failed.
    """
    reading = trace.reading
    if not _has_importer(reading.dialect):
        # It may have met a symbol there by way of other libraries.
        frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
        roots = [str(each.f_globals.get("__name__", "")).partition(".")[0] for each in frames]
        reading.dialect = next(filter(_has_importer, reversed(roots)), reading.dialect)
    dialect = find_dialect(reading.dialect)
    if dialect is None or not _has_importer(reading.dialect):
        return None
    if isinstance(error, MultigradError) and not isinstance(error, TraceError):
        return None  # it is about the code itself, however that is captured
    if trace.source.calls_refused:
        return None  # a library would call it once, as it traces
    # User code that catches errors may have hidden some, so an import would see other code paths; a
    # library's code was made to be traced.
    users = (code for code in trace.source.codes if not is_library_file(code.co_filename))
    return None if any(map(catches_errors, users)) else dialect.calls


def _has_importer(library: str) -> bool:
    dialect = find_dialect(library)
    return dialect is not None and dialect.calls.import_function is not None


# --- functions of NumPy without a row -------------------------------------------------------------
def find_numpys_code(function: Any) -> Callable[..., Any] | None:
    """Return a recorder of a NumPy function by its own code; None: it is not written in Python."""
    code = getattr(function, "_implementation", None)
    return OwnTrace(run_numpys_code, code) if isinstance(code, FunctionType) else None


def run_numpys_code(code: FunctionType, /, *args: Any, **kwargs: Any) -> Any:
    """Record a call by running a copy of a NumPy function's own code with stand-ins; TypeError if
    something that it calls is not captured.
    """
    trace = next(symbols_in((args, kwargs))).trace
    with setting(trace.source, codes=set(trace.source.codes), witness=None):
        copy = substitute(code, trace, "numpy")
    question_count = questions.count()
    try:
        result = copy(*args, **kwargs)
    except TraceError as error:
        questions.forget(question_count)
        raise TypeError("nor is NumPy's own code of it") from error
    trace.source.routes["numpy"] = "protocol and by NumPy's own code"
    return result


_numpy = registered_dialects()["numpy"]
register_dialect("numpy", replace(_numpy, calls=replace(_numpy.calls, finds=find_numpys_code)))
