#!/bin/sh
# Install this machine's wheel into an environment of its own, and run each program once; then what the sdist makes here.
set -eu
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
"$PYTHON" -m venv "$place/venv"
"$place/venv/bin/python" -m pip install --quiet --disable-pip-version-check dist/*_"$(uname -m)".whl
du -sh "$place/venv" | sed "s|$place/venv|installed|"
cp -r examples dist "$place"
cd "$place"
PATH="$place/venv/bin:$PATH"
kvtrace gen examples/conversation.jsonl --source mooncake --model tiny-1b --preset lmcache-disk --limit 50 \
    --set tiers.gpu.capacity=0 --set tiers.cpu.capacity=256MiB -o t.parquet
mkdir scratch
kvreplay run t.parquet --tier nvme=scratch --limit 200MiB -o run
kvdistill fio t.parquet --tier nvme -o jobs
pip install --quiet --disable-pip-version-check --no-deps --force-reinstall dist/*.tar.gz
kvreplay run t.parquet --tier nvme=scratch --limit 200MiB -o again
echo "the wheel installs and its programs run; so does what the sdist makes"
