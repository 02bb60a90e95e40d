"""The harness of mutants, which takes hours and is run by hand, still fits the sources."""

from __future__ import annotations

from .. import mutation


def test_what_is_left_out_and_the_library_stand_where_the_harness_looks_for_them() -> None:
    folders = [*mutation.LEFT_OUT, *mutation.SOURCES, mutation.LIBRARY]
    assert [each for each in folders if not (mutation.ROOT / each).is_dir()] == []
    assert mutation.draw(0, 1, "multigrad/look/command/") == []


def test_a_fault_is_drawn_of_each_kind_and_its_place_can_be_probed() -> None:
    mutants = mutation.draw(0, 40, mutation.LIBRARY)
    assert {mutant.kind for mutant in mutants} >= {"operator", "condition", "constant", "dropped"}
    for mutant in mutants:
        source = (mutation.ROOT / mutant.file).read_bytes()
        assert source[mutant.start : mutant.end].decode() == mutant.text != mutant.instead
        faulty = source[: mutant.start] + mutant.instead.encode() + source[mutant.end :]
        compile(faulty, mutant.file, "exec")
        assert mutation.probed(source, mutant.file, mutants) != source
