"""TraceLab, ServeGen, AgentX, servers' own logs: requests worked out by hand, and faults."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from phrases import shows

from kvtrace.core.errors import ConfigError, TraceError
from kvtrace.requests import own_table
from kvtrace.requests.columns import servegen
from kvtrace.requests.conversations import agentic, agentx, tracelab
from kvtrace.requests.registry import detect
from kvtrace.requests.requests import waits_of
from kvtrace.requests.server_logs import sglang_log, vllm_log

ENGINES = Path(__file__).parents[2] / "golden" / "engines"
S = 10**9


def rng():
    return np.random.default_rng(7)


def jsonl(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def fault(source, path, **options):
    with pytest.raises(TraceError) as caught:
        source.read(path, **options)
    assert str(caught.value).startswith(str(path))
    return str(caught.value)


# TraceLab


def round_of(
    session, asked, answered, prefix, append, output, *, kind="user_message", provider="codex"
):
    def event(name, second):
        return {
            "event_type": name,
            "timestamp": f"2026-06-01T00:{second // 60:02}:{second % 60:02}.500Z",
        }

    return {
        "provider": provider, "session_id": session, "round_index": 0, "input_tokens_total": prefix + append,
        "prefix_tokens": prefix, "newly_append_tokens": append, "output_tokens": output,
        "timing_events": [event(kind, asked), event("text", answered), event("tool_call", answered + 1)],
    }  # fmt: skip


ROUNDS = [
    round_of("a", 0, 2, 100, 150, 10),
    round_of("b", 1, 3, 0, 130, 20, provider="claude"),
    # The provider's cache had forgotten it all, but the prompt is the one before it and more.
    round_of("a", 60, 62, 0, 400, 30, kind="tool_result"),
    # Compacted: 128 tokens were found in the provider's cache.
    round_of("a", 90, 95, 130, 70, 5),
    round_of("b", 100, 103, 128, 30, 1, kind="tool_result", provider="claude"),
]


def test_tracelab_rounds_share_the_prefix_of_their_session(tmp_path):
    path = jsonl(tmp_path / "t.jsonl", ROUNDS)
    assert detect(path) == "tracelab"
    found = tracelab.read(path, block_tokens=64)
    assert found.arrival_ns.tolist() == [0, S, 60 * S, 90 * S, 100 * S]
    assert found.answered_ns.tolist() == [3 * S, 4 * S, 63 * S, 96 * S, 104 * S]
    assert found.input_tokens.tolist() == [250, 130, 400, 200, 158]
    assert found.output_tokens.tolist() == [10, 20, 30, 5, 1]
    assert (found.session_id.tolist(), found.turn.tolist()) == ([0, 1, 0, 0, 1], [0, 0, 1, 2, 1])
    # Whole blocks of 64: 3 of a, 2 of b; 6 of a, of which 3 are the former; 3, of which 2 were
    # found; 2 of b, the same.
    assert found.block_offsets.tolist() == [0, 3, 5, 11, 14, 16]
    ids = found.block_ids.tolist()
    assert ids[5:8] == ids[0:3]
    assert ids[11:13] == ids[0:2]
    assert ids[14:16] == ids[3:5]
    assert len(set(ids)) == 3 + 2 + 3 + 1
    assert any(shows(note, "1 prompts") for note in found.notes)
    assert any(shows(note, "100 tokens") for note in found.notes)
    assert tracelab.read(path).block_tokens == 512


def test_tracelabs_own_figure_of_what_is_fresh(tmp_path):
    found = tracelab.read(jsonl(tmp_path / "t.jsonl", ROUNDS))
    # Appended after the first of each session: 400 and 70 of codex, 30 of claude. Fresh: what the
    # context grows by, less the answer before: 150 - 10, 0 - 30; 28 - 20.
    assert found.origin["appended_tokens"] == {"codex": 470, "claude": 30}
    assert found.origin["fresh_tokens"] == {"codex": 110, "claude": 8}


def test_rounds_without_times_are_left_out_and_faults_placed(tmp_path):
    bare, empty = (
        dict(ROUNDS[0], timing_events=[]),
        dict(ROUNDS[0], prefix_tokens=None, newly_append_tokens=None),
    )
    found = tracelab.read(jsonl(tmp_path / "t.jsonl", [*ROUNDS, bare, empty]))
    assert (len(found), found.origin["rounds_left_out"]) == (5, 2)
    for row, message in (
        (dict(ROUNDS[0], prefix_tokens=-1), "row 2, column prefix_tokens: … `int` … 0"),
        (dict(ROUNDS[0], timing_events=[{"event_type": "text", "timestamp": "noon"}]),
         "row 2, column timing_events[0].timestamp: 'noon'"),
        # Go writes the first for no time; what does not fit 64 bits of ns came before all others.
        *((dict(ROUNDS[0], timing_events=[{"event_type": "text", "timestamp": f"{year}-01-01T00:00:00Z"}]),
           f"row 2, column timing_events[0].timestamp: '{year}-01-01T00:00:00Z'")
          for year in ("0001", "2300")),
        (dict(ROUNDS[0], timing_events=[{"event_type": "text", "timestamp": "2026-01-01T00:00:00+8"}]),
         "row 2, column timing_events[0].timestamp: '2026-01-01T00:00:00+8'"),
        ({"round_index": 1}, "row 2: … `session_id`"),
    ):  # fmt: skip
        assert shows(fault(tracelab, jsonl(tmp_path / "f.jsonl", [ROUNDS[0], row])), message)


# ServeGen


def client(folder, number, rows, histograms):
    (folder / f"chunk-{number}-trace.csv").write_text(
        "".join(f"{','.join(map(str, row))}\n" for row in rows)
    )
    path = folder / f"chunk-{number}-dataset.json"
    path.write_text(
        json.dumps(
            {
                at: {name: str(of) for name, of in fields.items()}
                for at, fields in histograms.items()
            }
        )
    )
    return folder


ONE = {"input_tokens": {100: 1.0}, "output_tokens": {7: 0.25, 9: 0.75}}


def test_servegen_clients_follow_their_rates_and_histograms(tmp_path):
    client(tmp_path, 0, [(0, 20, 1, "Gamma", 4.0, 1), (600, 0, 0, "", 0, 0), (1200, 5, 1, "Weibull", 0.5, 1)],
           {0: ONE, 1200: ONE | {"input_tokens": {3: 1.0}}})  # fmt: skip
    client(
        tmp_path,
        1,
        [(0, 2, 1, "Weibull", 1.0, 9), (600, 2, 1, "Weibull", 1.0, 9)],
        {0: ONE | {"input_tokens": {5: 1.0}}},
    )
    assert detect(tmp_path) == "servegen"
    found = servegen.read(tmp_path, rng(), time_window_ns=(0, 600 * S))
    of_first = found.input_tokens == 100
    # 20 and 2 a second for 600 s: within 4 standard deviations of what their laws give (Gamma of
    # shape 4 halves it).
    assert abs(int(of_first.sum()) - 12_000) < 4 * (12_000 / 4) ** 0.5
    assert abs(int((found.input_tokens == 5).sum()) - 1200) < 4 * 1200**0.5
    assert set(found.output_tokens.tolist()) == {7, 9}
    assert abs((found.output_tokens == 9).mean() - 0.75) < 0.02
    gaps = np.diff(found.arrival_ns[of_first])
    assert gaps.std() / gaps.mean() == pytest.approx(0.5, abs=0.03)
    assert (np.diff(found.arrival_ns) >= 0).all()
    assert int(found.arrival_ns[-1]) < 600 * S
    again = servegen.read(tmp_path, rng(), time_window_ns=(0, 600 * S))
    assert again.arrival_ns.tolist() == found.arrival_ns.tolist()
    assert shows(found.notes, "sessions, turns … block ids")
    with pytest.raises(ConfigError, match="shared prefixes"):
        found.check_shared()


def test_a_servegen_window_begins_anywhere_with_its_rate(tmp_path):
    client(tmp_path, 0, [(0, 20, 1, "Gamma", 1.0, 1), (600, 0, 0, "", 0, 0), (1200, 5, 1, "Weibull", 0.5, 1)],
           {0: ONE, 1200: ONE | {"input_tokens": {3: 1.0}}})  # fmt: skip
    found = servegen.read(
        tmp_path, rng(), time_window_ns=(900 * S, 600 * S), request_rate_per_s=10.0
    )
    # Nothing in its first half; as much as 10 a second of the whole in its second.
    assert set(found.input_tokens.tolist()) == {3}
    assert found.origin["request_rate_per_s"] == pytest.approx(10)
    assert len(found) == pytest.approx(6000, rel=0.2)
    assert int(found.arrival_ns[-1]) < 300 * S
    with pytest.raises(ConfigError, match=r"request rate\(=0\)"):
        servegen.read(tmp_path, rng(), request_rate_per_s=0.0)
    with pytest.raises(TraceError, match=r"1 clients.*700.*800 s"):
        servegen.read(tmp_path, rng(), time_window_ns=(700 * S, 100 * S))


@pytest.mark.parametrize(("law", "shape"), [("Gamma", 1 / 9), ("Weibull", 0.5), ("Gamma", 4.0)])
def test_slow_bursty_servegen_clients_keep_their_stated_rate(tmp_path, law, shape):
    """Each stretch began with an arrival.

    0.01 a second with gamma intervals of a variation of 3 came to 0.016.
    """
    client(tmp_path, 0, [(600 * n, 0.01, 3, law, shape, 1) for n in range(400)], {0: ONE})
    found = servegen.read(tmp_path, rng(), time_window_ns=(0, 240_000 * S))
    # 6 in each of 400 stretches, within 4 standard deviations: in a stretch of Gamma with 1/9 it is
    # 6.4.
    assert abs(len(found) - 2400) < 4 * 6.4 * 400**0.5


def test_servegens_rate_counts_only_clients_with_lengths(tmp_path):
    client(tmp_path, 0, [(0, 5, 1, "Gamma", 1.0, 1), (600, 5, 1, "Gamma", 1.0, 1)], {0: ONE})
    client(tmp_path, 1, [(0, 5, 1, "Gamma", 1.0, 1), (600, 5, 1, "Gamma", 1.0, 1)], {600: ONE})
    found = servegen.read(tmp_path, rng(), request_rate_per_s=10.0)
    assert abs(len(found) - 6000) < 4 * 6000**0.5
    assert any("1 stretches" in note for note in found.notes)


@pytest.mark.parametrize(("rows", "histograms", "message"), [
    ([(0, 1, 1, "Weibull", 0.001, 1)], {0: ONE}, "row 1: '0,1,1,Weibull,0.001,1'"),
    ([(0, 1, 1, "Gamma", 1, 1), (600, 1, 1, "Pareto", 1, 1)], {0: ONE}, "row 2: '600,1,1,Pareto,1,1'"),
    ([(0, -1, 1, "Gamma", 1, 1)], {0: ONE}, "trace.csv, row 1: '0,-1,1,Gamma,1,1'"),
    ([(0, 1, 1, "Gamma", 1)], {0: ONE}, "trace.csv, row 1:"),
    ([(600, 1, 1, "Gamma", 1, 1), (0, 1, 1, "Gamma", 1, 1)], {0: ONE}, "trace.csv, row 2: "),
    ([(0, 1, 1, "Gamma", 1, 1)], {0: ONE | {"input_tokens": {5: 0.4}}}, "column 0: input_tokens at 0"),
    ([(0, 1, 1, "Gamma", 1, 1)], {0: ONE | {"output_tokens": "{x"}}, "output_tokens at 0 … JSON"),
    ([(0, 1, 1, "Gamma", 1, 1)], {0: {"text_tokens": {5: 1.0}}}, "input_tokens … text_tokens"),
    ([(0, 1, 1, "Gamma", 1, 1)], {9: ONE}, "no request was sampled in the window"),
])  # fmt: skip
def test_bad_clients_are_named(tmp_path, rows, histograms, message):
    with pytest.raises(TraceError) as caught:
        servegen.read(client(tmp_path, 3, rows, histograms), rng())
    assert shows(str(caught.value), message)


# AgentX


def ask(t, blocks, took=1.0, kind="n"):
    return {
        "t": t,
        "type": kind,
        "in": 64 * len(blocks),
        "out": 2,
        "hash_ids": blocks,
        "api_time": took,
    }


def conversation(path, requests):
    path.write_text(
        json.dumps(
            {"id": path.stem, "block_size": 64, "hash_id_scope": "local", "requests": requests}
        )
    )
    return path


IDLE = [
    ask(0, [1]), ask(5, [1, 2], took=20),
    {"t": 6, "type": "subagent", "requests": [ask(6, [9], took=None), ask(55, [9, 8])]},
    ask(100, [1, 2, 3], took=2), ask(1000, [1, 2, 3, 4]),
]  # fmt: skip


def test_idle_time_is_cut_where_nothing_is_under_way(tmp_path):
    path = conversation(tmp_path / "a.json", IDLE)
    # The sub-agent's first time is 6, where the conversation starts it at 6: it is the
    # conversation's clock.
    assert agentic.read(path, rng()).arrival_ns.tolist() == [
        s * S for s in (0, 5, 6, 55, 100, 1000)
    ]
    found = agentic.read(path, rng(), idle_cap_ns=10 * S)
    # Busy 0-1, 5-25 (with 6), 55-56, 100-102, 1000-1001: idle 4, 30, 44, 898 become 4, 10, 10, 10.
    assert found.arrival_ns.tolist() == [s * S for s in (0, 5, 6, 35, 46, 58)]
    assert found.answered_ns.tolist() == [s * S for s in (1, 25, 6, 36, 48, 59)]
    assert any("10.0 s" in note for note in found.notes)


def test_a_conversation_begins_at_its_start_ratio_with_warm_up(tmp_path):
    path = conversation(tmp_path / "a.json", IDLE)
    found = agentic.read(path, rng(), idle_cap_ns=10 * S, start_ratio=(0.5, 0.5))
    # The moment is 29 s of 58: the turn before it was at 5 and the sub-agent's at 6, both no more
    # than 10 s before; what comes after is at 6, 17 and 29 s.
    assert found.arrival_ns.tolist() == [s * S for s in (0, 0, 16, 27, 39)]
    assert found.input_tokens.tolist() == [128, 64, 128, 192, 256]
    assert found.turn.tolist() == [1, 0, 1, 2, 3]
    assert any(shows(note, "1 requests … 2 warm") for note in found.notes)


def test_agentx_is_the_source_by_its_rules(tmp_path):
    path = conversation(tmp_path / "a.json", IDLE)
    found, same = (
        agentx.read(path, rng()),
        agentic.read(path, rng(), idle_cap_ns=10 * S, start_ratio=(0.0, 1.0)),
    )
    assert found.arrival_ns.tolist() == same.arrival_ns.tolist()
    assert (found.origin["kind"], found.origin["idle_cap_ns"]) == ("agentx", 10 * S)
    # Another cap or ratio overrides the rule.
    plain = agentx.read(path, rng(), start_ratio=(0.0, 0.0))
    assert plain.arrival_ns.tolist() == [s * S for s in (0, 5, 6, 35, 46, 58)]
    with pytest.raises(ConfigError, match=r"start ratio\(=0.5-2\).*0.*1"):
        agentx.read(path, rng(), start_ratio=(0.5, 2.0))


def test_an_edition_is_a_conversation_a_line(tmp_path):
    lines = [json.loads(conversation(tmp_path / "a.json", IDLE[:2]).read_text()) for _ in range(2)]
    path = jsonl(tmp_path / "edition.jsonl", lines)
    assert detect(path) == "agentic"
    found = agentic.read(path, rng())
    assert found.session_id.tolist() == [0, 1, 0, 1]
    assert len(set(found.block_ids.tolist())) == 4
    lines[1]["requests"][1]["hash_ids"] = [1]
    message = "row 2, column requests[1].hash_ids: 1 ids … 128 … 64 … 2"
    with pytest.raises(TraceError, match=r"edition\.jsonl") as caught:
        agentic.read(jsonl(path, lines), rng())
    assert shows(str(caught.value), message)


# Servers' logs


def test_what_vllm_logs_of_requests():
    path = ENGINES / "vllm" / "requests.log"
    assert detect(path) == "vllm-log"
    found = vllm_log.read(path, tokenizer="characters")
    # By make_server_logs.py: prompts of 40 and 35 token ids that begin with the same 32, and one of
    # 12 characters.
    assert found.input_tokens.tolist() == [40, 35, 3]
    assert found.output_tokens.tolist() == [3, 5, 0]
    assert found.block_offsets.tolist() == [0, 2, 4, 4]
    assert found.block_ids[:2].tolist() == found.block_ids[2:].tolist()
    assert found.session_id is None
    for words in (
        "1 prompts",
        "1 requests",
        "year … zone",
    ):
        assert shows(found.notes, words)
    assert vllm_log.read(path, block_tokens=8, tokenizer="characters").block_offsets.tolist() == [
        0,
        5,
        9,
        9,
    ]


HEAD = "INFO 12-31 23:59:5{} [logger.py:43] "
OLD = (
    HEAD + "Received request cmpl-{}: prompt: {!r}, params: SamplingParams(n=1, stop=['a]']),"
    " prompt_token_ids: {}, lora_request: None."
)


def log(path, *lines):
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def test_older_vllm_logs_have_prompts_at_info_across_new_year(tmp_path):
    path = log(
        tmp_path / "v.log", "INFO 12-31 23:00:00 [api_server.py] starting", OLD.format(8, "a", "it's", [1, 2, 3]),
        OLD.format(9, "b", 'a "b", prompt_token_ids: [4]', None), HEAD.format(9) + "Added request cmpl-b.",
        "INFO 01-01 00:00:01 [logger.py:43] Received request cmpl-c: prompt: None, params: PoolingParams(), "
        "prompt_token_ids: [1, 2, 3, 4], prompt_embeds shape: None, lora_request: None.",
        "INFO 03-01 00:00:01 [logger.py:80] Generated response cmpl-c: output: 'x', output_token_ids: [5, 6], "
        "finish_reason: stop",
    )  # fmt: skip
    assert detect(path) == "vllm-log"
    found = vllm_log.read(path, block_tokens=2, tokenizer="characters")
    assert found.arrival_ns.tolist() == [0, S, 3 * S]
    assert found.input_tokens.tolist() == [3, 7, 4]
    assert found.output_tokens.tolist() == [0, 0, 2]
    # 31 days of January and 28 of February.
    assert int(found.answered_ns[2]) == 3 * S + 59 * 86_400 * S
    ids = found.block_ids.tolist()
    assert found.block_offsets.tolist() == [0, 1, 4, 6]
    assert ids[0] == ids[4]


@pytest.mark.parametrize(("line", "message"), [
    (OLD.format(8, "a", "b", "[1, 2")[:-30], "row 2, column prompt:"),
    (OLD.format(8, "a", "b", "[1, x]"), "row 2, column prompt:"),
    (OLD.format(8, "a", "b", "[1 2]"), "row 2: "),
    (OLD.format(8, "a", "bQ", "None").replace("Q", "\\x"), "row 2:"),
    (OLD.format(8, "a", "b", [1]).replace("12-31", "13-31"), "row 2, column time: '2024-13-31T23:59:58'"),
    (HEAD.format(8) + "Generated response cmpl-a: output: 'cut", "row 2, column output:"),
])  # fmt: skip
def test_bad_lines_of_vllm_are_named(tmp_path, line, message):
    assert shows(
        fault(vllm_log, log(tmp_path / "v.log", OLD.format(7, "z", "b", [1]), line)), message
    )


def test_a_vllm_log_without_prompts_names_the_setting(tmp_path):
    path = log(
        tmp_path / "v.log",
        HEAD.format(1)
        + "Received request cmpl-a: params: SamplingParams(n=1), lora_request: None.",
    )
    assert detect(path) == "vllm-log"
    assert "VLLM_LOGGING_LEVEL=DEBUG" in fault(vllm_log, path)


def test_what_sglang_logs_of_requests():
    path = ENGINES / "sglang" / "requests.log"
    assert detect(path) == "sglang-log"
    found = sglang_log.read(path)
    # By make_server_logs.py: two prompts at each of four levels, as text and as JSON, 4 s apart,
    # the second 1 s later.
    assert found.arrival_ns.tolist() == [
        second * S for at in range(0, 32, 4) for second in (at, at + 1)
    ]
    assert found.input_tokens.tolist() == [40, 41] * 8
    assert found.output_tokens.tolist() == [3] * 16
    assert (found.answered_ns - found.arrival_ns).tolist() == [1_500_000_000] * 16
    assert found.session_id.tolist() == [-1, 0] * 8
    # Levels 2 and 3 have token ids: two whole blocks of 16 each, the same. The blocks of prompts
    # at levels 0 and 1 are their own.
    assert found.block_offsets.tolist() == list(range(0, 33, 2))
    assert len(set(found.block_ids[16:].tolist())) == 2
    assert len(set(found.block_ids.tolist())) == 2 + 16
    assert any(shows(note, "256 prompt tokens … SGLang") for note in found.notes)


FINISH = (
    "[2026-05-20 08:02:44 TP0] Finish: obj=GenerateReqInput(rid='a', input_ids={}), out={{'text':"
    " 'x', 'meta_info': {{'id': 'a', 'prompt_tokens': {}, 'completion_tokens': 2, 'e2e_latency':"
    " 1.5}}}}"
)


def test_requests_that_vllm_aborted_or_refused_are_counted(tmp_path):
    path = log(
        tmp_path / "v.log",
        *(OLD.format(n, name, "text", [1, 2, 3, n]) for n, name in enumerate("abcd")),
        HEAD.format(5) + "Request cmpl-a aborted.",
        HEAD.format(5) + "Aborted request(s) cmpl-a,cmpl-b-0f3a9c21.",
        HEAD.format(6) + "Request cmpl-c failed (bad request): too long.",
        HEAD.format(7) + "Generated response cmpl-d: output: '', output_token_ids: [4],"
        " finish_reason: abort",
        HEAD.format(8) + "Aborted request(s) cmpl-of-before.",
    )
    found = vllm_log.read(path, tokenizer="characters")
    assert (found.input_tokens.tolist(), found.output_tokens.tolist()) == ([4, 4, 4], [0, 0, 1])
    assert shows(found.notes, "3 requests … aborted")
    assert shows(found.notes, "1 requests … failed")


@pytest.mark.parametrize("mark", ["<|image_pad|>", "<image>", "[IMG]", "<|audio|>"])
def test_prompts_of_vllm_with_images_are_counted(tmp_path, mark):
    path = log(
        tmp_path / "v.log",
        OLD.format(1, "a", f"look: {mark}", [1, 2]),
        OLD.format(2, "b", "look: <img src='x'>", [1, 3]),
    )
    assert shows(vllm_log.read(path, tokenizer="characters").notes, "1 prompts … images")


@pytest.mark.parametrize("form", ["text", "json"])
def test_requests_of_sglang_aborted_or_with_images(tmp_path, form):
    def finished(ids, meta, image=None):
        meta = {"id": "a"} | meta | {"e2e_latency": 1.5, "request_received_ts": 1779262962.5}
        if form == "json":
            request = {"rid": "a", "input_ids": ids, "image_data": image}
            event = {"event": "request.finished", "obj": request, "out": {"meta_info": meta}}
            return f"[2026-05-20 08:02:44] {json.dumps(event)}"
        return (
            f"[2026-05-20 08:02:44] Finish: obj=GenerateReqInput(rid='a', input_ids={ids},"
            f" image_data={image}), out={{'meta_info': {meta}}}"
        )

    def counts(prompt, answer):
        return {"prompt_tokens": prompt, "completion_tokens": answer}

    abort = {"finish_reason": {"type": "abort", "message": "Abort before prefill"}}
    stop = {"finish_reason": {"type": "stop", "matched": 2}}
    path = log(
        tmp_path / "s.log",
        finished([1, 2], stop | counts(2, 3)),
        finished([1, 2], abort | counts(2, 1)),
        finished([1, 2], abort | counts(0, 0)),
        finished([1, 2], abort),
        # One id stands for an image of 500 tokens.
        finished([1, 9], stop | counts(501, 3), image=["a.png"]),
        finished([1, 2], stop | counts(2, 3), image=[]),
    )
    found = sglang_log.read(path, block_tokens=1)
    assert found.input_tokens.tolist() == [2, 2, 501, 2]
    assert found.output_tokens.tolist() == [3, 1, 3, 3]
    # The blocks of the prompt with the image are its own.
    assert found.block_offsets.tolist() == [0, 2, 4, 505, 507]
    assert len(set(found.block_ids.tolist())) == 2 + 501
    assert shows(found.notes, "2 requests … aborted before")
    assert shows(found.notes, "1 requests were aborted: ")
    assert shows(found.notes, "1 prompts … images")


def test_older_logs_of_sglang_have_the_time_of_their_line(tmp_path):
    cut = FINISH.format("[1, 2, 3] ... [7, 8, 9]", 4000).replace(":44", ":46")
    found = sglang_log.read(
        log(tmp_path / "s.log", FINISH.format("[1, 2]", 2), "Decode batch", cut), block_tokens=1
    )
    assert (found.arrival_ns.tolist(), found.input_tokens.tolist()) == ([0, 2 * S], [2, 4000])
    assert found.block_offsets.tolist() == [0, 2, 4002]
    assert any("1 prompts" in note for note in found.notes)
    table = tmp_path / "r.parquet"
    own_table.write(table, found, ["kvtrace", "import"], 42)
    assert own_table.read(table).block_ids.tolist() == found.block_ids.tolist()
    bare = sglang_log.read(log(tmp_path / "s.log", FINISH.format("None", 5)))
    assert (bare.block_tokens, bare.session_id) == (0, None)
    assert shows(bare.notes[0], "another's cache")


@pytest.mark.parametrize(("line", "message"), [
    (FINISH.format("[1 2]", 1), "row 2: "),
    (FINISH.format("[1]", 1)[:-2], "row 2, column meta_info:"),
    (FINISH.format("[1]", -1), "row 2, column meta_info.prompt_tokens: -1.0 … 0"),
    (FINISH.format("[1]", 1).replace("'completion_tokens': 2", "'completion_tokens': 2, 'cached_tokens': 1e999"),
     "row 2, column meta_info.cached_tokens: inf"),
    (FINISH.format("[1]", 1).replace("'completion_tokens': 2, ", ""), "column meta_info.completion_tokens: None"),
    (FINISH.format("[1, 2]", 3), "row 2, column input_ids: 2 input_ids … 3 prompt_tokens"),
    (FINISH.format("[1]", 1)[26:], "row 2, column meta_info: … request_received_ts"),
    (FINISH.format("[1]", 1).replace("-05-", "-15-"), "row 2, column time: '2026-15-20T08:02:44'"),
])  # fmt: skip
def test_bad_lines_of_sglang_are_named(tmp_path, line, message):
    assert shows(fault(sglang_log, log(tmp_path / "s.log", FINISH.format("[1]", 1), line)), message)


def test_later_turns_of_the_new_sources_follow(tmp_path):
    waits = waits_of(tracelab.read(jsonl(tmp_path / "t.jsonl", ROUNDS)))
    # From the end of the answer before, 3, 63 and 4 s, to 60, 90 and 100 s.
    assert sorted(waits.delay_ns.tolist()) == [27 * S, 57 * S, 96 * S]
