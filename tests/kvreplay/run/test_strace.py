"""What strace says of an engine's files, as operations."""

from __future__ import annotations

from pathlib import Path

from kvreplay.run.engine_record import read_strace

LINES = """\
7  1795330734.000000001 pwritev(29</data/1.bucket>, [{iov_base=""..., iov_len=26}, {iov_base=""..., iov_len=65536}], 2, 0) = 65562 <0.000000200>
7  1795330734.000001000 write(30</data/1.meta>, ""..., 100) = 100 <0.000000050>
7  1795330734.000002000 write(30</data/1.meta>, ""..., 20) = 20 <0.000000050>
8  1795330734.000003000 preadv(32</data/1.bucket>,  <unfinished ...>
9  1795330734.000003100 write(5</elsewhere/1.bucket>, ""..., 7) = 7 <0.000000010>
8  1795330734.000003900 <... preadv resumed>[{iov_base=""..., iov_len=65536}], 1, 26) = 65536 <0.000000850>
8  1795330734.000004000 pwritev2(29</data/1.bucket>, [{iov_base=""..., iov_len=8}], 1, 65562, RWF_SYNC) = 8 <0.000000010>
8  1795330734.000005000 unlink("/data/1.bucket") = 0 <0.000000300>
8  1795330734.000006000 pwrite64(31</data/2.bucket>, ""..., 4096, 8192) = -1 ENOSPC (No space left on device) <0.000000020>
8  1795330734.000007000 unlink("/MARK/x") = -1 ENOENT (No such file or directory) <0.000000020>
"""
AT = 1795330734 * 10**9


def test_file_calls_are_operations_with_offsets_and_requests(tmp_path):
    path = tmp_path / "strace"
    path.write_text(LINES)
    found = read_strace(path, Path("/data"), -AT, [(0, 2500), (2600, 4500)])
    assert [tuple(done) for done in found] == [
        ("write", "1.bucket", None, 1, 201, 0, 65562, None),
        ("write", "1.meta", None, 1000, 1050, 0, 100, None),
        ("write", "1.meta", None, 2000, 2050, 100, 20, None),
        ("read", "1.bucket", 1, 3000, 3850, 26, 65536, None),
        ("write", "1.bucket", None, 4000, 4010, 65562, 8, None),
        ("delete", "1.bucket", None, 5000, 5300, 0, 65570, None),
        ("write", "2.bucket", None, 6000, 6020, 8192, 0, "ENOSPC"),
    ]
