"""Runs the tests that hold the claims of docs/validation.md, and writes beside each claim when that
was, and on what.

Claims that were not run for the longest come first, for --minutes in all; --list says what would be
run. What lacks something here (root, fio, real traces) keeps its date, and says what is lacking.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "validation.md"
HEADINGS = ["claim", "peer", "figure", "held by", "last run"]
NEVER = "not dated"
MACHINE = re.compile(r"^- \*\*([A-Z])\*\*: (.*)$", re.MULTILINE)
DATED = re.compile(r"\d{4}-\d\d-\d\d at [0-9a-f]{8}\+? on [A-Z]")


@dataclass
class Claim:
    """A row of the table."""

    cells: list[str]

    @property
    def tests(self) -> list[str]:
        """The test files of its column `held by`: a bare name lies beside the one before it."""
        found: list[str] = []
        for named in re.findall(r"`((?:tests/\S+/)?test_\w+\.py)`", self.cells[3]):
            found.append(
                named if "/" in named or not found else f"{found[-1].rpartition('/')[0]}/{named}"
            )
        return found

    @property
    def programs(self) -> list[str]:
        """What else holds it: a target of make, a bench, commands of ours."""
        return re.findall(r"`((?:make |bench/|kvtrace |kvreplay |kvdistill )[^`]*)`", self.cells[3])

    @property
    def dated(self) -> str:
        """When it was last run, NEVER if nobody wrote that down."""
        found = DATED.match(self.cells[4])
        return found[0] if found else NEVER

    def __str__(self) -> str:
        return f"| {' | '.join(self.cells)} |"


def split(page: str) -> tuple[str, list[Claim], str]:
    """Return what is before the table's rows, the rows, and what is behind them."""
    start = page.index(f"| {' | '.join(HEADINGS)} |\n")
    start = page.index("\n", page.index("\n", start) + 1) + 1
    end = page.index("\n\n", start)
    rows = [line[2:-2].split(" | ") for line in page[start:end].split("\n")]
    return page[:start], [Claim(cells) for cells in rows], page[end:]


def joined(before: str, claims: list[Claim], after: str) -> str:
    """Return the page of its parts."""
    return before + "\n".join(map(str, claims)) + after


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)  # noqa: S603, S607
    return done.stdout.strip()


def commit() -> str:
    """Return the commit, with a + if what is tracked has changed since, this page apart."""
    changed = _git(
        "status", "--porcelain", "--untracked-files=no", "--", ".", ":!docs/validation.md"
    )
    return _git("rev-parse", "HEAD")[:8] + ("+" if changed else "")


def machine() -> str:
    """Return what figures depend on: processors, memory, kernel, Python."""
    told = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    names = re.findall(r"^(?:model name|CPU part)\s*: (.*)$", told, re.MULTILINE)
    gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    kernel = platform.release().split("-")[0]
    name = names[0] if names else platform.machine()
    return (
        f"{os.cpu_count()} x {name}, {gib:.0f} GiB, Linux {kernel}, Python"
        f" {platform.python_version()}"
    )


def with_machine(after: str, found: str) -> tuple[str, str]:
    """Return the letter of this machine and the text behind the table, in which it stands."""
    letters = {said: letter for letter, said in MACHINE.findall(after)}
    if found not in letters:
        letters[found] = chr(ord("A") + len(letters))
        line = f"- **{letters[found]}**: {found}"
        last = list(MACHINE.finditer(after))
        at = last[-1].end() if last else 0
        after = f"{after[:at]}\n{line}{after[at:]}" if last else f"\n\n{line}{after}"
    return letters[found], after


def run(tests: list[str], seconds: float) -> Counter[str] | None:
    """Run test files.

    Return how many passed, failed, and were skipped for each reason; None if time was up.
    """
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", "--full", f"--junitxml={report}", *tests]
        process = subprocess.Popen(  # noqa: S603 - our tests
            command,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            printed = process.communicate(timeout=seconds)[0]
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return None
        if not report.exists():
            raise SystemExit(f"pytest {' '.join(tests)}: {printed}")
        found: Counter[str] = Counter()
        for case in ET.parse(report).iter("testcase"):  # noqa: S314 - pytest wrote it
            skipped = case.find("skipped")
            if skipped is not None:
                found[f"skipped: {skipped.get('message', '')}"] += 1
            else:
                found[
                    (
                        "failed"
                        if case.find("failure") is not None or case.find("error") is not None
                        else "passed"
                    )
                ] += 1
        if found["failed"]:
            sys.stderr.write(printed)
        return found


def cell(found: Counter[str], now: str, before: str) -> str:
    """Return what the column `last run` says of a run's counts at `now`, of a claim last run
    `before`.
    """
    reasons = [key.removeprefix("skipped: ") for key in found if key.startswith("skipped: ")]
    lacking = "; ".join(
        sorted({re.sub(r"[|\n]", " ", re.sub(r" ?\(/[^)]*\)", "", reason)) for reason in reasons})
    )
    skipped = sum(count for key, count in found.items() if key.startswith("skipped: "))
    if found["failed"]:
        return f"{now}: FAILED, {found['failed']} of {found.total()} tests"
    if not found["passed"]:
        return f"{before}; not run here: {lacking or 'no test is selected'}"
    return now + (
        f", {skipped} of {found.total()} tests not run here: {lacking}" if skipped else ""
    )


def main() -> int:
    """Run what there is time for; return 1 if something does not hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("words", nargs="*", help="only claims whose row has one of these words")
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument(
        "--list", action="store_true", help="say what would be run, and write nothing"
    )
    options = parser.parse_args()
    before, claims, after = split(PAGE.read_text(encoding="utf-8"))
    wanted = [
        claim
        for claim in claims
        if not options.words or any(word in str(claim) for word in options.words)
    ]
    if options.list:
        for claim in wanted:
            sys.stdout.write(
                f"{claim.cells[0]}:"
                f" {' '.join(claim.tests) or 'by hand: ' + '; '.join(claim.programs)}\n"
            )
        return 0
    letter, after = with_machine(after, machine())
    now = f"{datetime.now(UTC):%Y-%m-%d} at {commit()} on {letter}"
    end, of_tests, is_failed = time.monotonic() + options.minutes * 60, {}, False
    for claim in sorted(wanted, key=lambda claim: "" if claim.dated == NEVER else claim.dated):
        tests, said = claim.tests, claim.cells[0]
        if not tests:
            sys.stdout.write(f"by hand: {said}: {'; '.join(claim.programs)}\n")
            continue
        if tuple(tests) not in of_tests:
            of_tests[tuple(tests)] = (
                run(tests, max(1, end - time.monotonic())) if time.monotonic() < end else None
            )
        found = of_tests[tuple(tests)]
        if found is None:
            sys.stdout.write(f"no time was left for: {said}\n")
            continue
        claim.cells[4] = cell(found, now, claim.dated)
        is_failed |= found["failed"] > 0
        sys.stdout.write(f"{claim.cells[4]}: {said}\n")
        sys.stdout.flush()
        PAGE.write_text(joined(before, claims, after), encoding="utf-8")
    return int(is_failed)


if __name__ == "__main__":
    sys.exit(main())
