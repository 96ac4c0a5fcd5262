#!/bin/sh
# The main job, end to end, small enough for any machine: about 4 GB on the disk for a moment. Prints one screen: what is
# asked, the answer, and what was made; all that the programs printed is beside it, in $DEMO/*.txt.
set -eu
rm -rf "$DEMO"
mkdir -p "$DEMO"

# step NAME WHAT COMMAND...: runs it, and keeps in NAME.txt what it prints; if it fails, that is shown.
step() {
    name=$1 what=$2
    shift 2
    printf '\n== %s\n' "$what"
    if ! "$@" > "$DEMO/$name.txt" 2>&1; then
        cat "$DEMO/$name.txt" >&2
        exit 1
    fi
}
show() { sed 's/^/   /'; }

echo "What does this disk make of an LLM's KV cache, and which fio job is like it?"

step trace "1. A trace: 50 requests of a conversation log, 25 times as fast, on TensorRT-LLM with a small model and small tiers" \
    "$BIN/kvtrace" gen examples/conversation.jsonl --source mooncake --time-scale 0.04 --limit 50 \
    --preset trtllm --model tiny-1b \
    --set tiers.gpu.capacity=512MiB --set tiers.cpu.capacity=256MiB --set tiers.nvme.capacity=1GiB \
    -o "$DEMO/trace.parquet"
grep -E ' rows, preset ' "$DEMO/trace.txt" | show
"$BIN/kvtrace" validate "$DEMO/trace.parquet" | show

step replay "2. Its replay: DRAM for the cpu tier, one file with O_DIRECT for the nvme tier, as fast as the disk goes; probed, if it can be" \
    "$BIN/kvreplay" run "$DEMO/trace.parquet" --tier cpu=ram --tier "nvme=$DEMO/scratch.dat" \
    --as-fast-as-possible --queue-depth 8 --probes -o "$DEMO/run"
grep -E '^note: (replayed|probed|left out the probes)|^nvme +(read|write) ' "$DEMO/replay.txt" | head -4 | show

checked=
if command -v fio > /dev/null; then
    step fio "3. The same I/O as fio jobs, each run by fio and compared with the replay at the device: under a minute" \
        "$BIN/kvdistill" fio "$DEMO/trace.parquet" --tier nvme --mode replay --mode reuse -o "$DEMO/fio" --check
    checked=$DEMO/fio
else
    step fio "3. The same I/O as fio jobs; fio is not installed, so that they are not run (apt-get install fio)" \
        "$BIN/kvdistill" fio "$DEMO/trace.parquet" --tier nvme --mode replay --mode reuse -o "$DEMO/fio"
fi
grep -E '^[a-z.]+\.fio[,:].*(matches|predicted) ' "$DEMO/fio.txt" | head -3 | show

# shellcheck disable=SC2086 - an empty name is none
step report "4. A page of it all" \
    "$BIN/kvdistill" report "$DEMO/run" "$DEMO/trace.parquet" $checked -o "$DEMO/report.html"

printf '\nAnswer: '
"$BIN/python" -c 'import json, sys
with open(sys.argv[1]) as file:
    print(json.load(file)["summary"]["verdict"])' "$DEMO/run/run.json"
cat << END

Made, with one command to go on with from each (all that was printed: $DEMO/*.txt)
   $DEMO/run            the replay
      $BIN/kvreplay sweep $DEMO/trace.parquet --tier nvme=$DEMO/scratch.dat --limit 2GiB -o $DEMO/sweep
   $DEMO/report.html    its page, for any browser, without network
      $BIN/kvdistill report $DEMO/run -o $DEMO/report.xlsx
   $DEMO/fio/reuse.fio  the sampled job; the exact replay is $DEMO/fio/replay.fio
      $BIN/kvdistill fio --gen "--preset lmcache-disk --users 20 --duration 5m" -o $DEMO/jobs
END
