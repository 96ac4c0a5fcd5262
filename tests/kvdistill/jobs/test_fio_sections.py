"""fio's sections as objects: how options and comments are written, and what a check changes."""

from __future__ import annotations

from kvdistill.jobs.fio_sections import (
    FioJob,
    FioSection,
    FioSettings,
    on_null,
    with_drawn_iologs,
    with_latency_logs,
)
from kvdistill.profile.profile import Split

SHARED = FioSettings(
    {
        "filename": "scratch",
        "allow_file_create": False,
        "create_on_open": True,
        "direct": True,
        "ioengine": "libaio",
    }
)
READ = FioSettings(
    {
        "rw": "randread",
        "bssplit": (Split(((4096, 30), (8192, 70)), 0.0, 6963.2),),
        "startdelay_ms": 150,
        "iodepth": 8,
        "rate": (1000, 2000),
        "thinktime_us": 20,
    },
    {"iodepth": ["few in flight", "mostly"]},
)
JOB = FioJob("# A job\n", (FioSection("global", SHARED), FioSection("read", READ)))


def test_options_are_lines_in_the_order_in_which_they_were_set():
    # The lines of a job are its data.
    assert JOB.text.split() == [
        *("#", "A", "job", "[global]", "filename=scratch", "allow_file_create=0"),
        *("create_on_open=1", "direct=1", "ioengine=libaio", "[read]", "rw=randread"),
        *("bssplit=4096/30:8192/70", "startdelay=150ms", "#", "few", "in", "flight"),
        *("#", "mostly", "iodepth=8", "rate=1000,2000", "thinktime=20us"),
    ]
    assert JOB.text.count("\n") == 18


def test_an_option_that_is_not_set_leaves_its_comment():
    section = FioSection("read", FioSettings({"iodepth": None}, {"iodepth": ["not known"]}))
    assert section.text == "[read]\n# not known\n"


def test_later_settings_come_after_and_replace():
    both = FioSettings({"rw": "read", "bs": 512}) | FioSettings({"bs": 4096}, {"bs": ["larger"]})
    assert list(both.options.items()) == [("rw", "read"), ("bs", 4096)]
    assert both.comments == {"bs": ["larger"]}


def test_a_checked_job_logs_each_section_by_its_name():
    shared, read = with_latency_logs(JOB).sections
    assert shared.options["log_offset"] is shared.options["log_unix_epoch"] is True
    assert read.options["write_lat_log"] == "read"
    shared, read = with_drawn_iologs(JOB).sections
    assert shared == JOB.sections[0]
    assert read.options["write_iolog"] == "read.drawn"


def test_the_null_engine_needs_no_file_and_no_depth():
    shared, read = on_null(JOB).sections
    assert shared.options == {"filename": "scratch", "direct": True, "ioengine": "null"}
    assert read.options["iodepth"] == 1
    assert "iodepth" not in shared.options
    unset = FioJob("", (FioSection("read", FioSettings({"iodepth": None})),))
    assert on_null(unset).sections[0].options == {"iodepth": None}
    assert JOB.sections[1].options["iodepth"] == 8
