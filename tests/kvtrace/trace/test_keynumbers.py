from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtrace.trace.mlperf_csv import Import

NAMES = st.lists(
    st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=3), unique=True
)


@settings(max_examples=30, deadline=None)
@given(st.lists(NAMES, max_size=6))
def test_names_are_numbered_by_first_appearance(blocks):
    known: dict[str, int] = {}
    keys = Import()
    for names in blocks:
        ids = keys.number(pa.array(names, pa.string()))
        assert ids.tolist() == [known.setdefault(name, len(known)) for name in names]
    assert [name for batch in keys.names for name in batch.to_pylist()] == list(known)


def test_many_names_keep_their_numbers_and_sizes():
    keys = Import()
    for _ in range(2):
        for start in range(0, 20_000, 5_000):
            ids = keys.number(pa.array([f"key/{i}" for i in range(start, start + 5_000)]))
            assert ids.tolist() == list(range(start, start + 5_000))
            keys.sizes[ids] = np.maximum(keys.sizes[ids], ids)
    assert keys.sizes[15_000] == 15_000
