"""Trials of one side share an entry of a chart's legend."""

from kvtrace.core.document.picture import legend_entries


def test_trials_of_a_side_share_an_entry_and_others_do_not():
    labels = ["[0] a trial 1", "[1] b trial 1", "[0] a trial 2", "read", "c trial 1"]
    assert legend_entries(labels) == {
        "[0] a, 2 trials": [0, 2],
        "[1] b": [1],
        "read": [3],
        "c": [4],
    }
