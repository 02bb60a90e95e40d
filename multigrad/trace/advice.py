"""How messages of a capture speak: what is captured, and the ways out that its author has."""

from __future__ import annotations

from ..graph.support.data import dataclass


@dataclass(frozen=True, slots=True)
class Words:
    """How a kind of trace is spoken of.

    Attributes:
        native: what has it run as it is; "" where the reader cannot say so.
        param: as what a value is to be given that may change.
        write: what to write instead of what is not captured.
        lead: how advice begins, where it is another's code.
    """

    native: str = ""
    param: str = "an argument"
    write: tuple[str, ...] = ()
    lead: str = ""

    def ways(self, *advice: str) -> str:
        """Return ways out: these, or to run it as it is."""
        return ", or ".join((*advice, *((self.native,) if self.native else ())))

    def advise(self, *advice: str) -> str:
        """Return the same as a sentence after a problem, "" where there is no way."""
        ways = self.ways(*advice)
        if not ways:
            return ""
        if self.lead:  # whose code has the names of its own library
            return f". {self.lead}{ways[0].lower()}{ways[1:].replace('xp.', '')}"
        return f". {ways[0].upper()}{ways[1:]}"


NATIVE = "native=True to run it as it is"
XP = ("write it with xg.xp",)
WORDS = {
    "rule": Words(f"register the rule with {NATIVE}", "a param of the rule", XP),
    "function": Words(f"give it {NATIVE}", write=XP),
    "imported function": Words(lead="Its author could "),
}
