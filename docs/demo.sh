#!/bin/sh
# The main job, end to end, small enough for any machine: about 4 GB on the disk for a moment.
set -eu
say() { printf '\n== %s\n' "$*"; }
rm -rf "$DEMO"
mkdir -p "$DEMO/scratch"

say "1. A trace: 4 users for 20 s on a small model, with small tiers so that the disk has work"
"$BIN/kvtrace" gen --users 4 --duration 20s --seed 42 --model tiny-1b --preset mlperf \
    --set tiers.gpu.capacity=256MiB --set tiers.cpu.capacity=512MiB --set tiers.nvme.capacity=1GiB \
    -o "$DEMO/trace.parquet"
"$BIN/kvtrace" validate "$DEMO/trace.parquet"

say "2. Its replay: DRAM for the cpu tier, O_DIRECT files for the nvme tier, as fast as the disk goes; probed, if it can be"
"$BIN/kvreplay" run "$DEMO/trace.parquet" --tier cpu=ram --tier "nvme=$DEMO/scratch" \
    --as-fast-as-possible --queue-depth 8 --probes -o "$DEMO/run"

say "3. The same I/O as fio jobs"
if command -v fio > /dev/null; then check=--check; else
    check=; echo "fio is not installed, so the jobs are written but not run (apt-get install fio)"; fi
"$BIN/kvdistill" fio "$DEMO/trace.parquet" --tier nvme -o "$DEMO/fio" $check

say "4. The report of the replay"
"$BIN/kvdistill" report "$DEMO/run"
checked=; if [ -f "$DEMO/fio/closeness.json" ]; then checked=$DEMO/fio; fi
# shellcheck disable=SC2086 - an empty name is none
"$BIN/kvdistill" report "$DEMO/run" "$DEMO/trace.parquet" $checked -o "$DEMO/report.html"
"$BIN/kvdistill" sql "$DEMO/trace.parquet" \
    "SELECT op, phase, count(*) AS operations FROM trace GROUP BY ALL ORDER BY ALL"

say "What came out, and one command to go on with from each"
"$BIN/python" -c 'import json, sys
with open(sys.argv[1]) as file:
    print("replay:", json.load(file)["summary"]["verdict"])' "$DEMO/run/run.json"
cat << END
        next: $BIN/kvreplay sweep $DEMO/trace.parquet --tier nvme=$DEMO/scratch --limit 2GiB -o $DEMO/sweep
report: $DEMO/report.html, for any browser, without network
        next: $BIN/kvdistill report $DEMO/run -o $DEMO/report.xlsx
jobs:   $DEMO/fio/stat.fio, and the exact replay $DEMO/fio/replay.fio
        next: $BIN/kvdistill fio --gen "--preset lmcache-disk --users 100" -o $DEMO/jobs
END
