"""Logs of vLLM's and SGLang's servers, with requests logged: prompts, answers and times."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvtrace.core.errors import TraceError
from kvtrace.core.files import decode_json
from kvtrace.core.text import utf8_lines
from kvtrace.core.units import NS_PER_S
from kvtrace.requests.block_ids import full_blocks
from kvtrace.requests.conversations import encoder
from kvtrace.requests.json_lines import JsonLines, wall_ns
from kvtrace.requests.notes import counted
from kvtrace.requests.request_collector import RequestCollector
from kvtrace.requests.requests import MAX_TOKENS, Requests
from kvtrace.requests.source_files import source

_DAY_NS = 86_400 * NS_PER_S
_YEAR_NS = 365 * _DAY_NS
_QUOTED = r"""('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|None)"""
_IDS = r"_token_ids: (?:None|\[([0-9, ]*)\])"
_VLLM_EVENT = re.compile(
    r"\] (?:Received request|Request|(Generated response)) (\S+?)"
    r"(?: \(streaming (?:complete|(delta))\))?(?: details)?: (.*)"
)
_VLLM_END = re.compile(
    r"\d\d-\d\d \d\d:\d\d:\d\d \[[^\]\n]{0,200}\]"
    r" (?:Request (\S+) (aborted|failed)\b|Aborted request\(s\) (\S+)\.)"
)
"""The line of a request that ended early, with its name, or of several."""
_PLACEHOLDERS = re.compile(
    r"<\|(?:image|image_pad|image_\d+|begin_of_image|vision_start|video|video_pad|media_pad|audio"
    r"|audio_pad|AUDIO)\|>|<image>|<video>|<audio>|\[IMG\]|<start_of_image>|<image_soft_token>"
    r"|<IMG_CONTEXT>"
)
"""What prompts hold in place of images, video and audio, by the templates of common models."""
_VLLM_TIME = re.compile(r"\d\d-\d\d \d\d:\d\d:\d\d")
_VLLM_PROMPT = re.compile(rf"prompt: {_QUOTED}, (?:.*, )?prompt{_IDS}")
_VLLM_ANSWER = re.compile(rf"(?:output: {_QUOTED}, )?(?:output{_IDS}|finish_reason: )")


@source(lambda start: b"Received request " in start.text and b"Params(" in start.text)
def vllm_log(path: Path, *, block_tokens: int = 16, tokenizer: str = "auto") -> Requests:
    """Return the requests of the log at `path`, as `vllm serve --enable-log-requests` prints it.

    It holds prompts with `VLLM_LOGGING_LEVEL=DEBUG`, or in older releases; answers with
    `--enable-log-outputs`. TraceError if a line about a request is cut off or damaged, or the log
    holds no prompt; ConfigError for an unknown tokenizer.

    vLLM's log of requests: prompts as token ids or text, and answers. It has no sessions.
    """
    encode, per_token, words = encoder(tokenizer)
    log = _Log(path, object)
    requests = _VllmRequests(log, encode, per_token)
    for number, line in log:
        requests.read_line(line, number)
    with_prompts = [
        request
        for name, request in requests.logged.items()
        if request.units and name not in requests.failed
    ]
    if requests.logged and not with_prompts:
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
    failed = len(requests.failed.intersection(requests.logged))
    notes += counted(
        (requests.texts, f"prompts are logged as text only; their tokens are {words}"),
        (failed, "requests that failed, such as bad requests, are left out"),
        (
            len(requests.logged) - failed - len(with_prompts),
            "requests without prompts are omitted",
        ),
        (
            sum(request.output_tokens is None for request in with_prompts),
            "requests have no answer in the log: output_tokens is 0",
        ),
        (
            sum(request.is_aborted for request in with_prompts),
            "requests were aborted: their prompts count as a whole, and their answers as logged",
        ),
        (sum(request.has_media for request in with_prompts), _MEDIA_NOTE),
    )
    return log.requests("vllm-log", with_prompts, block_tokens, notes)


_MEDIA_NOTE = (
    "prompts hold images, video or audio: their tokens count as the log has them, mostly one each,"
    " and different images count as equal"
)


@dataclass(slots=True)
class _VllmRequests:
    """The requests of vLLM's log by their names."""

    log: _Log
    encode: Callable[[str], Sequence[object]]
    per_token: int
    """Units of `encode` in a token."""
    logged: dict[str, _LoggedRequest] = field(default_factory=dict)
    failed: set[str] = field(default_factory=set)
    texts: int = 0
    """Number of prompts that are logged as text alone."""

    def read_line(self, line: str, number: int) -> None:
        """Enter what line `number` says of a request; TraceError if it is cut off or damaged."""
        event = _vllm_event(line)
        if event is None:
            self._read_early_end(line)
            return
        when, answer, name, text = event
        request = self.logged.setdefault(name, _LoggedRequest(self.log.ns(when, number)))
        if answer:
            self._read_answer(request, text, when, number)
            request.is_aborted |= line.rstrip().endswith("finish_reason: abort")
        elif (match_of_prompt := _VLLM_PROMPT.match(text)) is not None:
            request.units = self._units(match_of_prompt[1], match_of_prompt[2], number)
            request.input_tokens = len(request.units)
            request.has_media = _PLACEHOLDERS.search(match_of_prompt[1]) is not None
            self.texts += match_of_prompt[2] is None
        elif text.startswith("prompt: "):
            raise self._cut_off("prompt", number)

    def _read_answer(self, request: _LoggedRequest, text: str, when: str, number: int) -> None:
        match_of_answer = _VLLM_ANSWER.match(text)
        if match_of_answer is None:
            raise self._cut_off("output", number)
        request.answered_ns = self.log.ns(when, number)
        if match_of_answer[2] is not None or request.output_tokens is None:
            units = self._units(match_of_answer[1] or "None", match_of_answer[2], number)
            request.output_tokens = len(units)

    def _read_early_end(self, line: str) -> None:
        """Enter the requests that the line says were aborted or failed."""
        end = _VLLM_END.search(line)
        if end is None:
            return
        for name in [end[1]] if end[1] else end[3].split(","):
            # The engine's own names have a suffix.
            known_name = name if name in self.logged else name.rpartition("-")[0]
            if end[2] == "failed":
                self.failed.add(known_name)
            elif known_name in self.logged:
                self.logged[known_name].is_aborted = True

    def _units(self, text: str, ids: str | None, number: int) -> tuple[object, ...]:
        """Return the tokens of a logged text as ids, or as pieces of the text."""
        if ids is not None:
            path = self.log.path
            return decode_json(f"[{ids}]".encode(), tuple[int, ...], path, row=number)
        units = self.encode(self.log.text(text, number) or "")
        starts = range(0, len(units), self.per_token)
        return tuple(units[start : start + self.per_token] for start in starts)

    def _cut_off(self, column: str, number: int) -> TraceError:
        message = f"its {column}, or the token ids of it, are cut off"
        return self.log.fault(message, number, column)


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
_SGLANG_ABORT = re.compile(r"""['"]finish_reason['"]: \{['"]type['"]: ['"]abort['"]""")
_SGLANG_MEDIA = re.compile(r"""\b(?:image|video|audio)_data(?:=|": )(?!None\b|null\b|\[\])""")
_LONGEST_S = 2.0**31


@source(lambda start: b"Finish: obj=" in start.text or b'"event": "request.finished"' in start.text)
def sglang_log(path: Path, *, block_tokens: int = 16) -> Requests:
    """Return the requests of the log at `path`, as SGLang prints it with `--log-requests`, as text
    or as JSON.

    A request is a line written at its end, with lengths of prompt and answer, and its arrival; with
    `--log-requests-level 3` also the token ids of the prompt. TraceError if such a line is cut off or
    damaged, or has neither an arrival nor its own time.

    SGLang's log of finished requests: lengths and times, and conversations if the client names them.
    """
    log = _Log(path, object)
    logged: list[_LoggedRequest] = []
    cached_tokens = truncated = unserved = 0
    for number, line in log:
        if "Finish: obj=" not in line and '"request.finished"' not in line:
            continue
        meta_index = max(line.rfind("'meta_info': {"), line.rfind('"meta_info": {'))
        if meta_index < 0 or not line.rstrip().endswith("}}"):
            raise log.fault("cut off within the fields of the request", number, "meta_info")
        meta = {"cached_tokens": 0.0} | {
            name: float(value) for name, value in _NUMBER.findall(line[meta_index:])
        }
        is_aborted = _SGLANG_ABORT.search(line, meta_index) is not None
        if is_aborted and not meta.get("prompt_tokens"):
            unserved += 1
            continue
        _check_sglang_counts(meta, log, number)
        has_media = _SGLANG_MEDIA.search(line, 0, meta_index) is not None
        units = _sglang_units(line, meta_index, int(meta["prompt_tokens"]), log, number)
        truncated += not has_media and units is None and "input_ids" in line[:meta_index]
        cached_tokens += int(meta["cached_tokens"])
        name_match = _CONVERSATION.search(line, 0, meta_index)
        arrival_ns, latency_ns = _sglang_times(line, meta, log, number)
        logged.append(
            _LoggedRequest(
                arrival_ns,
                arrival_ns + latency_ns,
                units,
                int(meta["prompt_tokens"]),
                int(meta["completion_tokens"]),
                log.text(name_match[1], number) if name_match else None,
                is_aborted,
                has_media,
            )
        )
    notes = counted(
        (
            truncated,
            "prompts are truncated in the log, so their blocks are unknown (--log-requests-level 3)",
        ),
        (unserved, "requests were aborted before their prefill, and are left out"),
        (
            sum(request.is_aborted for request in logged),
            "requests were aborted: their prompts count as a whole, and their answers as logged",
        ),
        (
            sum(request.has_media for request in logged),
            "prompts hold images, video or audio, whose tokens count and whose blocks are unknown",
        ),
    )
    if cached_tokens:
        notes.append(
            f"{cached_tokens} prompt tokens were hits in SGLang's own cache, which is not used here"
        )
    return log.requests("sglang-log", logged, block_tokens, notes)


def _check_sglang_counts(meta: dict[str, float], log: _Log, number: int) -> None:
    """Raise TraceError if a count of line `number` is missing or out of range."""
    for name in ("prompt_tokens", "completion_tokens", "cached_tokens"):
        if not 0 <= meta.get(name, -1) <= MAX_TOKENS:
            problem = f"{meta.get(name)} must be from 0 to {MAX_TOKENS} tokens"
            raise log.fault(problem, number, f"meta_info.{name}")


def _sglang_units(
    line: str, meta_index: int, tokens: int, log: _Log, number: int
) -> tuple[int, ...] | None:
    """Return the token ids of a prompt of `tokens` tokens; None if the log has not all of them.

    Of a prompt with images, video or audio the log has one id for each of them, while the count has
    all their tokens. TraceError if the numbers of ids and tokens of another prompt differ.
    """
    ids_match = _INPUT_IDS.search(line, 0, meta_index)
    if ids_match is None or _SGLANG_MEDIA.search(line, 0, meta_index) is not None:
        return None
    units = decode_json(f"[{ids_match[1]}]".encode(), tuple[int, ...], log.path, row=number)
    if len(units) != tokens:
        raise log.fault(f"{len(units)} input_ids, but {tokens} prompt_tokens", number, "input_ids")
    return units


def _sglang_times(line: str, meta: dict[str, float], log: _Log, number: int) -> tuple[int, int]:
    """Return the arrival of a request and its latency, in ns.

    TraceError if the line has neither an arrival nor its own time.
    """
    latency_ns = round(min(max(0.0, meta.get("e2e_latency", 0.0)), _LONGEST_S) * NS_PER_S)
    if 0 < meta.get("request_received_ts", 0) < _LONGEST_S:
        return round(meta["request_received_ts"] * NS_PER_S), latency_ns
    time_match = _TIME.search(line)
    if time_match is None:
        problem = "neither request_received_ts nor the time of the line"
        raise log.fault(problem, number, "meta_info")
    end_ns = wall_ns(time_match[0].replace(" ", "T"), log, number, "time")
    return end_ns - latency_ns, latency_ns


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
    is_aborted: bool = False
    """Whether its client, or the server, ended it early."""
    has_media: bool = False
    """Whether its prompt holds images, video or audio."""


class _Log(JsonLines[Any]):
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
            wall_ns(f"2024-{day}", self, number, "time")
            for day in (text.replace(" ", "T"), "01-01")
        )
        in_year = time_ns - new_year - _DAY_NS * (not self._is_leap and text >= "03")
        self._last_ns = (
            in_year + max(0, self._last_ns - in_year + _YEAR_NS // 2) // _YEAR_NS * _YEAR_NS
        )
        return self._last_ns

    def requests(
        self, kind: str, logged: list[_LoggedRequest], block_tokens: int, notes: list[str]
    ) -> Requests:
        """Return the requests `logged`, with blocks of prompt tokens if the log has any."""
        block_size, gathered = (
            block_tokens if any(request.units is not None for request in logged) else 0,
            RequestCollector(has_contents=True),
        )
        for request in logged:
            chain = full_blocks(request.units or (), block_tokens)
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
        return gathered.build_requests(
            kind, self.path, self.sha256, block_size, [sharing_note, *notes]
        )
