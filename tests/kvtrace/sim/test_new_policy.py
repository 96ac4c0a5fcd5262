"""A new eviction policy is one file and one line of the registry: here MRU, added to a copy of the program."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]

MRU = '''"""MRU: the one used last leaves first."""

from kvtrace.sim.policies.fifo import on_insert, on_remove
from kvtrace.sim.policies.queues import enter, leave, operation, queue_of

__all__ = ["choose", "on_hit", "on_insert", "on_remove"]


@operation
def on_hit(world, t, slot, _):
    leave(world, t, slot)
    enter(world, t, slot, 0)
    return 0


@operation
def choose(world, t, _incoming, _):
    return queue_of(world, t, 0).head
'''


def test_a_file_and_a_line_make_a_policy(tmp_path):
    shutil.copytree(ROOT / "kvtrace", tmp_path / "kvtrace", ignore=shutil.ignore_patterns("__pycache__"))
    policies = tmp_path / "kvtrace" / "sim" / "policies"
    (policies / "mru.py").write_text(MRU)
    registry = (policies / "policies.py").read_text()
    (policies / "policies.py").write_text(registry.replace('    TTL = "ttl"\n', '    TTL = "ttl"\n    MRU = "mru"\n'))
    # Room for two: c takes b's place, a hits, d takes a's, b takes d's, c hits. LRU hits nothing.
    lines = [{"timestamp": n, "input_length": 512, "output_length": 1, "hash_ids": [ord(c)]} for n, c in
             enumerate("abcadbc")]  # fmt: skip
    (tmp_path / "r.jsonl").write_text("\n".join(map(json.dumps, lines)))
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    hits = {}
    for policy in ("mru", "lru"):
        done = subprocess.run(
            [sys.executable, "-m", "kvtrace.cli", "sim", "r.jsonl", "--source", "mooncake", "--policy", policy,
             "--capacity-blocks", "2", "--json"],
            cwd=tmp_path, env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        hits[policy] = json.loads(done.stdout)["results"][0]["hits"]
    assert hits == {"mru": 2, "lru": 0}
