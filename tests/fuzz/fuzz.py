"""Try damaged and hostile input on every reader and command.

`python tests/fuzz/fuzz.py --seconds 60`.

Each case is made of a seed and its number alone, so that `--seed S --case N` repeats it. Workers
are forked from one process that has loaded everything; each has a limit on its memory, and an
alarm. A case fails by a traceback, a hang, more than its memory, an exit code that is not
documented, more than one line of error, control characters on the terminal, a file under its final
name after a failure, or figures that are not sound.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import io
import json
import os
import random
import re
import resource
import shutil
import signal
import struct
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass
from mmap import mmap
from pathlib import Path
from typing import Any, NoReturn

if __name__ == "__main__":
    sys.path[:0] = [
        str(Path(__file__).parent),
        str(Path(__file__).parents[1] / "support"),
        str(Path(__file__).parents[2]),
    ]

HANG_S = 20
"""Of processor time, which does not depend on what else the machine does."""
WAIT_S = 90
LOST_S = 120
"""A worker that says nothing for so long is stuck where no alarm reaches it."""
MEMORY_BYTES = 1 << 30
BOMBS = 0.0005
EXIT_CODES = (0, 2, 3, 4, 5, 6)
"""Those that damaged input may end with; 7, out of memory, it may not."""
_SLOT = struct.Struct("qqdqq")
"""Of a worker: the case that it is at, cases done, when it began, readings and commands done."""
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_ERROR = re.compile(r"kv(trace|replay|distill): error: ")
_NO_ROOM = re.compile(r"(?i)memory|failed to launch worker thread|can't start new thread")
_FORMULA = re.compile(r"[=+@\t\r]|-(?![0-9.])")


class Hang(BaseException):
    """A case that does not end."""


@dataclass
class Failure:
    """A case that broke a promise."""

    seed: int
    case: int
    what: str
    trial: str
    why: str

    def __str__(self) -> str:
        """Say what broke, and how to see it again."""
        again = f"make fuzz FUZZ_SEED={self.seed} FUZZ_CASE={self.case}"
        return f"FAILED {self.what}: {self.why.strip().splitlines()[-1][:300]}\n  {self.trial[:300]}\n  again: {again}"


def trial_of(seed: int, case: int, folder: Path, share: float) -> tuple[str, Any]:
    """Make the input of a case in `folder`; return the name of its target, and what to do."""
    import commands
    import readers

    rng = random.Random(f"{seed}/{case}")
    if seed >= 0 and rng.random() < BOMBS:
        return "read_bomb", readers.read_bomb(rng, folder)
    known = commands.COMMANDS if rng.random() < share else readers.READERS
    (target,) = rng.choices([t for t, _ in known], [weight for _, weight in known])
    return target.__name__, target(rng, folder)


def run_trial(trial: Any, folder: Path) -> None:
    """Do what `trial` says; raise what breaks a promise."""
    from trials import Broken, Command

    from kvtrace.core.errors import KvError

    if isinstance(trial, Command):
        _run_command(trial, folder)
        return
    try:
        trial.call()
    except KvError as error:
        if error.exit_code not in EXIT_CODES:
            raise Broken(f"exit code {error.exit_code}: {error}") from None


def _run_command(trial: Any, folder: Path) -> None:
    from programs import run_cli
    from trials import Broken

    from kvtrace.core.errors import OutOfMemory

    before = {name for name in trial.outputs if (folder / name).exists()}
    done = run_cli(*trial.argv, check=False, cwd=folder)
    # A replay says what it needs before it begins, and may find less here.
    is_foreseen = (
        done.returncode == OutOfMemory.exit_code and "the replay needs about" in done.stderr
    )
    if done.returncode not in EXIT_CODES and not is_foreseen:
        raise Broken(f"exit code {done.returncode}: {done.stderr[-300:]!r}")
    for text in (done.stdout, done.stderr):
        found = _CONTROL.search(text)
        if found is not None:
            around = text[max(0, found.start() - 80) : found.end() + 10]
            raise Broken(f"a control character on the terminal: {around!r}")
    errors = [line for line in done.stderr.splitlines() if _ERROR.match(line)]
    if not done.returncode:
        if errors:
            raise Broken(f"an error, and exit code 0: {errors[0]}")
        _check_results(trial, folder, done.stdout)
        return
    if len(errors) != 1 or done.stderr.splitlines()[-1] != errors[0]:
        raise Broken(f"not one line of error: {done.stderr[-300:]!r}")
    left = [name for name in trial.outputs if (folder / name).exists() and name not in before]
    left += [path.name for path in folder.rglob("*.tmp")]
    if left:
        raise Broken(f"left after a failure: {', '.join(left)} ({errors[0][:200]})")


def _check_results(trial: Any, folder: Path, shown: str) -> None:
    from commands import finite
    from trials import Broken

    if trial.is_json and not finite(json.loads(shown)):
        raise Broken("a number in its JSON is none")
    for path in folder.glob("report.csv"):
        cells = [
            cell
            for row in csv.reader(io.StringIO(path.read_text(encoding="utf-8")))
            for cell in row
        ]
        bad = next((cell for cell in cells if _FORMULA.match(cell)), None)
        if bad is not None:
            raise Broken(f"a spreadsheet would take a cell for a formula: {bad[:60]!r}")
    for path in folder.glob("jobs/*"):
        if path.suffix in (".fio", ".yml", ".yaml") and "\n[evil]" in path.read_text(
            encoding="utf-8"
        ):
            raise Broken(f"a name made a section of {path.name}")


def attempt(seed: int, case: int, folder: Path, share: float) -> tuple[Failure | None, bool]:
    """Do one case in an empty `folder`.

    Return how it failed, if it did, and whether it was a command.
    """
    what, trial = "making the case", None
    try:
        what, trial = trial_of(seed, case, folder, share)
        signal.setitimer(signal.ITIMER_PROF, HANG_S)
        signal.alarm(WAIT_S)
        run_trial(trial, folder)
    except Hang:
        why = (
            "".join(traceback.format_stack())
            + f"\nno end after {HANG_S} s of processor time, or {WAIT_S} s"
        )
    except (Exception, SystemExit):  # noqa: BLE001 - whatever it is, it is a finding
        why = traceback.format_exc()
    else:
        why = ""
    finally:
        signal.alarm(0)
        signal.setitimer(signal.ITIMER_PROF, 0)
    said = " ".join(getattr(trial, "argv", [])) or what
    return (Failure(seed, case, what, said, why) if why else None), hasattr(trial, "argv")


def _empty(folder: Path) -> None:
    for entry in folder.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            entry.unlink()


def _virtual_bytes() -> int:
    return (
        int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        * resource.getpagesize()
    )


def _ring(*_: object) -> NoReturn:
    raise Hang


def work(
    seed: int, first: int, step: int, last: int | None, slot: memoryview, out: int, share: float
) -> NoReturn:
    """Do the cases from `first` on.

    Say of each in `slot` that it began, and write failures to `out`.
    """
    for alarm in (signal.SIGALRM, signal.SIGPROF):
        signal.signal(alarm, _ring)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    with contextlib.suppress(OSError):
        sys.stdout, sys.stderr = (open(os.devnull, "w", encoding="utf-8") for _ in range(2))  # noqa: PTH123, SIM115
    _case, done, _at, readings, commands = _SLOT.unpack(slot)
    with tempfile.TemporaryDirectory(prefix="kvfuzz-", dir=_scratch()) as name:
        folder, case = Path(name), first
        os.chdir(folder)
        warm(share)
        limit = _virtual_bytes() + MEMORY_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (limit, resource.getrlimit(resource.RLIMIT_AS)[1]))
        while last is None or case < last:
            _SLOT.pack_into(slot, 0, case, done, time.monotonic(), readings, commands)
            failure, is_command = attempt(seed, case, folder, share)
            _empty(folder)
            if failure is not None and case != first and _NO_ROOM.search(failure.why):
                # The limit is on address space, which allocators keep from case to case: a fresh
                # worker tries the case again.
                break
            done, readings, commands = done + 1, readings + (not is_command), commands + is_command
            case += step
            if failure is not None:
                os.write(out, (json.dumps(vars(failure)) + "\n").encode())
            if failure is not None or done % 5000 == 0:
                # A fresh one: what a failure, or thousands of cases, left in memory is no other
                # case's.
                break
        _SLOT.pack_into(slot, 0, case, done, 0.0, readings, commands)
    os._exit(0)


def _scratch() -> str | None:
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


@dataclass
class _Worker:
    pid: int
    number: int
    first: int
    """Its first case."""


class Pool:
    """Workers that share out the cases; a lost one is replaced behind the case that it was at."""

    def __init__(self, seed: int, first: int, last: int | None, workers: int, share: float) -> None:
        self.seed, self.last, self.count, self.share = seed, last, workers, share
        self.failures: list[Failure] = []
        self._slots = mmap(-1, _SLOT.size * workers)
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        self._text = b""
        for number in range(workers):
            _SLOT.pack_into(self._slots, _SLOT.size * number, first + number, 0, 0.0, 0, 0)
        self._workers = [self._start(number) for number in range(workers)]

    def _slot(self, number: int) -> memoryview:
        return memoryview(self._slots)[_SLOT.size * number : _SLOT.size * (number + 1)]

    def _start(self, number: int) -> _Worker:
        case = _SLOT.unpack(self._slot(number))[0]
        pid = os.fork()
        if pid == 0:
            try:
                work(
                    self.seed,
                    case,
                    self.count,
                    self.last,
                    self._slot(number),
                    self._write,
                    self.share,
                )
            except BaseException:  # noqa: BLE001 - the parent sees it by its exit code
                os.write(2, traceback.format_exc().encode())
            os._exit(70)
        return _Worker(pid, number, case)

    @property
    def done(self) -> tuple[int, int]:
        """Readings and commands tried so far."""
        slots = [_SLOT.unpack(self._slot(number)) for number in range(self.count)]
        return sum(s[3] for s in slots), sum(s[4] for s in slots)

    def look(self) -> list[Failure]:
        """Return what failed since the last look; replace workers that ended before their time."""
        found = self._reports()
        for worker in list(self._workers):
            case, done, began, readings, commands = _SLOT.unpack(self._slot(worker.number))
            is_lost = began and time.monotonic() - began > LOST_S
            if is_lost:
                os.kill(worker.pid, signal.SIGKILL)
            pid, status = os.waitpid(worker.pid, 0 if is_lost else os.WNOHANG)
            if not pid:
                continue
            self._workers.remove(worker)
            # A command without memory ends its process, which is this worker, and libraries crash
            # where they are refused memory. What earlier cases left in memory is not this case's, so
            # that a fresh worker tries it again.
            is_retried = status and case != worker.first and _may_lack_memory(status)
            if status and not is_retried:
                why = (
                    f"no end after {LOST_S} s"
                    if is_lost
                    else f"the process died: {_ending(status)}"
                )
                found.append(Failure(self.seed, case, "a worker", "", why))
                case += self.count
            found += self._reports()
            _SLOT.pack_into(self._slot(worker.number), 0, case, done, 0.0, readings, commands)
            if self.last is None or case < self.last:
                self._workers.append(self._start(worker.number))
        self.failures += found
        return found

    def _reports(self) -> list[Failure]:
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._read, 1 << 16):
                self._text += data
        *lines, self._text = self._text.split(b"\n")
        return [Failure(**json.loads(line)) for line in lines]

    @property
    def is_over(self) -> bool:
        """Whether all cases are done."""
        return not self._workers

    def stop(self) -> None:
        """End all workers."""
        for worker in self._workers:
            os.kill(worker.pid, signal.SIGKILL)
            os.waitpid(worker.pid, 0)
        self._workers = []


def _may_lack_memory(status: int) -> bool:
    from kvtrace.core.errors import OutOfMemory

    code = os.waitstatus_to_exitcode(status)
    return code in (OutOfMemory.exit_code, -signal.SIGSEGV, -signal.SIGABRT)


def _ending(status: int) -> str:
    code = os.waitstatus_to_exitcode(status)
    return f"exit code {code}" if code >= 0 else signal.Signals(-code).name


def warm(share: float) -> None:
    """Load and compile what cases use, by the first cases of a seed of its own.

    In a worker, since threads do not fork.
    """
    with (
        tempfile.TemporaryDirectory(prefix="kvfuzz-", dir=_scratch()) as name,
        contextlib.chdir(name),
    ):
        for case in range(60):
            attempt(-1, case, Path(name), min(share * 8, 0.5))
            _empty(Path(name))


def main() -> int:
    """Fuzz, print failures and counts; return 1 if there was a failure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--seed", type=int, default=None, help="repeats a run; drawn and printed if not given"
    )
    parser.add_argument("--case", type=int, help="only this one, with its whole traceback")
    parser.add_argument("--first", type=int, default=0, help="the first case")
    parser.add_argument("--cases", type=int, help="how many")
    parser.add_argument("--seconds", type=float, default=60.0, help="for how long, without --cases")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument(
        "--commands", type=float, default=0.05, help="share of cases that run a whole command"
    )
    parser.add_argument("--most-failures", type=int, default=20)
    args = parser.parse_args()
    seed = int.from_bytes(os.urandom(4), "little") if args.seed is None else args.seed
    if args.case is not None:
        return _again(seed, args.case, args.commands)
    print(f"seed {seed}", flush=True)
    __import__("commands")
    last = None if args.cases is None else args.first + args.cases
    pool, began = Pool(seed, args.first, last, args.workers, args.commands), time.monotonic()
    shown = began
    try:
        while not pool.is_over and len(pool.failures) < args.most_failures:
            time.sleep(0.05)
            for failure in pool.look():
                print(failure, flush=True)
            if time.monotonic() - shown > 30:
                shown = time.monotonic()
                print(_progress(pool, began), flush=True)
            if last is None and time.monotonic() - began > args.seconds:
                break
    finally:
        pool.stop()
    print(_progress(pool, began))
    return 1 if pool.failures else 0


def _progress(pool: Pool, began: float) -> str:
    (readings, commands), took = pool.done, time.monotonic() - began
    rate = (readings + commands) / took
    return (
        f"seed {pool.seed}: {readings:,} readings and {commands:,} commands in {took:.0f} s, {rate:.0f}/s; "
        f"{len(pool.failures)} failed"
    )


def _again(seed: int, case: int, share: float) -> int:
    for alarm in (signal.SIGALRM, signal.SIGPROF):
        signal.signal(alarm, _ring)
    folder = Path(tempfile.mkdtemp(prefix="kvfuzz-"))
    os.chdir(folder)
    failure, _ = attempt(seed, case, folder, share)
    if failure is None:
        print("it holds")
        shutil.rmtree(folder)
        return 0
    print(failure.why)
    print(failure)
    print(f"  its input is in {folder}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
