"""A load of known size on a real disk, and the probes around it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from conftest import ROOT

from kvreplay.tiers.host import block_device

FILE_BYTES = 32 << 20
LOAD = f"load{os.getpid()}"
"""Our fio's name, so that no other fio on the machine is taken for it."""


@contextmanager
def place_on_disk():
    """Yield a directory on a disk with a file of written data in it, and the disk's path.

    Skip without.
    """
    for base in (None, ROOT):
        with tempfile.TemporaryDirectory(dir=base, prefix="kvreplay-probe-") as name:
            disk = block_device(Path(name))
            if disk is not None:
                (Path(name) / LOAD).symlink_to(shutil.which("fio"))
                fio(Path(name), "write", 1 << 20, 1)
                yield Path(name), Path("/dev") / disk.name
                return
    pytest.skip("neither the temporary directory nor the checkout lies on a disk")


def fio(directory, rw, block_bytes, depth, **options):
    """Run a fio job over the whole file; return its part of the JSON."""
    arguments = {"rw": rw, "bs": block_bytes, "iodepth": depth, "size": FILE_BYTES, "direct": 1,
                 "ioengine": "libaio", "filename": directory / "data", "name": "job"} | options  # fmt: skip
    command = [
        str(directory / LOAD),
        "--output-format=json",
        *(f"--{k}={v}" for k, v in arguments.items()),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)["jobs"][0]["read" if "read" in rw else "write"]


@contextmanager
def probed(output, *arguments):
    """Yield a dict while the probes are attached; it then has the result and the events."""
    command = [
        sys.executable,
        "-m",
        "kvreplay.cli",
        "probe",
        *map(str, arguments),
        "-o",
        str(output),
        "--json",
    ]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        line = process.stderr.readline()
        assert line == "probes attached\n", line + process.stderr.read()
        found = {}
        try:
            yield found
        finally:
            process.send_signal(signal.SIGINT)
            out, err = process.communicate()
        assert process.returncode == 0, err
        found |= json.loads(out)
    if (output / "blocks.parquet").exists():
        found["events"] = pq.read_table(output / "blocks.parquet").to_pylist()
