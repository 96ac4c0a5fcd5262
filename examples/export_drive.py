"""Give a drive file to others' simulators: AISimulate's G3 tier and LMCache's mock backends.

    python examples/export_drive.py drive.json --object 2MiB --gigabytes 500

Their models are simpler than the file: one bandwidth for all sizes and depths, and one latency. So
the figures are of the cell that is nearest to one's own objects and depth, of reads alone and of
writes alone. Units are theirs: GB is 10^9 bytes for AISimulate, and 2^30 for LMCache.
"""

import argparse
import json
import sys
from math import log

parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
)
parser.add_argument("file", help="drive.json of kvreplay scorecard")
parser.add_argument("--object", default="2MiB", help="what a block or chunk takes: 2MiB")
parser.add_argument("--depth", type=int, default=16, help="how many are in flight")
parser.add_argument("--gigabytes", type=int, default=500, help="what the tier may hold, 10^9 bytes")
asked = parser.parse_args()

units = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
object_bytes = int(float(asked.object[:-3]) * units[asked.object[-3:]])
with open(asked.file, encoding="utf-8") as file:  # noqa: PTH123 - as short as it goes
    drive = json.load(file)


def cell(read_share: int, depth: int) -> dict:
    """Return the measured cell of reads (1) or writes (0) that is nearest in size, then in depth."""
    known = [c for c in drive["cells"] if c["read_share"] == read_share and c["bytes_per_s"]]
    return min(
        known, key=lambda c: (abs(log(c["io_bytes"] / object_bytes)), abs(log(c["depth"] / depth)))
    )


reads, writes = cell(1, asked.depth), cell(0, asked.depth)
latency_ms = (
    min(c["read"]["p50_ns"] for c in drive["cells"] if c["read_share"] == 1 and c["bytes_per_s"])
    / 1e6
)
gb = {"read": reads["bytes_per_s"] / 1e9, "write": writes["bytes_per_s"] / 1e9}
gib = {"read": reads["bytes_per_s"] / 2**30, "write": writes["bytes_per_s"] / 2**30}
latency, mock_gb = f"{latency_ms:.3f}", asked.gigabytes * 10**9 >> 30
lines = [
    (
        f"# {drive['device']}: {reads['io_bytes'] >> 10} KiB, {reads['depth']} in flight."
        " AISimulate, beside host_offload:"
    ),
    "g3_offload:",
    "  scope: worker_local",
    f"  num_g3_blocks: {asked.gigabytes * 10**9 // object_bytes}",
    f"  latency_to_first_byte_ms: {latency}",
    *(f"  {way}_bandwidth_gbps: {gb[way]:.3f}" for way in gb),
    "",
    "# LMCache, remote_url of a backend that takes the drive's time:",
    f"mock://{mock_gb}/?peeking_latency={latency}&"
    + "&".join(f"{way}_throughput={gib[way]:.3f}" for way in gib),
    "",
    "# LMCache multi-process, an L2 adapter:",
    json.dumps(
        {"type": "mock", "max_size_gb": mock_gb, "mock_bandwidth_gb": round(min(gib.values()), 3)}
    ),
]
sys.stdout.write("\n".join(lines) + "\n")
