"""Reads saved rules and Functions, and locks, by docs/format.md alone: without multigrad.

    python read_lock.py narrow.json gradients.lock

It checks hashes, runs elementwise graphs on the vectors with Python's own math, and asks torch,
where it is installed, some of its probes again. It exits with 1 where anything differs.
"""

import ast
import hashlib
import importlib.util
import json
import math
import operator
import re
import sys
from pathlib import Path

FLOAT64, FLOAT32 = 2.0**-40, 1e-5  # how far two roundings may be apart, beside 1
NAN, INF = math.nan, math.inf
ZEROS = re.compile(r"\.?0*p")  # which C's %a leaves out
SIMPLE = re.compile(r"torch\.(abs|relu|clamp|sign|sqrt|maximum|minimum)\([^()]*\)")


def digest(data):
    """The hash of canonical bytes: sorted, without spaces, in ASCII, floats as {"float": hex}."""

    def plain(item):
        if isinstance(item, dict):
            return {name: plain(each) for name, each in item.items()}
        if isinstance(item, list):
            return [plain(each) for each in item]
        return {"float": ZEROS.sub("p", item.hex())} if isinstance(item, float) else item

    text = json.dumps(plain(data), sort_keys=True, separators=(",", ":"))
    return "sha256:" + hashlib.sha256(text.encode("ascii")).hexdigest()


def meaning(document):
    """A document without what only people read, and a rule's forms as the graphs of version 1."""

    def graph(data):
        return {**data, "nodes": [node(each) for each in data["nodes"]]}

    def node(data):
        kept = {name: each for name, each in data.items() if name != "at"}
        return kept | {"attrs": dict(map(attr, data["attrs"].items()))} if "attrs" in data else kept

    def attr(item):
        is_graph = isinstance(item[1], dict) and set(item[1]) == {"graph"}
        return (item[0], {"graph": graph(item[1]["graph"])}) if is_graph else item

    def form(data):
        return data | {way: graph(data[way]) for way in ("forward", "backward")}

    kept = {name: each for name, each in document.items() if name not in ("doc", "evidence")}
    if "params" in kept and "forms" in kept:
        forms = kept.pop("forms")
        kept["graphs"] = [{"tin": f["tin"], "facts": f["facts"], **f["backward"]} for f in forms]
    inner = [("graphs", graph), ("forms", form), ("parts", meaning)]
    return kept | {name: [of(each) for each in kept[name]] for name, of in inner if name in kept}


def divide(a, b):
    if b != 0:
        return a / b
    return NAN if a == 0 or math.isnan(a) else math.copysign(INF, a) * math.copysign(1, b)


def real(function, pole=NAN):
    """A function of floats that gives inf and NaN where Python raises."""

    def call(*numbers):
        try:
            return float(function(*numbers))
        except (ArithmeticError, ValueError) as error:
            return INF if isinstance(error, OverflowError) else pole if numbers[0] == 0 else NAN

    return call


def maximum(a, b):
    return NAN if math.isnan(a) or math.isnan(b) else max(a, b)


PLAIN = ("add", "sub", "mul", "neg", "abs", "lt", "le", "gt", "ge", "eq", "ne", "and_", "or_")
REAL = ("sqrt", "exp", "expm1", "sin", "cos", "tanh", "atan", "erf", "floor", "ceil", "pow")
OPS = {name.strip("_"): getattr(operator, name) for name in PLAIN}
OPS |= {name: real(getattr(math, name)) for name in REAL}
OPS |= {
    "log": real(math.log, -INF), "log1p": real(math.log1p), "reciprocal": lambda x: divide(1.0, x),
    "sigmoid": lambda x: 1 / (1 + real(math.exp)(-x)), "relu": lambda x: maximum(x, 0.0),
    "maximum": maximum, "minimum": lambda a, b: -maximum(-a, -b),
    "clip": lambda x, a, b: -maximum(-maximum(x, a), -b), "square": lambda x: x * x,
    "sign": lambda x: x and x / abs(x), "remainder": real(operator.mod), "div": divide,
    "round": lambda x: math.copysign(real(round)(x), x), "stop_gradient": lambda x: x,
    "where": lambda condition, a, b: a if condition else b, "full_like": lambda x, value: value,
    "not": operator.not_, "isnan": math.isnan,
}  # fmt: skip


def run(graph, given, outputs=()):
    """The outputs of a graph, of one element of each input; a KeyError names what is not here."""
    values = [given[name] for name, _ in graph["inputs"]]
    for node in graph["nodes"]:
        name, attrs = node["op"], node.get("attrs", {})
        if name == "const":
            value = attrs["value"]
            values.append(float(value["float"]) if isinstance(value, dict) else value)
        elif name == "output":
            values.append(outputs[attrs["position"]])
        elif name == "cast":
            values.append({"T": float, "bool": bool}[attrs["dtype"]](values[node["of"][0]]))
        else:
            values.append(OPS[name](*(values[i] for i in node["of"])))
    return [values[i] for i in graph["outputs"]]


def is_same(numbers, expected, allowed):
    for a, b in zip(map(float, numbers), map(float.fromhex, expected), strict=True):
        same = a == b or math.isnan(a) & math.isnan(b)
        if not same and not abs(a - b) <= allowed * max(1, abs(b)):
            return False
    return True


def check_vector(document, vector):
    """Whether a vector's numbers come out; None where this reader cannot run it."""
    count = len(cotangents := vector.get("cotangents", []))
    names = ["grad_out"] if count == 1 else [f"grad_out_{i}" for i in range(count)]
    inputs = vector["inputs"] | dict(zip(names, cotangents, strict=True))
    arrays = [each for each in inputs.values() if not isinstance(each, str)]
    kinds = {(each["dtype"], *each["shape"]) if each else None for each in arrays}
    if len(kinds) > 1 or arrays[0]["dtype"] != "float64":
        return None
    rows = []
    try:
        form = document["forms"][vector["form"]] if count else document["graphs"][vector["graph"]]
        for i in range(len(arrays[0]["values"])):
            texts = ((n, a if isinstance(a, str) else a["values"][i]) for n, a in inputs.items())
            given = {name: float.fromhex(text) for name, text in texts}
            row = run(form["forward"] if count else form, given)
            rows.append(row + run(form["backward"], given, row) if count else row)
    except KeyError as error:
        print(f"a vector is not run, for {error}")
        return None
    expected = [*vector["outputs"], *(vector["gradients"][n] for n in form.get("wrt", ()))]
    columns = zip(zip(*rows, strict=True), expected, strict=True)
    return all(is_same(found, array["values"], FLOAT64) for found, array in columns)


def check_document(document):
    """What is wrong with a saved file."""
    if (evidence := document.get("evidence")) is None:
        return ["it carries no evidence"]
    document = meaning(document) | {"version": 1}
    verdicts = [check_vector(document, vector) for vector in evidence["vectors"]]
    print(f"{len(verdicts) - verdicts.count(None)} of {len(verdicts)} vectors were run")
    problems = ["a vector gives other numbers"] if False in verdicts else []
    return problems if digest(document) == evidence["hash"] else ["its hash is another", *problems]


def check_lock(lock, folder):
    """What is wrong with a lock, with the files that it names, and with torch."""
    found = digest({name: data for name, data in lock.items() if name != "hash"})
    problems = [] if found == lock["hash"] else ["its hash is another"]
    for word in (word for word in lock["objects"] if (folder / word).is_file()):
        document = json.loads((folder / word).read_text("utf-8"))
        if digest(meaning(document) | {"version": 1}) != lock["objects"][word]["hash"]:
            problems.append(f"{word} is not what was locked")
    places = lock["frameworks"].get("torch", {"places": {}})["places"]
    if places and importlib.util.find_spec("torch"):
        for at, place in places.items():
            simple = (call for call in place["calls"].items() if SIMPLE.fullmatch(call[0]))
            problems += [f"{c} {at}" for c, said in simple if not ask(c, place["inputs"], said)]
    return problems


def ask(call, inputs, said):
    """Whether torch gives for a call, which is no more than one, the derivatives that are said."""
    torch = importlib.import_module("torch")
    tree = ast.parse(call, mode="eval").body
    given = {n: torch.tensor(float.fromhex(x), requires_grad=True) for n, x in inputs.items()}
    args = [given[a.id] if isinstance(a, ast.Name) else ast.literal_eval(a) for a in tree.args]
    named = {word.arg: ast.literal_eval(word.value) for word in tree.keywords}
    getattr(torch, tree.func.attr)(*args, **named).backward()
    return all(is_same([given[n].grad], each, FLOAT32) for n, each in said["derivative"].items())


def check(path):
    """Print what is wrong with a file, and return whether nothing is."""
    data = json.loads(path.read_text("utf-8"))
    problems = check_lock(data, path.parent) if "frameworks" in data else check_document(data)
    print(f"{path}: {'; '.join(problems) or 'as it was written'}")
    return not problems


if __name__ == "__main__":
    kept = [check(Path(name)) for name in sys.argv[1:]]
    sys.exit(not all(kept))
