"""The page about the command `multigrad`, written from the commands and their options."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer.main

from multigrad.command.app import app

from .markdown import table

# Their examples run where no framework is installed, in a second; a test of the docs runs them.
QUICK = ("rules", "plot", "show")


def parts() -> Iterator[str]:
    """Yield the parts of the page: what the command is for, then each subcommand."""
    group: Any = typer.main.get_command(app)
    shown = {name: each for name, each in group.commands.items() if not each.hidden}
    yield f"{group.help} It needs the [extra](../install.md#extras) `cli`."
    names = {name: f"[`multigrad {name}`](#multigrad-{name})" for name in shown}
    rows = ((names[name], first_line(each)) for name, each in shown.items())
    yield table(("command", "what it does"), rows)
    yield (
        "A command exits with 0 if all is well, 1 if a check found a difference, and 2 if it "
        "was misused; `multigrad COMMAND --help` prints the same help."
    )
    for name, each in shown.items():
        yield from subcommand(name, each)


def first_line(command: Any) -> str:
    return " ".join((command.help or "").split("\n\n")[0].split())


def subcommand(name: str, command: Any) -> Iterator[str]:
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    shown = [each for each in command.params if not getattr(each, "hidden", False)]
    options = [each for each in shown if each.param_type_name == "option"]
    words = "".join(f" {name_of(each)}" for each in arguments)
    yield f"## multigrad {name}"
    yield first_line(command)
    yield f"```text\nmultigrad {name}{words}{' [OPTIONS]' if options else ''}\n```"
    rows = [
        (f"`{name_of(each)}`", first_line(each), "needed" if each.required else "")
        for each in arguments
    ]
    rows += map(option_row, options)
    if rows:
        yield table(("", "what", "default"), rows)
    language = "console" if name in QUICK else "text"
    yield f"```{language}\n$ {(command.epilog or '').removeprefix('Example: ')}\n```"


def option_row(option: Any) -> tuple[str, str, str]:
    spelled = ", ".join(f"`{each}`" for each in (*option.opts, *option.secondary_opts))
    default = option.default
    empty = default is None or default is False or default == ""
    return spelled, first_line(option), "" if empty else f"`{default}`"


def name_of(argument: Any) -> str:
    return argument.metavar or argument.human_readable_name.upper()
