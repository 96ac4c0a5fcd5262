"""The table of claims: each is held by what is there, and says when that was last run."""

from __future__ import annotations

import re
import sys
from collections import Counter
from pathlib import Path

import pytest
from phrases import shows

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "docs"))

import validate  # noqa: E402 - beside the page that it writes

PAGE = validate.PAGE.read_text(encoding="utf-8")
BEFORE, CLAIMS, AFTER = validate.split(PAGE)
TARGETS = set(
    re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
)


def exists(program: str) -> bool:
    first, *more = program.split()
    return (
        more[0] in TARGETS
        if first == "make"
        else (ROOT / first).is_file() or (ROOT / first / "cli.py").is_file()
    )


def test_the_table_is_read_whole_and_written_as_it_was():
    assert len(CLAIMS) >= 35
    assert {len(claim.cells) for claim in CLAIMS} == {len(validate.HEADINGS)}
    assert validate.joined(BEFORE, CLAIMS, AFTER) == PAGE


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.cells[0][:60])
def test_what_holds_a_claim_is_there_and_its_last_run_is_told(claim):
    assert claim.tests or claim.programs, "no test and no command holds it"
    lacking = [path for path in claim.tests if not (ROOT / path).is_file()]
    lacking += [program for program in claim.programs if not exists(program)]
    assert not lacking
    assert claim.cells[4].startswith(claim.dated)
    assert claim.dated == validate.NEVER or claim.dated[-1] in dict(validate.MACHINE.findall(AFTER))


def test_a_claim_needs_a_test_or_a_command():
    assert not validate.Claim(["c", "p", "f", "below", "not dated"]).tests
    assert not exists("make believe")
    assert not exists("bench/bench_nothing.py")
    assert exists("kvreplay probe --comm fio")


def test_what_is_not_run_keeps_its_date():
    old, now = "2026-01-01 at 00000000 on A", "2026-02-02 at 11111111 on B"
    assert validate.cell(Counter({"passed": 3}), now, old) == now
    assert shows(validate.cell(Counter({"skipped: needs root": 3}), now, old), f"{old}; … root")
    some = Counter({"passed": 2, "skipped: absent (/a/b)": 1})
    assert shows(validate.cell(some, now, old), f"{now}, 1 of 3")
    assert (
        validate.cell(Counter({"passed": 2, "failed": 1}), now, old)
        == f"{now}: FAILED, 1 of 3 tests"
    )


def test_a_machine_is_named_once():
    first, page = validate.with_machine("\n\n## More\n", "2 x CPU")
    again, same = validate.with_machine(page, "2 x CPU")
    other, both = validate.with_machine(page, "4 x CPU")
    assert (first, again, other, same) == ("A", "A", "B", page)
    assert both == "\n\n- **A**: 2 x CPU\n- **B**: 4 x CPU\n\n## More\n"
