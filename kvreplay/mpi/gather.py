"""What the ranks leave, brought together at rank 0: their files, where they are not seen."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from pathlib import Path

import msgspec

from kvreplay.mpi.pooled.files import RANK_FILE, RANKS_FILE
from kvreplay.ranks.helper import Ranks
from kvtrace.core.errors import RankLost
from kvtrace.core.run.run_file import RANK_FOLDER

CHUNK_BYTES = 16 << 20


class _Piece(msgspec.Struct, frozen=True):
    """A piece of a file."""

    name: str
    at: int
    data: bytes


def bring(ranks: Ranks, output: Path, last: str = RANK_FILE) -> None:
    """Bring the folder of each rank to rank 0, if its `output` does not show it: on another host, most likely.

    A rank writes its file `last` at the end.
    """
    mine = output / RANK_FOLDER.format(ranks.rank)
    with suppress(RankLost):
        told = ranks.exchange(_digest(mine / last))
        lacking = []
        if ranks.rank == 0:
            there = [output / RANK_FOLDER.format(rank) for rank in range(ranks.count)]
            lacking = [r for r, digest in enumerate(told) if digest is not None and _digest(there[r] / last) != digest]
        first = ranks.exchange(msgspec.msgpack.encode(lacking))[0]
        wanted: list[int] = msgspec.msgpack.decode(first, type=list[int]) if first else []
        if not wanted:
            return
        files = sorted(p for p in mine.rglob("*") if p.is_file()) if ranks.rank in wanted else []
        pieces = [(p, at) for p in files for at in range(0, max(1, p.stat().st_size), CHUNK_BYTES)]
        counts = ranks.exchange(msgspec.msgpack.encode(len(pieces)))
        rounds = max((msgspec.msgpack.decode(count, type=int) for count in counts if count), default=0)
        for number in range(rounds):
            piece = _read(mine, *pieces[number]) if number < len(pieces) else None
            taken = ranks.exchange(b"" if piece is None else msgspec.msgpack.encode(piece), to_all=False)
            for rank, data in enumerate(taken):
                if data and ranks.rank == 0:
                    _write(output / RANK_FOLDER.format(rank), msgspec.msgpack.decode(data, type=_Piece))


def _digest(path: Path) -> bytes:
    return hashlib.sha256(path.read_bytes()).digest() if path.is_file() else b"none"


def _read(folder: Path, path: Path, at: int) -> _Piece:
    with path.open("rb") as file:
        file.seek(at)
        return _Piece(str(path.relative_to(folder)), at, file.read(CHUNK_BYTES))


def _write(folder: Path, piece: _Piece) -> None:
    path = folder / piece.name
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("r+b" if piece.at else "wb") as file:
        file.seek(piece.at)
        file.write(piece.data)


def remove_unbegun(output: Path) -> None:
    """Remove what was made for a run that did not begin."""
    (output / RANKS_FILE).unlink(missing_ok=True)
    for folder in output.glob("rank-*/"):
        with suppress(OSError):
            folder.rmdir()
    with suppress(OSError):
        output.rmdir()
