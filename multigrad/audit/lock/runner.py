"""Runner of probes: a script that needs this file, the framework, and nothing else.

`python runner.py` reads `{"framework": name, "probes": {...}}` from its input and prints what
each gives, so that a lock is verified under any Python from 3.8 on, even without multigrad. A probe
is data: a call of public functions with tensors and literals, which is parsed and checked, never
passed to `eval`.
"""

from __future__ import annotations

import ast
import importlib
import json
import math
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

Tensor = Any
Probe = Any  # {"call": text, "inputs": {letter: hex floats}}
Outcome = Any  # {"value", "derivative"}, or {"missing"}, or {"raises"}
# The namespaces whose functions may be called, by the word with which a call begins.
NAMESPACES = {
    "torch": ("torch", "torch.linalg", "torch.special", "torch.nn.functional"),
    "jax": (
        "jax.numpy", "jax.numpy.linalg", "jax.nn", "jax.lax", "jax.scipy.special",
    ),
    "tensorflow": ("tf", "tf.math", "tf.nn", "tf.linalg"),
    "keras": ("keras.ops", "keras.activations", "keras.losses"),
    "multigrad": ("multigrad.xp",),
}  # fmt: skip
# Functions that read or write files, or change the library.
REFUSED = re.compile(r"_.*|(load|save|set|from|import|compile|fork|seed|manual|py_|numpy_).*")
WORD = re.compile(r"[A-Za-z_0-9]{1,20}")
MOST_CALL = 300
DTYPE = "float32"


class RefusedProbe(Exception):
    """A text is no call that a probe may make."""


class Missing(Exception):
    """The framework has no function of that name."""


def framework_of(call: str) -> str:
    first = call.partition(".")[0]
    frameworks = {spaces[0].partition(".")[0]: name for name, spaces in NAMESPACES.items()}
    if first not in frameworks:
        raise RefusedProbe(f"{call[:60]!r} begins with none of {', '.join(frameworks)}")
    return frameworks[first]


def read_call(text: str) -> Any:
    """Return the checked syntax tree of a call, or of an index into a call's result."""
    if type(text) is not str or len(text) > MOST_CALL:
        raise RefusedProbe(f"a call is a text of at most {MOST_CALL} characters")
    try:
        tree = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise RefusedProbe(f"{text[:60]!r} is no call") from None
    _check(tree, framework_of(text))
    inner = tree.value if isinstance(tree, ast.Subscript) else tree
    nodes = [node for each in getattr(inner, "args", ()) for node in ast.walk(each)]
    has_tensor = any(isinstance(node, ast.Name) and len(node.id) == 1 for node in nodes)
    if not isinstance(inner, ast.Call) or not has_tensor:
        raise RefusedProbe(f"{text[:60]!r} is no call with a tensor")
    return tree


def path_of(tree: Any) -> str:
    parts: list[str] = []
    while isinstance(tree, ast.Attribute):
        parts.append(tree.attr)
        tree = tree.value
    if not isinstance(tree, ast.Name):
        raise RefusedProbe("what is called is no dotted name")
    return ".".join([tree.id, *reversed(parts)])


def _check(tree: Any, framework: str) -> None:
    if isinstance(tree, ast.Subscript):
        _check(tree.value, framework)
        if type(_number(tree.slice)) is not int:
            raise RefusedProbe("an index is an integer")
    elif isinstance(tree, ast.Call):
        space, _, name = path_of(tree.func).rpartition(".")
        if space not in NAMESPACES[framework] or REFUSED.match(name):
            raise RefusedProbe(f"{space}.{name} is none of the functions that a probe may call")
        for each in tree.args:
            _check(each, framework)
        for keyword in tree.keywords:
            if keyword.arg is None:
                raise RefusedProbe("a call has no **")
            _check(keyword.value, framework)
    elif isinstance(tree, (ast.List, ast.Tuple)):
        for each in tree.elts:
            _check(each, framework)
    elif isinstance(tree, ast.Name):
        if len(tree.id) != 1:
            raise RefusedProbe(f"{tree.id[:60]!r} is no input: they have one letter")
    else:
        value = _number(tree)
        if isinstance(value, str) and not WORD.fullmatch(value):
            raise RefusedProbe(f"{value[:60]!r} is no word that a function takes")


def _number(tree: Any) -> Any:
    # Python 3.8 has an index in a node of its own.
    tree = tree.value if type(tree).__name__ == "Index" else tree
    try:
        value = ast.literal_eval(tree)
    except (ValueError, TypeError):
        raise RefusedProbe("an argument is an input, a literal or a call") from None
    if not isinstance(value, (int, float, str, type(None))):
        raise RefusedProbe("a literal is a number, a word, a bool or None")
    return value


def _make(tree: Any, module: Any, inputs: Mapping[str, Tensor]) -> Any:
    if isinstance(tree, ast.Subscript):
        return _make(tree.value, module, inputs)[_number(tree.slice)]
    if isinstance(tree, ast.Call):
        args = [_make(each, module, inputs) for each in tree.args]
        keywords = {str(k.arg): _make(k.value, module, inputs) for k in tree.keywords}
        return _find(path_of(tree.func), module)(*args, **keywords)
    if isinstance(tree, (ast.List, ast.Tuple)):
        return [_make(each, module, inputs) for each in tree.elts]
    return inputs[tree.id] if isinstance(tree, ast.Name) else _number(tree)


def _find(path: str, module: Any) -> Callable[..., Any]:
    owner = module
    for part in path.split(".")[1:]:
        if not hasattr(owner, part):
            raise Missing(path)
        owner = getattr(owner, part)
    # To call a class could do more than compute.
    if isinstance(owner, type) or not callable(owner):
        raise RefusedProbe(f"{path} is no function")
    return owner


# --- frameworks ----------------------------------------------------------------------------------
# How a function is differentiated in each: `(framework, function, inputs, pull)` gives its value,
# and the derivatives by the cotangent that `pull` makes of its shape; None where there is none.


def differentiate_torch(torch: Any, f: Any, inputs: Sequence[Any], pull: Any) -> Any:
    tensors = [torch.tensor(each, dtype=torch.float32, requires_grad=True) for each in inputs]
    value = f(*tensors)
    if not value.requires_grad:
        return value.detach().tolist(), None
    cotangent = torch.tensor(pull(value.shape), dtype=value.dtype)
    gradients = torch.autograd.grad(value, tensors, cotangent, allow_unused=True)
    # A zero without memory, as that of sgn, has no list of its own.
    return value.tolist(), [None if each is None else each.clone().tolist() for each in gradients]


def differentiate_jax(jax: Any, f: Any, inputs: Sequence[Any], pull: Any) -> Any:
    # On the CPU, so that locks of different machines can be compared.
    with jax.default_device(jax.devices("cpu")[0]):
        tensors = [jax.numpy.asarray(each, dtype=DTYPE) for each in inputs]
        value, vjp = jax.vjp(f, *tensors)
        if not jax.numpy.issubdtype(value.dtype, jax.numpy.floating):
            return value.tolist(), None
        gradients = vjp(jax.numpy.asarray(pull(value.shape), dtype=value.dtype))
        return value.tolist(), [each.tolist() for each in gradients]


def differentiate_tensorflow(tf: Any, f: Any, inputs: Sequence[Any], pull: Any) -> Any:
    with tf.device("CPU"):
        # TensorFlow keeps constants of one number, and takes 0.0 and -0.0 for the same.
        tensors = [tf.squeeze(tf.constant([each], dtype=DTYPE), 0) for each in inputs]
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            value = f(*tensors)
        if not value.dtype.is_floating:
            return value.numpy().tolist(), None
        cotangent = tf.constant(pull(tuple(value.shape)), dtype=value.dtype)
        gradients = tape.gradient(value, tensors, output_gradients=cotangent)
        gradients = [each if each is None else tf.convert_to_tensor(each) for each in gradients]
        numbers = [each if each is None else each.numpy().tolist() for each in gradients]
        return value.numpy().tolist(), numbers


def differentiate_keras(keras: Any, f: Any, inputs: Sequence[Any], pull: Any) -> Any:
    name = keras.backend.backend()
    return DIFFERENTIATE[name](load(name), f, inputs, pull)


def differentiate_multigrad(multigrad: Any, f: Any, inputs: Sequence[Any], pull: Any) -> Any:
    np = importlib.import_module("numpy")
    arrays = [np.asarray(each, DTYPE) for each in inputs]
    with np.errstate(all="ignore"):
        value, vjp = multigrad.vjp(f, *arrays)
        if value.dtype.kind != "f":
            return value.tolist(), None
        gradients = vjp(np.asarray(pull(value.shape), value.dtype))
    return value.tolist(), [each.tolist() for each in gradients]


DIFFERENTIATE = {
    "torch": differentiate_torch,
    "jax": differentiate_jax,
    "tensorflow": differentiate_tensorflow,
    "keras": differentiate_keras,
    "multigrad": differentiate_multigrad,
}
PARTS = {"jax": ("jax.numpy", "jax.scipy.special")}  # that have to be imported, too


def load(framework: str) -> Any:
    for name in PARTS.get(framework, ()):
        importlib.import_module(name)
    return importlib.import_module(framework)


def answer(framework: str, probes: Mapping[str, Probe]) -> Iterator[Mapping[str, Any]]:
    """Yield the version of a framework, or why it is absent; then what each probe gives."""
    try:
        module = load(framework)
    except Exception as error:
        yield {"absent": f"{type(error).__name__}: {str(error)[:200]}"}
        return
    # Without the build's part, such as +cpu.
    version = str(module.__version__).partition("+")[0]
    home = f" on {module.backend.backend()}" if framework == "keras" else ""
    yield {"version": f"{version}{home}"}
    # Sorted: the caller takes the first without an answer for the one that ended the process.
    for name in sorted(probes):
        yield {"probe": name, "outcome": run_probe(framework, module, probes[name])}


def run_probe(framework: str, module: Any, probe: Probe) -> Outcome:
    """Return a call's value and the derivatives for its inputs, or why there are none."""
    tree = read_call(probe["call"])
    names = sorted(probe["inputs"])
    inputs = [_nest(probe["inputs"][name]) for name in names]

    def call(*tensors: Tensor) -> Tensor:
        # No `strict`: zip has it from Python 3.10 on, and this file runs on 3.8.
        return _make(tree, module, dict(zip(names, tensors)))

    try:
        value, gradients = DIFFERENTIATE[framework](module, call, inputs, cotangent)
    except RefusedProbe:
        raise
    except Missing:
        return {"missing": True}
    except Exception as error:
        return {"raises": type(error).__name__}
    pairs = zip(names, gradients or [None] * len(names))
    return {
        "value": as_hex(value),
        "derivative": {name: None if each is None else as_hex(each) for name, each in pairs},
    }


def cotangent(shape: Sequence[int]) -> Any:
    numbers: Any = [float(i + 1) for i in range(math.prod(shape))]
    for length in list(shape)[:0:-1]:
        numbers = [numbers[i : i + length] for i in range(0, len(numbers), length)]
    return numbers if shape else numbers[0]


def _nest(data: Any) -> Any:
    return [_nest(each) for each in data] if isinstance(data, list) else float.fromhex(data)


def as_hex(value: Any) -> list[str]:
    """Return all numbers of nested lists as hex floats, in one list."""
    if isinstance(value, list):
        return [each for item in value for each in as_hex(item)]
    return [hex_of(float(value))]


def hex_of(number: float) -> str:
    """Return a float as C prints it by %a: 0x1.8p+0; nan, inf or -inf."""
    return re.sub(r"\.?0*p", "p", number.hex())


def main() -> None:
    # Frameworks print to stdout: theirs goes to stderr, so that only answers are left.
    out, sys.stdout = sys.stdout, sys.stderr
    warnings.simplefilter("ignore")
    request = json.load(sys.stdin)
    for line in answer(request["framework"], request["probes"]):
        # Flushed, because the next probe may end the process.
        print(json.dumps(line, sort_keys=True), file=out, flush=True)


if __name__ == "__main__":
    sys.path.pop(0)  # this folder, whose files are no modules of their own
    main()
