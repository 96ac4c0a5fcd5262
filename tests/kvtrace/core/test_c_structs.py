"""C structs as Python lays them out, and what it may hand to C."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from kvreplay.plan import row_ring as rows
from kvreplay.plan.row_ring import JOURNAL, REPLAY
from kvtrace.core.metrics.native import RECORDER
from kvtrace.core.native import library
from kvtrace.core.native.library import I8, function
from kvtrace.core.native.structs import CHeader, Structure
from kvtrace.core.schema import TRACE, Op, Phase, enum_code
from kvtrace.native import records
from kvtrace.native.records import PIECE, WORLD, World

HEADER = """
// A comment with typedef struct { int64_t no; } No;
enum { FEW, MANY = 7, MORE };
enum { BITS = 3, SLOTS = 1 << BITS };
typedef struct { int8_t kind; int32_t a, b; double *share; } Item;   // the pointer is 8 bytes
typedef struct { int16_t n; TABLE(Item, items); Item first; } Part;
struct Whole {
    Part part;      // with a table
    int64_t seed, end;
};
"""


def test_a_header_says_what_its_structs_are():
    said = CHeader(HEADER)
    assert said.constants == {"FEW": 0, "MANY": 7, "MORE": 8, "BITS": 3}
    assert said.dtype("Item") == np.dtype(
        [("kind", "i1"), ("a", "i4"), ("b", "i4"), ("share", "u8")], align=True
    )
    whole = Structure(said, "Whole")
    whole.seed, whole.part.items = 5, np.ones(3, said.dtype("Item"))
    whole.part.first.a = 9
    assert (whole.seed, whole.part.items_count, whole.part.first.a) == (5, 3, 9)
    assert whole.part.memory["items"] == whole.part.items.ctypes.data
    with pytest.raises(AttributeError, match="'size'"):
        _ = whole.size
    with pytest.raises(AttributeError, match="ende"):
        whole.ende = 1


@pytest.mark.parametrize(
    ("said", "includes"),
    [
        (WORLD, ["world.h", "validate.h"]),
        (REPLAY, ["plan.h"]),
        (JOURNAL, ["journal.h"]),
        (RECORDER, ["recorder.h"]),
    ],
    ids=["simulation", "engine", "journal", "recorder"],
)
def test_c_lays_out_what_python_reads_in_a_header(said, includes, tmp_path):
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    lines = ["#include <stddef.h>", *(f'#include "{name}"' for name in includes)]
    known = 0
    for name in said.fields:
        try:
            of = said.struct(name)
        except KeyError:  # some of its parts are of other headers: Python reads none of it
            continue
        lines.append(f'_Static_assert(sizeof({name}) == {ctypes.sizeof(of)}, "{name}");')
        for field, *_ in of._fields_:
            lines.append(
                f"_Static_assert(offsetof({name}, {field}) == {getattr(of, field).offset},"
                f' "{name}.{field}");'
            )
            known += 1
    assert known > 100
    (tmp_path / "layout.c").write_text("\n".join(lines))
    folders = [Path(module.__file__).parent for module in (library, records)]
    folders.append(Path(rows.__file__).parents[1] / "native")
    places = [f"-I{folder}" for folder in folders]
    subprocess.run(
        [compiler, "-D_GNU_SOURCE", "-fsyntax-only", *places, tmp_path / "layout.c"], check=True
    )


def test_the_rows_have_the_schemas_codes():
    for kind, prefix, column in ((Op, "OP_", "op"), (Phase, "PHASE_", "phase")):
        codes = {name: value for name, value in WORLD.constants.items() if name.startswith(prefix)}
        assert codes == {f"{prefix}{one.name}": enum_code(TRACE, column, one) for one in kind}


def test_constants_are_those_of_the_header():
    named = {name: value for name, value in vars(records).items() if name in WORLD.constants}
    assert len(named) >= 14
    assert named == {name: WORLD.constants[name] for name in named}


def test_arrays_that_c_would_misread_are_refused():
    call = function("user_draw_all", I8, int, int, int, int, int)
    drawn = np.zeros(2, np.int64)
    call(drawn, 2, 42, 0, 7, 7)
    assert drawn.tolist() == [7, 7]
    for wrong in (drawn.astype(np.int32), np.arange(4)[::2], [5, 6]):
        with pytest.raises(ctypes.ArgumentError):
            call(wrong, 2, 42, 0, 7, 7)


def test_what_a_world_is_given_becomes_a_table():
    world = World(pieces=[(1, 2, 3, 4, 5)])
    assert world.pieces.dtype == PIECE
    assert world.pieces["window"].tolist() == [3]


def test_c_without_memory_ends_the_process_in_one_line():
    code = """
import resource, numpy as np
from kvtrace.native import numbering
numbering.require_memory = lambda *_: None
names = np.arange(1 << 21)
numbers = numbering.Numbers(len(names))
taken = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (taken + (32 << 20),) * 2)
numbers.add(names)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (7, 1), done.stderr
    assert "ulimit -v" in done.stderr
