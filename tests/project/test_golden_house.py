"""The outputs are what they were: traces, reports and jobs against `tests/golden/house`.

These hold while the inside is rebuilt. Who changes an output on purpose writes them anew: see
`transcripts`.
"""

from __future__ import annotations

import json

import pytest
import transcripts

from kvtrace.sim.presets.preset import preset_names

LONG_ROWS = 60_000
"""Traces with more rows are compared only among the tests marked `full`."""


def golden(name: str):
    return json.loads((transcripts.GOLDEN / f"{name}.json").read_text(encoding="utf-8"))


def preset_params():
    for name, expected in golden("presets").items():
        marks = [pytest.mark.traces] if "mooncake" in name else []
        if "tables" in expected and expected["tables"]["t"]["rows"] > LONG_ROWS:
            marks.append(pytest.mark.full)
        yield pytest.param(name, marks=marks)


@pytest.mark.parametrize("name", [*preset_params()])
def test_a_preset_makes_the_trace_that_it_made(name):
    expected = golden("presets")[name]
    assert transcripts.in_folder(transcripts.generated, expected["argv"]) == expected


def test_every_preset_is_compared():
    expected = golden("presets")
    assert list(expected) == [name for name, _ in transcripts.preset_cases()]
    assert {name.split("/")[0] for name in expected} == set(preset_names())
    assert {name: case["argv"] for name, case in expected.items()} == dict(
        transcripts.preset_cases()
    )


@pytest.mark.parametrize("name", [*transcripts.COMMANDS])
def test_a_command_answers_what_it_answered(name):
    assert transcripts.in_folder(transcripts.answered, name) == golden("reports")[name]


@pytest.mark.full
def test_the_queries_of_the_library_answer_what_they_answered():
    assert transcripts.in_folder(transcripts.queried) == golden("sql")


@pytest.mark.parametrize("name", [*transcripts.JOBS])
def test_the_files_that_are_written_are_what_they_were(name):
    assert transcripts.in_folder(transcripts.distilled, name) == golden("jobs")[name]
