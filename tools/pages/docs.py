"""The tables of the folder docs, written from what they describe.

Ops come from the op table and the backends' rows, rules from their docstrings and what they do,
fast kernels and differences from the tables that each backend declares. A test compares the files
with what is written here.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from multigrad.core import ops
from multigrad.core.backend.contract import Backend
from multigrad.core.backend.discovery import load_backend
from multigrad.core.ir.op import Op
from multigrad.engine.backend.differences import ALL, KINDS, Difference

from . import audits, captured, conventions, first_call, library_docs, same_names
from .conversions import (
    GAINS_HEADER,
    OF_USERS,
    count_by,
    count_equal,
    count_gains,
    read_gains,
    read_rows,
    say_lost,
)
from .markdown import bullets, code, fill, page, table

# A stranger's backend has docs of its own.
BACKENDS = ("numpy", "torch", "jax", "tensorflow")


def write_docs(folder: Path) -> Iterator[str]:
    """Write the pages into a folder; yield what is to be said of those that change or are left."""
    for name, render in PAGES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            text = render()
        except ImportError as error:  # a framework is not installed
            yield f"left {path}: {error}"
            continue
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            yield f"wrote {path}"


def render_readme(text: str) -> str:
    return fill(text, render_gains())


def render_gains() -> str:
    return table(GAINS_HEADER, count_gains(read_gains()))


# --- ops ----------------------------------------------------------------------------------------


def render_ops() -> str:
    backends = [load_backend(name) for name in BACKENDS]
    header = ("op", "in a rule", "operands", "attributes", "meaning", *(b.name for b in backends))
    rows = []
    for op in ops.CALLABLE_OPS:
        cells = (f"`{op.name}`", xp_name(op), code(op.operands), code(op.attrs), op.doc)
        rows.append((*cells, *(status(op, backend) for backend in backends)))
    return page(
        "Ops",
        f"The {len(rows)} operations that graphs are made of, in the order of the op table. A "
        "rule written for torch, NumPy, jax or TensorFlow is captured as these ops; a rule "
        "written with `xg.xp` calls them directly. Ops marked *in VJPs* appear only where "
        "another op is differentiated.",
        "The last columns say what each backend runs: its framework's `kernel`; the kernel "
        "`adapted` (16-bit floats computed in float32 and rounded once, numbers and devices "
        "reconciled); a short function of its `own`, where names and defaults differ or where "
        "the kernel is wrong or missing (see [differences](differences.md)); the composition "
        "that the op is `made of`, using the rows of other ops; or the `infix` operator.",
        table(header, rows),
    )


def xp_name(op: Op) -> str:
    if op.in_vjps:
        return "*in VJPs*"
    return f"`{op.in_xp}`" if op.in_xp else "*by keys*"


def status(op: Op, backend: Backend) -> str:
    if op in backend.kernels.unsupported:
        return f"lacks it: {backend.kernels.unsupported[op]}"
    native: Any = backend.kernels.rows.get(op)
    if native is None:
        return "infix"
    if op.made_of is not None and getattr(inspect.unwrap(native), "func", None) is op.made_of:
        return "made of"
    own = (getattr(native, "__module__", "") or "").startswith("multigrad")
    return "own" if own else "adapted" if hasattr(native, "__wrapped__") else "kernel"


# --- fast kernels -------------------------------------------------------------------------------


def render_fast_kernels() -> str:
    rows = [
        (
            f"`{row.name}`",
            "rewrite" if row.rewrites or row.rewrite_graph else "way of running",
            row.reason,
        )
        for backend in map(load_backend, BACKENDS)
        for row in backend.kernels.fast.patterns
    ]
    return page(
        "Fast kernels",
        "Where nobody takes a derivative of the lowered code, a backend may use these faster "
        "kernels. `tests/backend/test_fast_kernels.py` compares each with the plain code on edge "
        "values: the results are the same bits, or, where a kernel rounds less often or sums in "
        "another order, within the error bound of the rule. Unless stated otherwise, the figures "
        "are for 1,000,000 float32 numbers on one thread of a CPU. jax and TensorFlow have none, "
        "because their compilers fuse operations themselves.",
        table(("row", "what it is", "what was measured"), rows),
        "None of them needs a compiler. Kernels that are compiled, from a rule's graph, start "
        "where [you ask for them](fused.md#when-a-compiler-starts).",
        "To turn some of them off, for a comparison or because you suspect one:",
        "```python\nimport torch\nimport multigrad as xg\n"
        "from multigrad.engine.lowering.patterns import without\n\n"
        'with without("torch.in_place", "torch.square"):\n'
        '    function = xg.lower("triangular", "torch", forward="Heaviside")\n```',
        'or, for an entire process, set `MULTIGRAD_WITHOUT="torch.in_place,torch.square"` in the'
        " environment.",
    )


# --- differences --------------------------------------------------------------------------------


def render_differences() -> str:
    tables = {name: load_backend(name).differences for name in BACKENDS}
    kept = [
        (name, what_of(row), row.kind, dtypes_of(row), row.figure, reason_of(row))
        for name, rows in tables.items()
        for row in rows.kept
    ]
    mended = [
        (name, row.kernel, row.dtypes, row.figure)
        for name, rows in tables.items()
        for row in rows.mended
    ]
    versions = ", ".join(rows.measured for rows in tables.values())
    return page(
        "Differences between frameworks",
        "Every op, rule and activation gives the same numbers on every backend: within 4 eps of "
        "the exact result, or of the largest value that occurred on the way to it; masks are "
        "exact. This page lists the exceptions, with their figures. They were measured on a CPU "
        f"with {versions}. An eps is the distance from 1 to the next number of the dtype.",
        "## What remains\n\nThe tests hold each row to its figure, and fail when it is no longer"
        " needed (except for rows that depend on the processor). The kinds:",
        bullets(KINDS),
        table(("backend", "what", "kind", "dtypes", "figure", "reason"), kept),
        "## What is fixed\n\nThese kernels are wrong or missing in the frameworks. Our rows "
        "correct or replace them, so a rule does not meet these errors; code that calls the "
        "kernel directly does. Errors are in eps of the result unless stated otherwise.",
        table(("backend", "kernel", "dtypes", "its error"), mended),
        "These errors look large, but are kept, because the formula's own intermediate values "
        "are larger: the far tail of `erfc` (26 eps in jax, 24 in TensorFlow), `lgamma` and "
        "`digamma` near their zeros (up to 27 and 7 eps of 1), `polygamma`, and so the slope of "
        "`digamma`, which may underflow for inputs above 1e17. `prod` and `cumprod` lose second "
        "derivatives where two factors of one product are exactly zero.",
    )


def what_of(row: Difference) -> str:
    return "all" if row.what == "*" else f"`{row.what}`"


def dtypes_of(row: Difference) -> str:
    return "all" if row.dtypes == ALL else ", ".join(row.dtypes)


def reason_of(row: Difference) -> str:
    return row.reason if row.settled else f"{row.reason}; depends on the processor"


# --- laws ---------------------------------------------------------------------------------------


def render_laws() -> str:
    from multigrad.audit.audit import LAWS

    rows = ([f"`{law.name}`", law.sentence, law.matters] for law in LAWS)
    return page(
        "Laws of gradients",
        f"The {len(LAWS)} laws against which [an audit](how_to/audit.md) tests a custom gradient."
        " Code that raises an error under `vmap`, a compiler, a stride, an empty batch, a second"
        " derivative or in 16 bits says that it does not support this: the law is *refused*, not"
        " broken.",
        table(["law", "what it says", "what goes wrong if it is broken"], rows),
    )


# --- conversions --------------------------------------------------------------------------------


def render_conversions() -> str:
    rows = read_rows()
    kinds = count_by(rows, [row.kind for row in rows])
    packages = count_by(rows, [row.package for row in rows])
    sections = []
    for package, own in packages.items():
        cells = [
            (f"`{row.name}`", f"`{row.inputs}`", row.summary, row.reason.replace("`", "'"))
            for row in own
        ]
        header = ("what", "inputs", "verdict", "what is not captured")
        sections.append(f"## {package}: {count_equal(own)}\n\n{table(header, cells)}")
    return page(
        "Custom gradients of packages",
        f"{len(rows)} unchanged custom gradients of {len(packages.keys() - {OF_USERS})} packages,"
        " and user functions that apply them. Each is run on its own framework, forward and "
        "backward, and by multigrad on NumPy, torch, jax (eager and under `jax.jit`) and "
        "TensorFlow (eager and under `tf.function`). *Equal*: the same numbers as the original; "
        "*as it is*: the original itself runs, on its own framework; *refused*: a TraceError "
        "says what could not be captured, and where. `tox -e foreign` checks the pinned packages"
        " against this table; `multigrad convert` does the same for any other. The functions named "
        "`cases_inside` are in `tests/foreign/cases_inside.py`: those of neurons make their "
        "neurons themselves, and take one or two steps.",
        table(
            ("what", "equal on every backend"),
            [(kind, count_equal(own)) for kind, own in kinds.items()],
        ),
        *sections,
    )


# --- audits ---------------------------------------------------------------------------------------


def render_audit() -> str:
    every, faults = [*audits.read_audited(), *audits.read_kernels()], audits.read_faults()
    rows = [row for row in every if not row.problem]
    header = ("package", "audited", "break", "refuse", "fixed", "faults")
    return page(
        "Known bugs in other packages",
        f"{len(faults)} bugs in published gradients: the package deviates from its own "
        "documentation, from the paper that it names, or from a [law of gradients](laws.md). Each "
        "links to code that reproduces it with only the package and its framework installed. A "
        "surrogate that is meant to differ is not a bug, nor is a documented limit or code that "
        "raises a clear error. The frameworks have [known faults](known_faults.md) of their own.",
        "## Faults",
        table(("package", "law", "what is wrong"), audits.bug_rows(faults)),
        "## By package\n\nHow many gradients break or refuse a law, how many of these failures "
        "`xg.convert` fixes, and how many bugs are listed above. [The audit of published "
        "gradients](audited.md) has each result.\n\n"
        + table(header, audits.by_package(rows, faults)),
        f"To run them:\n\n```text\n{audits.STEPS}\n```",
    )


def render_audited() -> str:
    every = [*audits.read_audited(), *audits.read_kernels()]
    rows = [row for row in every if not row.problem]
    kernels = [row for row in rows if not row.is_converted]
    packages = {row.package for row in rows} - {OF_USERS}
    unrun = [(f"`{row.name}`", audits.as_text(row.problem)) for row in every if row.problem]
    return page(
        "Audit of published gradients",
        f"{len(rows)} custom gradients of {len(packages)} packages, as published, each tested on "
        f"its own framework against the [{len([*audits.by_law(rows)])} laws](laws.md) of "
        f"[`multigrad audit`](how_to/audit.md); {len(kernels)} of them are kernels of Liger and "
        "flash-linear-attention, in Triton's interpreter. Packages are pinned in "
        "`tests/foreign/requirements.txt` and `requirements_audit.txt`; inputs are in "
        "`cases.toml`, `audit_cases.toml` and `kernels.toml` in the same folder. Names such as "
        "`cases_torch:` refer to functions in that folder that apply the package's code.",
        bullets(audits.MEANINGS),
        "By package: what is [broken](audited/broken.md), and what differs "
        "[by design](audited/intended.md). Each bug has [code that shows it](audited/faults.md).",
        "## By law\n\nA law that is newer than the last run of a row is not counted for it; "
        "kernels run outside compiled code, so `compiled` is not tested for them.\n\n"
        + table(("law", *audits.STATES, "fixed by conversion"), audits.by_law(rows)),
        "## What conversion gives on torch\n\nEach torch gradient whose conversion runs was "
        "tested by `python tests/foreign/gains.py`, as published and after `xg.convert`. Bytes "
        "are those that forward keeps for backward, saved or on `ctx`; the counts are of "
        "gradients that keep fewer than the other version. Of the three that keep more, two keep "
        "their inputs in place of a float that forward computed, which a second derivative would "
        "miss; one keeps inputs from which backward computes tensors whose shapes it needs. "
        f"{say_lost()}\n\n" + render_gains(),
        *(["## What did not run\n\n" + table(("what", "why"), unrun)] if unrun else []),
    )


def render_fault_code() -> str:
    return page(
        "Code of the faults",
        "Each of the [known bugs in other packages](../audit.md), as code that runs to its end as "
        "long as the fault exists. Our own rules follow the paper; what a package really computes "
        "is available under the package's name, where it is a curve at all ([which is which]"
        "(../same_name.md)).",
        *map(audits.fault_section, audits.read_faults()),
    )


def render_broken() -> str:
    return page(
        "What is broken",
        "Every law that a published gradient breaks in [the audit](../audited.md), with what was "
        "measured. Not every measurement is a bug: [known bugs](../audit.md#faults) lists those "
        "that were investigated. *Fixed*: the converted gradient keeps the law.",
        *audits.sections_by_package(audits.BROKEN),
    )


def render_intended() -> str:
    return page(
        "What differs by design",
        "Gradients of [the audit](../audited.md) that differ from a law because their authors mean "
        "them to, and where they say so.",
        *audits.sections_by_package(audits.MEANT),
    )


def render_gates() -> str:
    rows = [*audits.gate_rows()]
    header = ("family", "cheats", "allclose", "KernelBench-like", "gradcheck", "audit")
    return page(
        "Which gates find wrong backwards",
        f"{rows[-1][1]} wrong backwards of typical kernels, each of which passes a naive test, and "
        "how many of them four gates find from one input of 4 x 64 in float32. They are in "
        "`tests/foreign/cheats`, each with a correct twin, which every gate accepts. "
        "`python -m tests.foreign.cheats.gates` runs them all again.",
        bullets(
            {
                "allclose": "compares gradients with autograd's for a cotangent of ones, to 1e-3",
                "KernelBench-like": "compares the forward on five seeds of one shape, and the "
                "gradient of a sum to an absolute 1e-2",
                "gradcheck": "`torch.autograd.gradcheck` in float64",
                "audit": "`xg.audit`, all laws",
            }
        ),
        table(header, rows),
        "`torch.library.opcheck` is not listed: it compares no numbers of a gradient. The three "
        "that the audit misses are wrong only at a length that the kernel computes, only in an "
        "interval of 0.01, and only in one call of 1,000.",
    )


# --- attribution --------------------------------------------------------------------------------


def render_attribution() -> str:
    heads = library_docs.HEADS
    return page(
        "Relevance propagation (LRP)",
        "Relevance propagation explains an output by a heat map over the input. At each layer a "
        "rule takes the relevance R of the output z and shares it out among the inputs x, by how "
        "much each contributed to z. The rules are in `xg.attribution`, with zennit's names in "
        "lower case (`EpsilonPlus` is `epsilon_plus`) and its defaults; `stabilize(z)` is z + e, "
        "or z - e where z < 0. 16-bit tensors are computed in "
        "float32 and rounded once. `guided`, `deconvnet`, `beta_smooth` and `pass` read no "
        "weights, so they are ordinary [rules](rules.md). For a whole example see [explain a "
        "model](tutorials/explain_a_model.md).",
        table(heads, library_docs.rule_rows()),
        "Most of these rules conserve relevance: what the inputs get adds up to what arrived, but "
        "for what a bias takes, and the stabilizer. `wsquare` and `flat` do so for every input; "
        "the others give nothing where the sum that they divide by is 0, as in a black border, "
        'even with `zero_params="bias"`. For `zplus` that is so '
        "where no contribution is positive. `alpha_beta` gives alpha times what arrived, or -beta "
        "times, where all contributions have one sign. So the maps of `epsilon_alpha2_beta1` and "
        "`excitation_backprop` need not add up to the score.",
        "## A rule over one layer\n\n`rule.over(kind)` is a layer with that rule as its gradient, "
        "on any framework's tensors: for a layer of torch, "
        '`xg.attribution.gamma().over("linear", layout="out_in")(x, linear.weight, linear.bias)`, '
        'or `xg.attribution.zplus().over("convolution", strides=(1, 1), padding=((1, 1), (1, 1)), '
        "dilations=(1, 1), groups=1)(x, conv.weight, conv.bias)`.",
        library_docs.layers_of_rules(),
        "## Composites\n\nA composite, from `xg.composites`, gives each kind of layer its rule. "
        "Write `canonize=True` for a model with batch normalizations or residual connections: a "
        "batch normalization is then merged into the layer whose output it takes, if nothing else "
        "reads that output, and an addition in the code counts as a layer; no weight is changed. "
        "Without it, relevance ignores what a batch normalization does, is counted twice at an "
        "addition in code, and `excitation_backprop` lets each batch normalization multiply it.\n\n"
        "What has no rule keeps the plain gradient. Unless it only moves elements, as "
        "reshaping, concatenation, max pooling and dropout do, relevance need not add up there: "
        "at a softmax, at a product with a weight that is no layer (`h @ self.fc.weight.T`), at "
        "an addition without a rule, at a layer normalization. An `ActsNowhereWarning` names "
        "these operations after the first call of the model, and the printed handle lists them, "
        "the operations with a rule, and layers that were not called. Not seen are an "
        "`autograd.Function` and, in Keras, what a layer computes without `keras.ops`. A "
        "composite that acts nowhere is an error. A mapping of selectors to relevance rules warns "
        "in the same way, but merges nothing.",
        library_docs.EXAMPLE,
        "`xg.heatmap(heat)` draws the map; over a batch, (N, C, H, W), it draws one for each "
        "image.",
        table(("composite", *heads[1:]), library_docs.composite_rows()),
        "### A composite of your own\n\nGive each kind of layer a rule: one of "
        "`xg.attribution`, or the name of a rule. This one has epsilon on each layer with weights:",
        library_docs.OWN_COMPOSITE,
        library_docs.kinds_of_composites(),
        "## Averages of a gradient\n\nThese average any gradient: under a composite, under rules, "
        "or the model's own.",
        table((heads[0], "what it is", heads[-1]), library_docs.mean_rows()),
        "Gradient times input is one line: `x.detach() * torch.autograd.grad(model(x)[0, 3], "
        "x)[0]`. Of linear layers, convolutions and ReLUs it is the score times what `epsilon` "
        "gives on every layer.",
    )


# --- estimators ----------------------------------------------------------------------------------


def render_estimators() -> str:
    tables = []
    for title, functions in library_docs.families():
        rows = map(library_docs.row_of, functions)
        tables.append(
            f"## {title}\n\n{library_docs.boxed(table(library_docs.ESTIMATOR_HEADS, rows))}"
        )
    count = sum(len(functions) for _, functions in library_docs.families())
    return page(
        "Estimators",
        f"The {count} ready-made Functions of the library: `xg.estimators.NAME(x, ...)`, for "
        "tensors of every framework. Each has a forward of its own, and gradients that differ "
        "from its derivative on purpose. To change the gradient of an activation, use a "
        "[rule](rules.md); to quantize whole layers, see [quantize layers](recipes/quantize.md).",
        "In the tables, `g` is the gradient that arrives, and *x: 1* means that x receives g times "
        "1. You may pass a number for any tensor but the first, which then gets no gradient, and a "
        "tensor for any number. *Numbers* lists defaults and ranges; a number out of range, or a "
        "shape that does not fit, is an error in the call. A number may change with each call, in "
        "[compiled code](how_to/compiled_code.md#what-each-compiler-does), too. The result has the "
        "dtype of the first tensor, each gradient that of its argument: a bfloat16 x with a "
        "float32 step gives bfloat16, where hand-written torch code gives float32. The "
        "[gallery](gallery.md) draws them.",
        library_docs.ESTIMATOR_EXAMPLE,
        *tables,
    )


# --- the command ----------------------------------------------------------------------------------


def render_command() -> str:
    from . import command_docs  # the only page that needs typer

    return page("The command line", *command_docs.parts())


def render_conventions() -> str:
    data = conventions.read()
    releases = []
    for name, each in data["frameworks"].items():
        if len(each["versions"]) > 1:
            header = ("call", "where", "what", *each["versions"])
            releases.append(f"### {conventions.NAMES[name]}\n\n{each['probes']} probes.")
            releases.append(table(header, conventions.differences(each)))
    return page(
        "Gradients at kinks",
        "Where a function has no derivative, or more than one, each framework makes a choice, "
        "and some releases change it. [`multigrad lock`](how_to/lock.md) records the choices of "
        "your versions.",
        "## Side by side",
        "The derivatives, for a cotangent of 1 (for several numbers: 1, 2, 3); for each argument"
        " if there are two. *None*: the framework gives none.",
        table(*conventions.beside(data)),
        "## Captured code",
        "Code that multigrad captures has the derivatives of the installed library at limits and "
        "of equal operands. It has multigrad's own in three cases, which the check of a capture "
        "leaves out: an operand is NaN; the library's derivative is NaN or infinite (multigrad's "
        "is finite where there is a subgradient: 0 for the norm of zeros, for `x ** y` at (0, 0)); "
        "and in these functions: `torch.copysign` at 0, `torch.nextafter` and `torch.kthvalue` of "
        "equal numbers; `jax.numpy.copysign` at -0, `jax.numpy.hypot` at (0, 0), "
        "`jax.lax.cummax` and `cummin` of equal numbers, `jax.numpy.linalg.norm` at zeros; "
        "`tf.math.cumprod` beside a zero. Some functions of Keras have at these points, on every "
        "backend of Keras, what they have on torch: `abs` at 0, `clip` and `hard_tanh` at their "
        "limits, `leaky_relu`, `selu` and `celu` at 0, `maximum` and `minimum` of a tensor and an "
        "equal number, `cumprod` beside a zero, and the losses that call them. Where the choice "
        "matters, write it out: `where(x > y, x, y)`.",
        "## Release by release",
        "Everything that differs between these releases among the probes of "
        "`multigrad/audit/lock/probes.txt`, in float32 on a CPU, in November 2026; *-*: there is "
        "no such function. Each difference was confirmed with hand-written code that uses only "
        "the framework.",
        *releases,
    )


PAGES: dict[str, Callable[[], str]] = {
    "conventions.md": render_conventions,
    "ops.md": render_ops,
    "rules.md": library_docs.render_rules,
    "estimators.md": render_estimators,
    "same_name.md": lambda: page("Same name, different curve", *same_names.parts(table)),
    "attribution.md": render_attribution,
    "dialects.md": captured.render_libraries,
    **{
        captured.page_of(name): partial(captured.render_library, name)
        for name in captured.LIBRARIES
    },
    "fast_kernels.md": render_fast_kernels,
    "differences.md": render_differences,
    "conversions.md": render_conversions,
    "audit.md": render_audit,
    "audited.md": render_audited,
    "audited/faults.md": render_fault_code,
    "audited/broken.md": render_broken,
    "audited/intended.md": render_intended,
    "gates.md": render_gates,
    "laws.md": render_laws,
    "known_faults.md": lambda: page("Known faults of frameworks", *audits.known_fault_parts()),
    "reference/command.md": render_command,
    "start_here.md": first_call.render_start_here,
    "first_call.md": lambda: page("One first call, file by file", first_call.render_first_call()),
}
