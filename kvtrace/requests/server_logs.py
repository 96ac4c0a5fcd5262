"""Logs of vLLM's and SGLang's servers, with requests logged: prompts, answers and times."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvtrace.core.errors import TraceError
from kvtrace.core.files import decode_json
from kvtrace.core.text import utf8_lines
from kvtrace.core.units import NS_PER_S
from kvtrace.requests import requests as reading
from kvtrace.requests.conversations import encoder

_DAY_NS = 86_400 * NS_PER_S
_YEAR_NS = 365 * _DAY_NS
_QUOTED = r"""('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|None)"""
_IDS = r"_token_ids: (?:None|\[([0-9, ]*)\])"
_VLLM_EVENT = re.compile(
    r"\] (?:Received request|Request|(Generated response)) (\S+?)"
    r"(?: \(streaming (?:complete|(delta))\))?(?: details)?: (.*)"
)
_VLLM_TIME = re.compile(r"\d\d-\d\d \d\d:\d\d:\d\d")
_VLLM_PROMPT = re.compile(rf"prompt: {_QUOTED}, (?:.*, )?prompt{_IDS}")
_VLLM_ANSWER = re.compile(rf"(?:output: {_QUOTED}, )?(?:output{_IDS}|finish_reason: )")


@reading.source(lambda start: b"Received request " in start.text and b"Params(" in start.text)
def vllm_log(path: Path, *, block_tokens: int = 16, tokenizer: str = "auto") -> reading.Requests:
    """Return the requests of the log at `path`, as `vllm serve --enable-log-requests` prints it.

    It holds prompts with `VLLM_LOGGING_LEVEL=DEBUG`, or in older releases; answers with
    `--enable-log-outputs`. TraceError if a line about a request is cut off or damaged, or the log
    holds no prompt; ConfigError for an unknown tokenizer.

    vLLM's log of requests: prompts as token ids or text, and answers. It has no sessions.
    """
    log, logged, texts = _Log(path, object), dict[str, _LoggedRequest](), 0
    encode, per_token, words = encoder(tokenizer)

    def units_of(text: str, ids: str | None) -> tuple[object, ...]:
        if ids is not None:
            return decode_json(f"[{ids}]".encode(), tuple[int, ...], path, row=number)
        units = encode(log.text(text, number) or "")
        return tuple(units[index : index + per_token] for index in range(0, len(units), per_token))

    for number, line in log:
        event = _vllm_event(line)
        if event is None:
            continue
        when, answer, name, text = event
        request = logged.setdefault(name, _LoggedRequest(log.ns(when, number)))
        match_of_text = (_VLLM_ANSWER if answer else _VLLM_PROMPT).match(text)
        if match_of_text is None and (answer or text.startswith("prompt: ")):
            field = "output" if answer else "prompt"
            raise log.fault(f"its {field}, or the token ids of it, are cut off", number, field)
        if answer and match_of_text is not None:
            request.answered_ns = log.ns(when, number)
            if match_of_text[2] is not None or request.output_tokens is None:
                request.output_tokens = len(units_of(match_of_text[1] or "None", match_of_text[2]))
        elif match_of_text is not None:
            request.units, texts = (
                units_of(match_of_text[1], match_of_text[2]),
                texts + (match_of_text[2] is None),
            )
            request.input_tokens = len(request.units)
    with_prompts = [request for request in logged.values() if request.units]
    if logged and not with_prompts:
        problem = (
            "it holds no prompt: start vLLM with VLLM_LOGGING_LEVEL=DEBUG and --enable-log-requests"
        )
        raise TraceError(problem, path=path)
    notes = [
        (
            "times in the log are whole seconds without year and zone; --max-log-len would have"
            " truncated prompts"
        )
    ]
    notes += reading.counted(
        (texts, f"prompts are logged as text only; their tokens are {words}"),
        (len(logged) - len(with_prompts), "requests without prompts are omitted"),
        (
            sum(request.output_tokens is None for request in with_prompts),
            "requests have no answer in the log: output_tokens is 0",
        ),
    )
    return log.requests("vllm-log", with_prompts, block_tokens, notes)


def _vllm_event(line: str) -> tuple[str, str | None, str, str] | None:
    """Return the first request or answer of `line`: time, whether an answer, name and text.

    None if there is none, or it is a part of an answer that is streamed.

    The time stands between the bracket before the event and its own, so that each part of a line is
    looked at once, however long it is.
    """
    for event in _VLLM_EVENT.finditer(line):
        begin = line.rfind("]", 0, event.start()) + 1
        if (when := _VLLM_TIME.search(line, begin, event.start())) is not None:
            answer, name, is_part, text = event.groups()
            return None if is_part else (when[0], answer, name, text)
    return None


_TIME = re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:\.\d+)?")
_NUMBER = re.compile(r"""['"](\w+)['"]: (-?[0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?)\b""")
_INPUT_IDS = re.compile(r"""\binput_ids(?:=|": )\[([0-9, ]*)\](?! \.\.\. )""")
_CONVERSATION = re.compile(rf"""conversation_id(?:=|": ){_QUOTED}""")
_LONGEST_S = 2.0**31


@reading.source(
    lambda start: b"Finish: obj=" in start.text or b'"event": "request.finished"' in start.text
)
def sglang_log(path: Path, *, block_tokens: int = 16) -> reading.Requests:
    """Return the requests of the log at `path`, as SGLang prints it with `--log-requests`, as text
    or as JSON.

    A request is a line written at its end, with lengths of prompt and answer, and its arrival; with
    `--log-requests-level 3` also the token ids of the prompt. TraceError if such a line is cut off or
    damaged, or has neither an arrival nor its own time.

    SGLang's log of finished requests: lengths and times, and conversations if the client names them.
    """
    log, logged, cached, truncated = _Log(path, object), list[_LoggedRequest](), 0, 0
    for number, line in log:
        if "Finish: obj=" not in line and '"request.finished"' not in line:
            continue
        meta_index = max(line.rfind("'meta_info': {"), line.rfind('"meta_info": {'))
        if meta_index < 0 or not line.rstrip().endswith("}}"):
            raise log.fault("cut off within the fields of the request", number, "meta_info")
        meta = {"cached_tokens": 0.0} | {
            name: float(value) for name, value in _NUMBER.findall(line[meta_index:])
        }
        for name in ("prompt_tokens", "completion_tokens", "cached_tokens"):
            if not 0 <= meta.get(name, -1) <= reading.MAX_TOKENS:
                raise log.fault(
                    f"{meta.get(name)} must be from 0 to {reading.MAX_TOKENS} tokens",
                    number,
                    f"meta_info.{name}",
                )
        tokens = int(meta["prompt_tokens"])
        ids_match, name_match, time_match = (
            _INPUT_IDS.search(line, 0, meta_index),
            _CONVERSATION.search(line, 0, meta_index),
            _TIME.search(line),
        )
        units = (
            decode_json(f"[{ids_match[1]}]".encode(), tuple[int, ...], path, row=number)
            if ids_match
            else None
        )
        if units is not None and len(units) != tokens:
            raise log.fault(
                f"{len(units)} input_ids, but {tokens} prompt_tokens", number, "input_ids"
            )
        latency_ns = round(min(max(0.0, meta.get("e2e_latency", 0.0)), _LONGEST_S) * NS_PER_S)
        if 0 < meta.get("request_received_ts", 0) < _LONGEST_S:
            arrival_ns = round(meta["request_received_ts"] * NS_PER_S)
        elif time_match is None:
            raise log.fault(
                "neither request_received_ts nor the time of the line", number, "meta_info"
            )
        else:
            arrival_ns = (
                reading.wall_ns(time_match[0].replace(" ", "T"), log, number, "time") - latency_ns
            )
        cached, truncated = (
            cached + int(meta["cached_tokens"]),
            truncated + (units is None and "input_ids" in line[:meta_index]),
        )
        session = log.text(name_match[1], number) if name_match else None
        logged.append(
            _LoggedRequest(
                arrival_ns,
                arrival_ns + latency_ns,
                units,
                tokens,
                int(meta["completion_tokens"]),
                session,
            )
        )
    notes = reading.counted(
        (
            truncated,
            "prompts are truncated in the log, so their blocks are unknown (--log-requests-level 3)",
        )
    )
    if cached:
        notes.append(
            f"{cached} prompt tokens were hits in SGLang's own cache, which is not used here"
        )
    return log.requests("sglang-log", logged, block_tokens, notes)


@dataclass(slots=True)
class _LoggedRequest:
    """One request in a server's log."""

    arrival_ns: int
    answered_ns: int | None = None
    units: tuple[object, ...] | None = None
    """Tokens of the prompt as ids or pieces of text; None if the log has neither."""
    input_tokens: int = 0
    output_tokens: int | None = None
    session: str | None = None


class _Log(reading.JsonLines[Any]):
    """The lines of a server's log as text, and the requests in them."""

    _is_leap, _last_ns = False, 0

    def __iter__(self) -> Iterator[tuple[int, str]]:
        """Yield each line and its number, from 1; invalid UTF-8 is replaced."""
        for number, line in enumerate(utf8_lines(self.path), 1):
            self._digest.update(line)
            yield number, line.decode(errors="replace")

    def text(self, quoted: str, number: int) -> str | None:
        """Return the text, or None, of which `quoted` is the Python literal."""
        try:
            value: str | None = ast.literal_eval(quoted)
        except (SyntaxError, ValueError):
            raise self.fault("not a Python string", number, None) from None
        return value

    def ns(self, text: str, number: int) -> int:
        """Return the time of a text such as 12-31 23:59:59, without a year, in ns.

        Times continue over New Year; a 29 February makes the year a leap year.
        """
        self._is_leap |= text.startswith("02-29")
        time_ns, new_year = (
            reading.wall_ns(f"2024-{day}", self, number, "time")
            for day in (text.replace(" ", "T"), "01-01")
        )
        in_year = time_ns - new_year - _DAY_NS * (not self._is_leap and text >= "03")
        self._last_ns = (
            in_year + max(0, self._last_ns - in_year + _YEAR_NS // 2) // _YEAR_NS * _YEAR_NS
        )
        return self._last_ns

    def requests(
        self, kind: str, logged: list[_LoggedRequest], block_tokens: int, notes: list[str]
    ) -> reading.Requests:
        """Return the requests `logged`, with blocks of prompt tokens if the log has any."""
        block_size, gathered = (
            block_tokens if any(request.units is not None for request in logged) else 0,
            reading.Gathered(),
        )
        for request in logged:
            chain = reading.full_blocks(request.units or (), block_tokens)
            gathered.add(
                request.arrival_ns,
                request.input_tokens,
                request.output_tokens or 0,
                chain,
                request.session,
                request.answered_ns,
            )
        if block_size:
            sharing_note = f"the log has no block ids: {block_size} equal tokens after an equal prefix are one block"
        elif any(request.session is not None for request in logged):
            sharing_note = (
                "the log has no prompt tokens: prompts share a prefix only within a conversation"
            )
        else:
            sharing_note = (
                "the log has neither prompt tokens nor conversations: no request reuses another's"
                " cache"
            )
        return gathered.requests(kind, self.path, self.sha256, block_size, [sharing_note, *notes])
