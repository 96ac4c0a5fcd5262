"""Write sessions of AIPerf's agentic-code synthesizer (aiperf 0.13.0) as its own package writes
Mooncake rows.

Run with aiperf importable: `python make_aiperf_sessions.py OUT.jsonl`. Its defaults make prompts of
100,000 tokens and more, of which this takes the first sessions and turns, so that the sample stays
small.
"""

import json
import sys
import tempfile
from pathlib import Path

from aiperf.dataset.agentic_code_gen.models import SessionDistributionConfig
from aiperf.dataset.agentic_code_gen.session_synthesizer import SessionSynthesizer
from aiperf.dataset.agentic_code_gen.writer import write_dataset
from aiperf.dataset.loader.models import MooncakeTrace

SESSIONS, TURNS = 6, 5

config = SessionDistributionConfig()
sessions = SessionSynthesizer(config, seed=42).synthesize_sessions(SESSIONS)
with tempfile.TemporaryDirectory() as folder:
    rows = [
        json.loads(line)
        for line in write_dataset(sessions, Path(folder), config, seed=42)[0].open()
    ]
taken: dict[str, int] = {}
with Path(sys.argv[1]).open("w") as out:
    for row in rows:
        taken[row["session_id"]] = taken.get(row["session_id"], 0) + 1
        if taken[row["session_id"]] <= TURNS:
            MooncakeTrace.model_validate(row)
            out.write(json.dumps(row, separators=(",", ":")) + "\n")
