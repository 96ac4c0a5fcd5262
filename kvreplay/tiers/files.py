"""The tier on a directory of files, one an object, named by a layout.

I/O is direct (O_DIRECT) unless the run is `--buffered`.

With vLLM's layout, the system calls are also those of vLLM's file tier
(v1/kv_offload/tiering/fs/io.py of vLLM 0.33). Two differences follow from the trace: an existing
file is written again, while vLLM would leave it, and a file that is longer, or grows, is written in
place.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path

from kvreplay.plan.row_ring import NONE
from kvreplay.tiers import claims, directio
from kvreplay.tiers.host import filesystem_facts
from kvreplay.tiers.tier import (
    MEANINGS,
    Drive,
    FileLayout,
    Native,
    NativeDrive,
    Region,
    StorageOptions,
    TierKind,
    make_directories,
    path_function,
)
from kvtrace.core import np


class FileTier(Drive):
    """Objects as files in a scratch directory below the target."""

    alignment = directio.ALIGNMENT

    def __init__(self, name: str, directory: Path, options: StorageOptions) -> None:
        """Store the tier `name` below `directory`."""
        super().__init__(name, directory, options)
        # io_uring's linked requests cannot write a temporary file and rename it.
        self.has_ring = self.has_ring and options.layout is not FileLayout.VLLM
        direct, advice = 0 if options.is_buffered else os.O_DIRECT, options.advice
        self._flags = {
            "read_flags": os.O_RDONLY | os.O_CLOEXEC | direct,
            "write_flags": os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | direct,
            "opened_advice": NONE if advice == "none" else os.POSIX_FADV_SEQUENTIAL,
            "closing_advice": os.POSIX_FADV_DONTNEED if advice == "dontneed" else NONE,
        }
        self._claim: claims.Claim | None = None
        self._scratch_fd = -1
        self._streams: dict[str, object] | None = None
        self._left_files: dict[str, int] | None = None
        self._taken_over: int | None = None

    def place(self) -> bool:
        """Note that writes have streams, and leave the I/O to threads.

        An io_uring request cannot set the hint of a file that stands for its stream.
        """
        self.has_ring, self._streams = False, {}
        return True

    def open(self, peak_bytes: int) -> None:
        """Claim the directory, remove leftovers, check the space, and confirm O_DIRECT."""
        is_taking_over = self._options.is_taking_over
        self._claim = claims.claim(self._path, is_cleaned=not is_taking_over)
        scratch = self._claim.scratch
        self._device_facts = filesystem_facts(self._path)
        self._left_files = claims.left_files(scratch) if is_taking_over else None
        if peak_bytes > (
            free := shutil.disk_usage(scratch).free + sum((self._left_files or {}).values())
        ):
            raise self._too_small(peak_bytes, free)
        if not self.is_buffered:
            self._direct = directio.probe(scratch, self.target)
        if self._streams is not None:
            why_not = directio.why_no_hint(str(scratch))
            self._streams = directio.facts(directio.HINTED, len(directio.LIFETIMES), why_not)
        make_directories(self._options.layout, str(scratch), self._holding.objects)
        self._path_of = path_function(self._options.layout, str(scratch))
        self._scratch_fd = os.open(scratch, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)

    def take_over(self, objects: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """Reuse files that an earlier run left for `objects` of the same lengths; remove the others.

        Return bool by object: whether a file is there for it now.
        """
        if self._left_files is None:
            return np.zeros(len(objects), bool)
        padded = -(-lengths // self.alignment) * self.alignment
        size_by_path = dict(zip(map(self.path, objects.tolist()), padded.tolist(), strict=True))
        spare: dict[int, list[str]] = {}
        present = set()
        for path, size in self._left_files.items():
            if size_by_path.get(path) == size:
                present.add(path)
            elif path in size_by_path:
                os.unlink(path)  # noqa: PTH108 - as below
            else:
                spare.setdefault(size, []).append(path)
        for path, size in size_by_path.items():
            if path not in present and spare.get(size):
                os.rename(spare[size].pop(), path)  # noqa: PTH104 - many thousands
                present.add(path)
        for path in chain.from_iterable(spare.values()):
            os.unlink(path)  # noqa: PTH108 - many thousands
        self._taken_over = len(present)
        return np.array([path in present for path in size_by_path], bool)

    @contextmanager
    def region(self, peak_bytes: int) -> Iterator[Region]:
        """Yield a new file of `peak_bytes`, rounded up, for preconditioning to fill.

        Remove it afterwards.
        """
        assert self._claim is not None, "the tier is open"
        path = f"{self._claim.scratch}/precondition.kv"
        fd = os.open(path, self._flags["write_flags"], 0o600)
        try:
            yield Region(fd, 0, -(-peak_bytes // self.alignment) * self.alignment)
        finally:
            os.close(fd)
            os.unlink(path)  # noqa: PTH108 - beside os.open

    def path(self, object_id: int) -> str:
        """Return the path of an object's file."""
        return self._path_of(object_id)

    def native(self) -> Native:
        """Return its description for the C engine."""
        tier_fields = self._flags | {
            "is_synced": self.is_synced,
            "hints": len(directio.LIFETIMES) if self._streams and self._streams["applied"] else 0,
            "is_renamed": self._options.layout is FileLayout.VLLM,
        }
        drive = NativeDrive(fd=self._scratch_fd)
        return Native(TierKind.FILES, [drive], tier_fields, self._options.layout)

    def facts(self) -> dict[str, object]:
        """Return the facts of the filesystem, the device, and direct I/O."""
        return {
            **super().facts(),
            "fadvise": self._options.advice,
            "alignment_bytes": self.alignment,
            "layout": MEANINGS[self._options.layout],
            "removed_leftover_files": self._claim.found_leftovers if self._claim else None,
            **({} if self._taken_over is None else {"taken_over_files": self._taken_over}),
            **({} if self._streams is None else {"streams": self._streams}),
            **self._device_facts,
        }

    def close(self) -> None:
        """Remove our files and release the directory."""
        if self._scratch_fd >= 0:
            os.close(self._scratch_fd)
            self._scratch_fd = -1
        if self._claim is not None:
            claim, self._claim = self._claim, None
            claims.release(claim, is_kept=self._options.is_kept)
