"""Code laid out as a formatter would: blank lines, long lines broken at brackets.

A line is broken at its last bracket that holds something, and what is inside again, if it is still
too long: at its commas, else before its weakest operators.
"""

from __future__ import annotations

import io
import itertools
import re
import tokenize
from typing import NamedTuple

WIDEST = 100
BLOCKS = ("if", "elif", "while")
# The beginnings of statements whose expression may get parentheses.
HEAD = re.compile(r"(return|if|elif|while) |[\w., ()]+ [-+*/]?= ")
OPENING, CLOSING = "([{", ")]}"
# Where an expression without a bracket to break at is broken, weakest first.
OPERATORS = (("if", "else"), ("or",), ("and",), ("|",), ("^",), ("&",), ("+", "-"), ("*", "/", "@"))
# After these a sign belongs to the number that follows.
UNARY_AFTER = frozenset({*"([{,=*/+-", "**", "if", "else", "and", "or", "not"})


class _Token(NamedTuple):
    text: str
    start: int
    depth: int  # of brackets, of which an opening and a closing one are outside


def join_parts(parts: list[str]) -> str:
    """Return definitions with the blank lines between them that formatters leave."""
    text, was_short = "", False
    for part in parts:
        is_short = "def " not in part.split("(")[0] and not part.startswith(("@", "class "))
        text += part if is_short and was_short else f"\n\n{part}"
        was_short = is_short
    return text


def break_lines(text: str) -> str:
    """Return code whose lines are broken where they are too long and can be."""
    return "".join(f"{part}\n" for line in text.splitlines() for part in _broken(line))


def _broken(line: str, inner: bool = False) -> list[str]:
    # `inner`: the line is between the brackets of other lines, so it may be broken at operators.
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
    # None means that a bracket is not closed within the line, or that it has a comment.
    tokens: list[_Token] = []
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
            tokens.append(_Token(token.string, token.start[1], depth))
            depth += token.string in OPENING and token.type == tokenize.OP
    except (tokenize.TokenError, SyntaxError):
        return tokens if depth == 0 and tokens else None
    return tokens if depth == 0 else None


def _split(line: str, tokens: list[_Token], indent: str) -> list[str]:
    match = HEAD.match(line)
    value = line[match.end() :] if match else ""
    if match and not _fits_before_brackets(value):
        colon = ":" if match.group().split()[0] in BLOCKS and value.endswith(":") else ""
        inner = _inside(value.removesuffix(colon) if colon else value, f"{indent}    ", "")
        return [f"{indent}{match.group()}(", *inner, f"{indent}){colon}"]
    outer = [t for t in tokens if t.depth == 0 and t.text in (*OPENING, *CLOSING)]
    pairs = [*zip(outer[::2], outer[1::2], strict=True)]
    for opening, closing in reversed(pairs):
        content = line[opening.start + 1 : closing.start]
        if not content.strip():
            continue
        head, tail = line[: opening.start + 1], line[closing.start :]
        if len(indent) + max(len(head), len(tail)) > WIDEST and len(pairs) > 1:
            continue
        return [f"{indent}{head}", *_inside(content, f"{indent}    ", head), f"{indent}{tail}"]
    return []


def _fits_before_brackets(value: str) -> bool:
    # A tuple, a conditional or a sum of several terms gets parentheses instead.
    tokens = _tokens(value.removesuffix(":"))
    if tokens is None:
        return True
    words = [t.text for t in tokens if t.depth == 0]
    weak_count = sum(word in ("or", "and", "+", "-") for word in words)
    return "(" in words and weak_count < 2 and not {",", "if"} & {*words}


def _inside(text: str, indent: str, head: str) -> list[str]:
    text = text.strip()
    is_listed = text.endswith(",")
    if len(indent) + len(text) <= WIDEST and not is_listed:
        return [f"{indent}{text}"]
    parts = _parts(text)
    if len(parts) == 1 and not is_listed:
        return _broken(f"{indent}{text}", True)
    comma = "" if any(part.startswith("*") for part in parts) and head.startswith("def") else ","
    lines: list[str] = []
    for part in parts[:-1]:
        lines.extend(_broken(f"{indent}{part},", True))
    return [*lines, *_broken(f"{indent}{parts[-1]}{comma}", True)]


def _parts(text: str) -> list[str]:
    tokens = _tokens(text)
    if tokens is None:
        return [text]
    places = [t.start for t in tokens if t.text == "," and t.depth == 0]
    starts, ends = [0, *(place + 1 for place in places)], [*places, len(text)]
    parts = [text[a:b].strip() for a, b in zip(starts, ends, strict=True)]
    return [part for part in parts if part]


def _divided(text: str) -> list[str]:
    # The weakest operators divide the expression; without any, the list is empty.
    tokens = _tokens(text) or []
    for words in OPERATORS:
        places = [
            t.start
            for previous, t in itertools.pairwise(tokens)
            if t.depth == 0 and t.text in words and previous.text not in UNARY_AFTER
        ]
        if places:
            starts, ends = [0, *places], [*places, len(text)]
            return [text[a:b].strip() for a, b in zip(starts, ends, strict=True)]
    return []
