"""What a notebook shows of an object: HTML that `inspection/notebook.py` writes when asked."""

from __future__ import annotations

from importlib import import_module


class InNotebooks:
    """A base of what has a page of its own in notebooks."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        # By name: what is shown of an object stands above the object's own room.
        return import_module("multigrad.look.notebook").html_of(self)


class Shown(str):
    """A text that people read: at a prompt and in a notebook it stands as it is printed."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)
