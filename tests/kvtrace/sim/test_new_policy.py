"""A new eviction policy is one C file and one line of the registry.

Here MRU, added to a copy of the program.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]

MRU = """// MRU: the one used last leaves first.
#include "../sim.h"

InsertHook fifo_on_insert;
RemoveHook fifo_on_remove;

EXPORT void mru_on_insert(World *world, int64_t level, int64_t slot, int64_t now) {
    fifo_on_insert(world, level, slot, now);
}

EXPORT void mru_on_remove(World *world, int64_t level, int64_t slot, int64_t is_evicted) {
    fifo_on_remove(world, level, slot, is_evicted);
}

EXPORT void mru_on_hit(World *world, int64_t level, int64_t slot) {
    list_leave(world, level, slot);
    list_enter(world, level, slot, 0);
}

EXPORT int64_t mru_choose_victim(World *world, int64_t level, UNUSED int64_t incoming) {
    return list_of(world, level, 0)->head;
}
"""


@pytest.mark.full
def test_a_file_and_a_line_make_a_policy(tmp_path):
    for program in ("kvtrace", "kvreplay", "kvdistill"):
        shutil.copytree(
            ROOT / program, tmp_path / program, ignore=shutil.ignore_patterns("__pycache__", "*.so")
        )
    (tmp_path / "kvtrace" / "native" / "policies" / "mru.c").write_text(MRU)
    policies = tmp_path / "kvtrace" / "sim" / "policies.py"
    policies.write_text(
        policies.read_text().replace('    TTL = "ttl"\n', '    TTL = "ttl"\n    MRU = "mru"\n')
    )
    environment = {name: value for name, value in os.environ.items() if name != "KVTRACE_NATIVE"}
    shutil.copy(ROOT / "hatch_build.py", tmp_path)
    build = [sys.executable, tmp_path / "hatch_build.py"]
    subprocess.run(build, cwd=tmp_path, env=environment | {"CFLAGS": "-O0 -fno-lto"}, check=True)
    # Room for two: c takes b's place, a hits, d takes a's, b takes d's, c hits. LRU hits nothing.
    lines = [{"timestamp": n, "input_length": 512, "output_length": 1, "hash_ids": [ord(c)]} for n, c in
             enumerate("abcadbc")]  # fmt: skip
    (tmp_path / "r.jsonl").write_text("\n".join(map(json.dumps, lines)))
    hits = {}
    for policy in ("mru", "lru"):
        done = subprocess.run(
            [sys.executable, "-m", "kvtrace.cli", "sim", "r.jsonl", "--source", "mooncake", "--policy", policy,
             "--capacity-blocks", "2", "--json"],
            cwd=tmp_path, env=environment | {"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        hits[policy] = json.loads(done.stdout)["results"][0]["hits"]
    assert hits == {"mru": 2, "lru": 0}
