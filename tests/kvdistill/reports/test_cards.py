"""`kvdistill compare` of two scorecards: what their trials tell of two drives, and nothing more."""

from __future__ import annotations

import json
import random

import msgspec
import pytest
from conftest import run_cli
from phrases import Saying, pattern, shows

from kvdistill.reports.cards import compare_cards
from kvreplay.experiments.load_sweep import TRIALS, decided, next_value, to_repeat
from kvtrace.core.document.sweep_document import card_answer
from kvtrace.core.run.sweep_file import Axis, Card, CardTrial, Score, SweepPoint, TriedUsers

MB = 1_000_000


def score(
    preset,
    users,
    lost,
    *,
    p99_ms=(10, 10.1, 9.9),
    read=(500.0, 501.0, 499.0),
    at=None,
    tried=None,
    **more,
):
    """Return what a drive does under a stack.

    Sustained and lost users, and three trials' p99 and read rate (MB/s).
    """
    loads = [(users and users / 2, 1, 1), (users, 3, 3), (lost, 3, 0), (lost and lost * 2, 1, 0)]
    tried = [TriedUsers(*load) for load in loads if load[0]] if tried is None else tried
    each = [
        CardTrial(read_bytes_per_s=rate * MB, written_bytes_per_s=100.0 * MB, read_p50_ns=1_000_000,
                  read_p99_ns=None if ms is None else round(ms * 1e6), read_p99_9_ns=None)
        for ms, rate in zip(p99_ms, read, strict=True)
    ]  # fmt: skip
    at = at or users or lost
    fields = dict.fromkeys(Score.__struct_fields__) | msgspec.structs.asdict(each[0])
    fields |= {
        "preset": preset,
        "gen": f"--preset {preset} --set tiers.nvme.capacity=16GiB",
        "users": users,
    }
    fields |= {"tried": tried, "at_users": at, "answer": "", "trials": 3, "each": each}
    return Score(**(fields | {"trace_sha256": f"{preset} {at:g}"} | more))


def card(*scores, **more):
    known = {"argv": [], "status": "complete", "window": "steady:20s", "device": "nvme0n1", "model": "A",
             "device_bytes": 10**12, "filesystem": "ext4"}  # fmt: skip
    return Card(**(known | {"scores": list(scores)} | more))


def verdict(a, b):
    return compare_cards(["a", "b"], [a, b]).verdict


def test_users_differ_where_all_trials_sustain_or_lose():
    a = card(score("lmcache-disk", 40, 44), score("vllm-fs", 20, 22))
    b = card(score("lmcache-disk", 60, 66), score("vllm-fs", 21, 23))
    assert shows(
        verdict(a, b),
        "more … lmcache-disk (60 … 66 users, a 40 … 44) … no significant … vllm-fs (21 … 23 users, a 20 … 22)",
    )
    assert shows(verdict(b, a), "fewer … lmcache-disk (40 … 44 users, a 60 … 66)")
    users = compare_cards(["a", "b"], [a, b]).lines[0].sides[1].ratio
    assert (users.value, users.differs) == (1.5, True)
    assert 1 < users.low < 1.5 < users.high < 3


def test_brackets_that_only_touch_or_overlap_are_not_told_apart():
    same = "no significant"
    assert shows(
        verdict(card(score("x", 40, 44)), card(score("x", 43, 47))),
        f"{same} … 43 … 47 users, a 40 … 44",
    )
    # Neither sustains the least that was tried; one sustained all that was tried.
    assert shows(
        verdict(card(score("x", None, 4)), card(score("x", None, 4))),
        "less than 4 users, a less than 4",
    )
    assert shows(
        verdict(card(score("x", 1, 2)), card(score("x", None, 1))), "less than 1 user, a 1 … 2"
    )
    assert shows(
        verdict(card(score("x", 64, None)), card(score("x", 70, 77))),
        "70 … 77 users, a 64 … more",
    )


def tries(*loads):
    return [TriedUsers(*load) for load in loads]


def test_how_much_the_runs_of_a_search_tell():
    # Each held or lost what the other did not, once: chance does that.
    once = score("x", 40, 80, tried=tries((20, 1, 1), (40, 1, 1), (80, 1, 0)))
    twice = score("x", 80, 160, tried=tries((40, 1, 1), (80, 1, 1), (160, 1, 0)))
    assert (
        compare_cards(["a", "b"], [card(once), card(twice)]).lines[0].sides[1].ratio.differs
        is False
    )
    # Trials that disagree at the loads that decide tell less than those that agree; far apart they
    # tell enough.
    unsure = score("x", 40, 44, tried=tries((20, 1, 1), (40, 3, 2), (44, 3, 1), (80, 1, 0)))
    near = score("x", 50, 55, tried=tries((20, 1, 1), (50, 3, 2), (55, 3, 1), (80, 1, 0)))
    far = score("x", 320, 352, tried=tries((160, 1, 1), (320, 3, 2), (352, 3, 1), (640, 1, 0)))
    assert "no significant" in verdict(card(unsure), card(near))
    assert shows(verdict(card(unsure), card(far)), "more … x (320 … 352 users, a 40 … 44)")


def test_times_are_judged_at_one_load_alone():
    a, slow = score("x", 40, 44), score("x", 40, 44, p99_ms=(20, 20.1, 19.9))
    said = verdict(card(a), card(slow))
    assert shows(said, "40 users … x … b … 100 % slower at p99 [")
    # Another load, or another trace: the same times say nothing.
    other = compare_cards(["a", "b"], [card(a), card(score("x", 42, 46, p99_ms=(20, 20.1, 19.9)))])
    assert "no significant" in other.verdict
    assert {line.sides[1].ratio.differs for line in other.lines if line.name != "users"} == {None}
    unlike = compare_cards(["a", "b"], [card(a), card(score("x", 90, 99, at=40, trace_sha256="z"))])
    assert "no significant" in unlike.verdict
    assert unlike.warnings == [Saying("x: … 40 users")]


def test_a_figure_without_a_spread_is_never_claimed_to_differ():
    known = score("x", 40, 44)
    # An earlier version's card: one figure each, no trials.
    old = score("x", 90, 99, each=[], tried=[], gen=None, read_p99_ns=99_000_000)
    found = compare_cards(["a", "b"], [card(known), card(old, window=None)])
    assert "no significant" in found.verdict
    assert not any(line.sides[1].ratio.differs for line in found.lines)
    assert found.warnings == [Saying("runs … x")]
    few = score("x", 40, 44, p99_ms=(None, None, None))
    assert not any(line.name == "response_p99_ns" and line.sides[1].ratio.differs
                   for line in compare_cards(["a", "b"], [card(few), card(few)]).lines)  # fmt: skip


def test_cards_of_other_tests_are_refused_or_headed_by_it(tmp_path):
    from kvtrace.core.errors import ConfigError

    a = card(score("x", 40, 44))
    for other, message in (
        (card(score("y", 40, 44)), "no stack"),
        (
            card(score("x", 40, 44), window="steady:30s"),
            "a: steady:20s; b: steady:30s",
        ),
        (
            card(score("x", 40, 44, gen="--preset x --set tiers.nvme.capacity=8GiB")),
            "traffic … x",
        ),
    ):
        with pytest.raises(ConfigError, match=pattern(message)):
            compare_cards(["a", "b"], [a, other])
    b = card(score("x", 40, 44), score("y", 1, 2), version="0.0.1", status="the drive is gone")
    assert compare_cards(["a", "b"], [a, b]).warnings == [
        Saying("versions of kvreplay"),
        "b is PARTIAL: the drive is gone",
        "only b has y",
    ]
    (tmp_path / "run").mkdir()
    (tmp_path / "a.json").write_bytes(msgspec.json.encode(a))
    done = run_cli("kvdistill", "compare", tmp_path / "a.json", tmp_path / "run", check=False)
    assert (done.returncode, "scorecard" in done.stderr) == (2, True)
    (tmp_path / "b.json").write_text('{"scores": 1}')
    done = run_cli("kvdistill", "compare", tmp_path / "a.json", tmp_path / "b.json", check=False)
    assert (done.returncode, "scorecard" in done.stderr) == (3, True)


@pytest.mark.usefixtures("without_charts")
def test_the_command_takes_files_and_folders_and_makes_a_page(tmp_path):
    for name, users in (("a", 40), ("b", 60)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "scorecard.json").write_bytes(
            msgspec.json.encode(card(score("vllm-fs", users, users * 1.1)))
        )
    done = run_cli("kvdistill", "compare", tmp_path / "a", tmp_path / "b" / "scorecard.json")
    lines = done.stdout.splitlines()
    assert shows(lines[0], "more … vllm-fs (60 … 66 users, a 40 … 44)")
    found = json.loads(
        run_cli("kvdistill", "compare", tmp_path / "a", tmp_path / "b", "--json").stdout
    )
    assert (found["kind"], found["trials"], found["together"]) == ("scorecard", [3, 3], 1)
    page = tmp_path / "c.html"
    run_cli("kvdistill", "compare", tmp_path / "a", tmp_path / "b", "-o", page)
    text = page.read_text()
    assert text.count("<figure>") >= 2
    assert (
        text.index("b sustains more users than a")
        < text.index("<figure>")
        < text.index('<details class="folded"')
    )


def measured(capacity, noise, rng):
    """Return the score of a drive that sustains about `capacity` users, by the search of `kvreplay
    scorecard`.
    """
    trials, points = {}, []
    while (at := next_value(Axis.USERS, [4.0], points) or to_repeat(points)) is not None:
        is_held = at < capacity * rng.lognormvariate(0, noise)
        unknown = dict.fromkeys(("throughput_bytes_per_s", "operations_per_s", "write_p99_ns"))
        times = {
            "asked_bytes_per_s": at,
            "read_p99_ns": rng.randrange(10**6),
            "late_p99_ns": rng.randrange(10**6),
        }
        trials.setdefault(at, []).append(
            SweepPoint(value=at, run="", verdict="", kept_pace=is_held, **unknown, **times)
        )
        points = sorted((decided(of) for of in trials.values()), key=lambda point: point.value)
    lost = next((point.value for point in points if not point.is_held), None)
    held = [
        point.value for point in points if point.is_held and (lost is None or point.value < lost)
    ]
    tried = tries(*((point.value, point.trials, point.held_trials) for point in points))
    p99 = [10 * rng.lognormvariate(0, noise) for _ in range(TRIALS)]
    rates = [500 * rng.lognormvariate(0, noise) for _ in range(TRIALS)]
    return score("x", max(held, default=None), lost, tried=tried, p99_ms=p99, read=rates)


@pytest.mark.full
@pytest.mark.first(noise=1)
@pytest.mark.parametrize("noise", [0.02, 0.1, 0.2])
@pytest.mark.parametrize("count", [20, pytest.param(100, marks=pytest.mark.full)])
def test_a_drive_differs_from_itself_in_5_percent_at_most(noise, count):
    """Four stacks, each found by the search that a scorecard makes, on a drive that is now quicker
    and now slower.
    """
    rng, claims = random.Random(7), 0  # noqa: S311
    for _ in range(count):
        cards = []
        capacities = [rng.uniform(10, 300) for _ in range(4)]
        for _side in range(2):
            scores = [
                msgspec.structs.replace(
                    measured(capacity, noise, rng), preset=f"s{at}", gen=None, trace_sha256=f"{at}"
                )
                for at, capacity in enumerate(capacities)
            ]
            # A trace is of so many users.
            cards.append(
                card(*(msgspec.structs.replace(s, trace_sha256=f"{s.at_users}") for s in scores))
            )
        claims += "no significant" not in verdict(*cards)
    assert claims <= 0.05 * count


def test_a_drive_that_is_half_as_fast_is_told_apart():
    rng = random.Random(3)  # noqa: S311
    found = [
        verdict(card(measured(100, 0.005, rng)), card(measured(50, 0.005, rng))) for _ in range(20)
    ]
    assert all(shows(said, "fewer … x") for said in found)


def test_users_are_not_compared_on_few_requests():
    """Two cards of one drive differed.

    4 users of a window of few requests asked for less than 2 did.
    """
    cards = [card(score("vllm-fs", *users, requests=8)) for users in ((4.0, 5.0), (40.0, 50.0))]
    compared = compare_cards("ab", cards)
    assert shows(compared.verdict, "no significant")
    assert shows(compared.warnings[0], "8 requests")
    more = [card(score("vllm-fs", *users, requests=80)) for users in ((4.0, 5.0), (40.0, 50.0))]
    assert shows(compare_cards("ab", more).verdict, "more … vllm-fs")


def test_the_folder_of_a_card_is_reported_as_its_page(tmp_path):
    """It holds scorecard.json and drive.json; its runs lie deeper."""
    first = score(
        "lmcache-disk",
        40.0,
        44.0,
        gen="--preset lmcache-disk --model qwen2.5-7b",
        answer="40 users",
    )
    found = card(first, score("vllm-fs", None, 2.0, requests=8))
    (tmp_path / "scorecard.json").write_bytes(msgspec.json.encode(found))
    (tmp_path / "drive.json").write_text("{}")
    said = run_cli("kvdistill", "report", tmp_path).stdout
    assert shows(said, "lmcache-disk 40 users, vllm-fs … 2 users")
    assert "that it sustains" in said
    assert "qwen2.5-7b" in said
    assert shows(said, "lmcache-disk: … 40 users")
    assert "TOO FEW REQUESTS (8)" in said
    assert shows(card_answer(card(score("vllm-fs", None, 1.0))), "vllm-fs … 1 user")
    whole = json.loads(run_cli("kvdistill", "report", tmp_path, "--json").stdout)
    assert whole == {"name": tmp_path.name, "card": msgspec.to_builtins(found)}
