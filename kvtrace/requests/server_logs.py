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
_VLLM = re.compile(
    r"(\d\d-\d\d \d\d:\d\d:\d\d)[^]]*\] (?:Received request|Request|(Generated response)) (\S+?)"
    r"(?: \(streaming (?:complete|(delta))\))?(?: details)?: (.*)"
)
_VLLM_PROMPT = re.compile(rf"prompt: {_QUOTED}, (?:.*, )?prompt{_IDS}")
_VLLM_ANSWER = re.compile(rf"(?:output: {_QUOTED}, )?(?:output{_IDS}|finish_reason: )")


@reading.source(lambda start: b"Received request " in start.text and b"Params(" in start.text)
def vllm_log(path: Path, *, block_tokens: int = 16, tokenizer: str = "auto") -> reading.Requests:
    """Return the requests of the log at `path`, as `vllm serve --enable-log-requests` prints it.

    Prompts are in it with `VLLM_LOGGING_LEVEL=DEBUG`, or in releases of before; answers with
    `--enable-log-outputs`. TraceError if a line about a request is cut off or damaged, or no prompt
    is in the log; ConfigError if no such tokenizer.

    What vLLM prints of requests: their prompts by token ids or as text, and their answers. It names
    no sessions.
    """
    log, known, texts = _Log(path, object), dict[str, _Logged](), 0
    encode, per_token, words = encoder(tokenizer)

    def units_of(text: str, ids: str | None) -> tuple[Any, ...]:
        if ids is not None:
            return decode_json(f"[{ids}]".encode(), tuple[int, ...], path, row=number)
        units = encode(log.text(text, number) or "")
        return tuple(units[at : at + per_token] for at in range(0, len(units), per_token))

    for number, line in log:
        if (match := _VLLM.search(line)) is None or match[4]:
            continue
        when, answer, name, _, rest = match.groups()
        said = known.setdefault(name, _Logged(log.ns(when, number)))
        found = (_VLLM_ANSWER if answer else _VLLM_PROMPT).match(rest)
        if found is None and (answer or rest.startswith("prompt: ")):
            where = "output" if answer else "prompt"
            raise log.fault(f"its {where} is cut off, or the token ids of it", number, where)
        if answer and found is not None:
            said.answered_ns = log.ns(when, number)
            if found[2] is not None or said.output_tokens is None:
                said.output_tokens = len(units_of(found[1] or "None", found[2]))
        elif found is not None:
            said.units, texts = units_of(found[1], found[2]), texts + (found[2] is None)
            said.input_tokens = len(said.units)
    kept = [said for said in known.values() if said.units]
    if known and not kept:
        why = (
            "no prompt is in it: start vLLM with VLLM_LOGGING_LEVEL=DEBUG, beside"
            " --enable-log-requests"
        )
        raise TraceError(why, path=path)
    notes = [
        (
            "the log says neither year nor zone, and times of whole seconds; --max-log-len would have"
            " cut prompts"
        )
    ]
    notes += reading.counted(
        (texts, f"prompts are logged as text alone, whose tokens are {words}"),
        (len(known) - len(kept), "requests without their prompts are left out"),
        (
            sum(said.output_tokens is None for said in kept),
            "requests have no answer in the log: output_tokens is 0",
        ),
    )
    return log.requests("vllm-log", kept, block_tokens, notes)


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

    Each is a line that it finished, which says how long prompt and answer were, and when it came;
    with `--log-requests-level 3` also the token ids of the prompt. TraceError if such a line is cut
    off or damaged, or says neither when it came nor when it was written.

    What SGLang prints as requests finish: lengths and times; conversations where the client names
    them.
    """
    log, found, cached, cut = _Log(path, object), list[_Logged](), 0, 0
    for number, line in log:
        if "Finish: obj=" not in line and '"request.finished"' not in line:
            continue
        at = max(line.rfind("'meta_info': {"), line.rfind('"meta_info": {'))
        if at < 0 or not line.rstrip().endswith("}}"):
            raise log.fault("cut off within what it says of the request", number, "meta_info")
        meta = {"cached_tokens": 0.0} | {
            name: float(value) for name, value in _NUMBER.findall(line[at:])
        }
        for name in ("prompt_tokens", "completion_tokens", "cached_tokens"):
            if not 0 <= meta.get(name, -1) <= reading.MAX_TOKENS:
                raise log.fault(
                    f"{meta.get(name)} must be from 0 to {reading.MAX_TOKENS} tokens",
                    number,
                    f"meta_info.{name}",
                )
        tokens = int(meta["prompt_tokens"])
        given, named, when = (
            _INPUT_IDS.search(line, 0, at),
            _CONVERSATION.search(line, 0, at),
            _TIME.search(line),
        )
        units = (
            decode_json(f"[{given[1]}]".encode(), tuple[int, ...], path, row=number)
            if given
            else None
        )
        if units is not None and len(units) != tokens:
            raise log.fault(
                f"{len(units)} input_ids, but {tokens} prompt_tokens", number, "input_ids"
            )
        took_ns = round(min(max(0.0, meta.get("e2e_latency", 0.0)), _LONGEST_S) * NS_PER_S)
        if 0 < meta.get("request_received_ts", 0) < _LONGEST_S:
            asked_ns = round(meta["request_received_ts"] * NS_PER_S)
        elif when is None:
            raise log.fault(
                "neither request_received_ts nor the time of the line", number, "meta_info"
            )
        else:
            asked_ns = reading.wall_ns(when[0].replace(" ", "T"), log, number, "time") - took_ns
        cached, cut = (
            cached + int(meta["cached_tokens"]),
            cut + (units is None and "input_ids" in line[:at]),
        )
        session = log.text(named[1], number) if named else None
        found.append(
            _Logged(
                asked_ns, asked_ns + took_ns, units, tokens, int(meta["completion_tokens"]), session
            )
        )
    notes = reading.counted(
        (cut, "prompts are logged in part: their blocks are not known (--log-requests-level 3)")
    )
    if cached:
        notes.append(f"the {cached} prompt tokens that SGLang found in its own cache are not used")
    return log.requests("sglang-log", found, block_tokens, notes)


@dataclass(slots=True)
class _Logged:
    """What a server's log says of one request."""

    asked_ns: int
    answered_ns: int | None = None
    units: tuple[Any, ...] | None = None
    """Of the prompt, one a token: ids, or pieces of text; None if the log has neither."""
    input_tokens: int = 0
    output_tokens: int | None = None
    session: str | None = None


class _Log(reading.JsonLines[Any]):
    """The lines of a server's log, as text, and what they come to."""

    _is_leap, _last_ns = False, 0

    def __iter__(self) -> Iterator[tuple[int, str]]:
        """Yield each line and its number, from 1; what is no UTF-8 in it is replaced."""
        for number, line in enumerate(utf8_lines(self.path), 1):
            self._digest.update(line)
            yield number, line.decode(errors="replace")

    def text(self, quoted: str, number: int) -> str | None:
        """Return the text, or None, that Python wrote as `quoted`."""
        try:
            found: str | None = ast.literal_eval(quoted)
        except (SyntaxError, ValueError):
            raise self.fault("no text as Python writes it", number, None) from None
        return found

    def ns(self, text: str, number: int) -> int:
        """Return the time of such as 12-31 23:59:59, without a year.

        They go on, with a 29 February if one is there.
        """
        self._is_leap |= text.startswith("02-29")
        at, new_year = (
            reading.wall_ns(f"2024-{day}", self, number, "time")
            for day in (text.replace(" ", "T"), "01-01")
        )
        in_year = at - new_year - _DAY_NS * (not self._is_leap and text >= "03")
        self._last_ns = (
            in_year + max(0, self._last_ns - in_year + _YEAR_NS // 2) // _YEAR_NS * _YEAR_NS
        )
        return self._last_ns

    def requests(
        self, kind: str, logged: list[_Logged], block_tokens: int, notes: list[str]
    ) -> reading.Requests:
        """Return the requests `logged`.

        With blocks by the token ids of prompts, if any has its own in the log.
        """
        block, found = (
            block_tokens if any(said.units is not None for said in logged) else 0,
            reading.Gathered(),
        )
        for said in logged:
            chain = reading.full_blocks(said.units or (), block_tokens)
            found.add(
                said.asked_ns,
                said.input_tokens,
                said.output_tokens or 0,
                chain,
                said.session,
                said.answered_ns,
            )
        if block:
            shared = (
                f"the log has no block ids: {block} equal tokens behind equal tokens are one block"
            )
        elif any(said.session is not None for said in logged):
            shared = (
                "the log has no prompt's tokens: prompts share a prefix only within a conversation"
            )
        else:
            shared = (
                "the log has no prompt's tokens and no conversation: no request reuses another's"
                " cache"
            )
        return found.requests(kind, self.path, self.sha256, block, [shared, *notes])
