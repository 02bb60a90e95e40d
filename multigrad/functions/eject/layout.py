"""Long lines broken at their brackets, as formatters do."""

from __future__ import annotations

import io
import itertools
import re
import tokenize
from typing import NamedTuple

WIDEST = 100
BLOCKS = ("if", "elif", "while")
# What an expression follows that may stand in parentheses.
HEAD = re.compile(r"(return|if|elif|while) |[\w., ()]+ [-+*/]?= ")
SIGNATURE = re.compile(r"^( *def \w+\()\n(.*?)\n *(\):)$", re.MULTILINE | re.DOTALL)
OPENING, CLOSING = "([{", ")]}"
# Where an expression without a bracket to break at is broken, weakest first.
OPERATORS = (("if", "else"), ("or",), ("and",), ("|",), ("^",), ("&",), ("+", "-"), ("*", "/", "@"))
# After these a sign belongs to the number that follows.
UNARY_AFTER = frozenset({*"([{,=*/+-", "**", "if", "else", "and", "or", "not"})


class _Token(NamedTuple):
    text: str
    start: int
    depth: int  # of brackets, of which an opening and a closing one are outside


def break_lines(text: str) -> str:
    """Return code whose lines are broken where they are too long and can be."""
    text = _double_quoted(text)
    lines: list[str] = []
    for line in SIGNATURE.sub(_joined_signature, text).splitlines():
        lines.extend(_broken(line))
    return "".join(f"{line}\n" for line in lines)


def _double_quoted(text: str) -> str:
    """Return code whose strings stand in double quotes, where they hold none."""
    lines, within = text.splitlines(keepends=True), 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        kind, inner = tokenize.tok_name[token.type], token.string[1:-1]
        # From Python 3.12 on a string within an f-string is a token, whose quotes differ from its.
        within += (kind == "FSTRING_START") - (kind == "FSTRING_END")
        if within or kind != "STRING" or token.string != f"'{inner}'":
            continue
        if {'"', "'", "\\"}.isdisjoint(inner):
            (row, start), (_, end) = token.start, token.end
            lines[row - 1] = f'{lines[row - 1][:start]}"{inner}"{lines[row - 1][end:]}'
    return "".join(lines)


def _joined_signature(found: re.Match[str]) -> str:
    """Return a parameter list on one line, where it fits now that it has no annotations."""
    head, inside, tail = found.groups()
    words = " ".join(inside.split()).rstrip(",")
    line = f"{head}{words}{tail}"
    return line if len(line) <= WIDEST and "#" not in inside else found.group()


def _broken(line: str, inner: bool = False) -> list[str]:
    """Return the lines of one, which stands between brackets of others where it is `inner`."""
    if len(line) <= WIDEST or line.lstrip().startswith(("#", '"""')):
        return [line]
    tokens = _tokens(line.strip())
    if tokens is None:
        return [line]
    indent = line[: len(line) - len(line.lstrip())]
    if inner:
        comma = "," if line.endswith(",") else ""
        operands = _divided(line.strip().removesuffix(","))
        if operands:
            operands[-1] += comma
            return [each for operand in operands for each in _broken(f"{indent}{operand}", True)]
    return _split(line.strip(), tokens, indent) or [line]


def _tokens(line: str) -> list[_Token] | None:
    """Return the tokens of a line whose brackets are closed within it."""
    found: list[_Token] = []
    depth = 0
    try:
        for token in tokenize.generate_tokens(io.StringIO(line).readline):
            if token.type in (tokenize.NEWLINE, tokenize.ENDMARKER, tokenize.NL):
                break
            if token.type == tokenize.COMMENT:
                return None
            depth -= token.string in CLOSING and token.type == tokenize.OP
            if depth < 0:
                return None
            found.append(_Token(token.string, token.start[1], depth))
            depth += token.string in OPENING and token.type == tokenize.OP
    except (tokenize.TokenError, SyntaxError):
        return found if depth == 0 and found else None
    return found if depth == 0 else None


def _split(line: str, tokens: list[_Token], indent: str) -> list[str]:
    """Return the lines of a long one, broken at its last bracket that holds something."""
    found = HEAD.match(line)
    value = line[found.end() :] if found else ""
    if found and not _fits_before_brackets(value):
        colon = ":" if found.group().split()[0] in BLOCKS and value.endswith(":") else ""
        inner = _inside(value.removesuffix(colon) if colon else value, f"{indent}    ", "")
        return [f"{indent}{found.group()}(", *inner, f"{indent}){colon}"]
    outer = [t for t in tokens if t.depth == 0 and t.text in (*OPENING, *CLOSING)]
    pairs = [*zip(outer[::2], outer[1::2], strict=True)]
    for opening, closing in reversed(pairs):
        inside = line[opening.start + 1 : closing.start]
        if not inside.strip():
            continue
        head, tail = line[: opening.start + 1], line[closing.start :]
        if len(indent) + max(len(head), len(tail)) > WIDEST and len(pairs) > 1:
            continue
        return [f"{indent}{head}", *_inside(inside, f"{indent}    ", head), f"{indent}{tail}"]
    return []


def _fits_before_brackets(value: str) -> bool:
    """Return whether an expression is best broken at its last bracket: it has one, and is neither
    several values nor a choice.
    """
    tokens = _tokens(value.removesuffix(":"))
    if tokens is None:
        return True
    words = [t.text for t in tokens if t.depth == 0]
    weak = sum(word in ("or", "and", "+", "-") for word in words)
    return "(" in words and weak < 2 and not {",", "if"} & {*words}


def _inside(text: str, indent: str, head: str) -> list[str]:
    """Return what stands between brackets: on one line, else one line for each of its parts."""
    text = text.strip()
    is_listed = text.endswith(",")
    if len(indent) + len(text) <= WIDEST and not is_listed:
        return [f"{indent}{text}"]
    parts = _parts(text)
    if len(parts) == 1 and not is_listed:
        return _operands(text, indent)
    comma = "" if any(part.startswith("*") for part in parts) and head.startswith("def") else ","
    lines: list[str] = []
    for part in parts[:-1]:
        lines.extend(_broken(f"{indent}{part},", True))
    return [*lines, *_broken(f"{indent}{parts[-1]}{comma}", True)]


def _parts(text: str) -> list[str]:
    """Return what commas outside of all brackets divide."""
    tokens = _tokens(text)
    if tokens is None:
        return [text]
    places = [t.start for t in tokens if t.text == "," and t.depth == 0]
    starts, ends = [0, *(place + 1 for place in places)], [*places, len(text)]
    parts = [text[a:b].strip() for a, b in zip(starts, ends, strict=True)]
    return [part for part in parts if part]


def _operands(text: str, indent: str) -> list[str]:
    """Return an expression by its operands, each with the operator before it."""
    if len(indent) + len(text) <= WIDEST:
        return [f"{indent}{text}"]
    return _broken(f"{indent}{text}", True)


def _divided(text: str) -> list[str]:
    """Return what an expression's weakest operators divide; nothing where it has none."""
    tokens = _tokens(text) or []
    for words in OPERATORS:
        places = [
            t.start
            for before, t in itertools.pairwise(tokens)
            if t.depth == 0 and t.text in words and before.text not in UNARY_AFTER
        ]
        if places:
            starts, ends = [0, *places], [*places, len(text)]
            return [text[a:b].strip() for a, b in zip(starts, ends, strict=True)]
    return []
