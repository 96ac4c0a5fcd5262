#!/bin/sh
# Install this machine's wheel into an environment of its own, ask the README's first question, and run each program once;
# then what the sdist makes here. Says how long each part took: to the first answer 60 s are aimed at, 3 s of them ours.
set -eu
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
begun=$(date +%s%N)
took() { now=$(date +%s%N); echo "$(((now - begun) / 1000000)) ms: $*"; begun=$now; }
"$PYTHON" -m venv "$place/venv"
took "an empty environment, $("$PYTHON" --version)"
"$place/venv/bin/python" -m pip install --quiet --disable-pip-version-check dist/*_"$(uname -m)".whl
took "the wheel and what it needs installed"
cp -r dist README.md "$place"
cd "$place"
PATH="$place/venv/bin:$PATH"
kvtrace examples
begun=$(date +%s%N)
eval "$(grep -m1 '^kvtrace size' README.md)"
took "the README's first answer"
du -sh "$place/venv" | sed "s|$place/venv|installed|"
kvtrace gen examples/conversation.jsonl --source mooncake --model tiny-1b --preset lmcache-disk --limit 50 \
    --set tiers.gpu.capacity=0 --set tiers.cpu.capacity=256MiB -o t.parquet
mkdir scratch
kvreplay run t.parquet --tier nvme=scratch --limit 200MiB -o run
kvdistill fio t.parquet --tier nvme -o jobs
took "a trace, its replay and its jobs"
pip install --quiet --disable-pip-version-check --no-deps --force-reinstall dist/*.tar.gz
took "the sdist built and installed"
kvreplay run t.parquet --tier nvme=scratch --limit 200MiB -o again
echo "the wheel installs and its programs run; so does what the sdist makes"
