"""What a Python prompt shows of requests."""

import numpy as np
import pyarrow as pa

import kvtrace as kt


def test_a_prompt_shows_how_many_requests_there_are():
    arrivals_ns = np.arange(3) * 10**9
    table = pa.table({
        "arrival_ns": arrivals_ns, "input_tokens": [600] * 3, "output_tokens": [8] * 3,
    })  # fmt: skip
    assert "3 requests over 2.00 s" in repr(kt.Requests.from_arrow(table))
