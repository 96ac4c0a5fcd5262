"""KV events.

What real vLLM published, both forms of an event, and a live publisher that drops messages.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import msgspec
import pytest
from phrases import show_each
from simulated import kvtrace
from whole import read_table

from kvtrace.core.errors import TraceError
from kvtrace.core.schema import EVENTS
from kvtrace.core.tables import open_table
from kvtrace.requests import record as events_file
from kvtrace.requests.record import EventRows, Recorder, RecordingCounts, notes_of
from kvtrace.requests.registry import detect

zmq = pytest.importorskip("zmq", reason="needs pyzmq")
SAMPLE = Path(__file__).resolve().parents[2] / "golden" / "engines" / "vllm" / "kv-events.msgpack"


def payloads():
    """The messages that vLLM published, in order."""
    data, found = SAMPLE.read_bytes(), []
    while data:
        length = int.from_bytes(data[:4], "little")
        found.append(data[4 : 4 + length])
        data = data[4 + length :]
    return found


def stored(*hashes, parent=None, block=4, **more):
    fields = {
        "type": "BlockStored",
        "block_hashes": list(hashes),
        "parent_block_hash": parent,
        "token_ids": [],
    }
    return fields | {"block_size": block, "lora_id": None, "medium": "GPU"} | more


def message(*events, ts=1.0):
    return msgspec.msgpack.encode([ts, list(events), 0])


def test_events_of_vllm():
    rows = EventRows()
    assert [rows.add(number, payload) for number, payload in enumerate(payloads())] == [1] * 7 + [
        76
    ]
    table = rows.take().to_pylist()
    assert len(rows) == 0
    assert [len(row["block_ids"]) for row in table if row["event"] == "stored"] == [
        26,
        26,
        26,
        6,
        1,
        24,
        16,
        88,
    ]
    assert {row["block_tokens"] for row in table if row["event"] == "stored"} == {32}
    assert {row["medium"] for row in table} == {"GPU"}
    # The second prompt begins with the first two blocks of the first, as do all that follow.
    assert table[1]["parent_id"] == table[0]["block_ids"][1]


def test_an_event_as_an_array_is_the_same_as_one_as_a_map():
    maps, arrays = EventRows(), EventRows()
    maps.add(3, message(stored(7, b"8", parent=6), {"type": "BlockRemoved", "block_hashes": [7], "medium": "GPU"},
                        {"type": "AllBlocksCleared"}))  # fmt: skip
    arrays.add(3, message(["BlockStored", [7, b"8"], 6, [], 4, None, "GPU", None, "later"],
                          ["BlockRemoved", [7], "GPU"], ["AllBlocksCleared"]))  # fmt: skip
    assert maps.take().to_pylist() == arrays.take().to_pylist()


@pytest.mark.parametrize("payload", [b"", b"\xc1", msgspec.msgpack.encode([1.0]), message(5), message([]), message({}),
                                     message(stored("x") | {"block_hashes": 3}), b"\x91" * 100_000])  # fmt: skip
def test_what_is_no_event_is_named(payload):
    with pytest.raises(ValueError, match="message 9"):
        EventRows().add(9, payload)


@pytest.mark.parametrize("payload", [message(stored(1), ts=float("inf")), message(stored(1), ts=-1.0),
                                     message(stored(1), ts=1.7e12), msgspec.msgpack.encode([1.0, [stored(1)], 1 << 15]),
                                     message(stored(1, block=1 << 31)), message(stored(1, group_idx=-1)),
                                     message(stored(None))])  # fmt: skip
def test_what_no_row_holds_is_no_event(payload):
    """It ended a recording of hours in a traceback, or left a file that cannot be read."""
    rows = EventRows()
    with pytest.raises(ValueError, match="message 9"):
        rows.add(9, payload)
    assert len(rows) == 0


def test_unknown_events_are_counted():
    rows = EventRows()
    assert rows.add(0, message({"type": "BlockUpdated"}, stored(1))) == 1
    assert rows.unknown == {"BlockUpdated": 1}
    assert show_each(
        notes_of(RecordingCounts(first=0), rows.unknown), ["1 events … 'BlockUpdated'"]
    )


class Publisher:
    """What vLLM's publisher does.

    PUB with a number a message, and a ROUTER that sends again what its buffer holds.
    """

    def __init__(self, kept):
        self.kept = kept
        self.context = zmq.Context()
        self.pub, self.router = self.context.socket(zmq.PUB), self.context.socket(zmq.ROUTER)
        for socket in (self.pub, self.router):
            socket.setsockopt(zmq.LINGER, 0)
        self.port = self.pub.bind_to_random_port("tcp://127.0.0.1")
        self.replay_port = self.router.bind_to_random_port("tcp://127.0.0.1")
        self.asked = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._answer)
        self._thread.start()

    def publish(self, number, payload):
        self.pub.send_multipart([b"kv@local", number.to_bytes(8, "big"), payload])

    def _answer(self):
        while not self._ended.is_set():
            if self.router.poll(20):
                client, _, start = self.router.recv_multipart()
                self.asked.append(int.from_bytes(start, "big"))
                for number, payload in self.kept.items():
                    if number >= self.asked[-1]:
                        self.router.send_multipart(
                            [client, b"", number.to_bytes(8, "big"), payload]
                        )
                self.router.send_multipart([client, b"", (-1).to_bytes(8, "big", signed=True), b""])

    def close(self):
        self._ended.set()
        self._thread.join()
        self.context.destroy(linger=0)


class Written:
    """Takes the place of a table's writer."""

    def __init__(self):
        self.rows = []

    def write(self, batch):
        self.rows += batch.to_pylist()


@pytest.fixture
def publisher():
    made = []

    def make(kept):
        made.append(Publisher(kept))
        return made[-1]

    yield make
    for one in made:
        one.close()


def record(publisher, sent, wanted, *, replays=True):
    """Publish `sent` (number, payload) until a recorder has heard the message `wanted`.

    Return it and its rows.
    """
    out = Written()
    replay = f"tcp://127.0.0.1:{publisher.replay_port}" if replays else None
    recorder = Recorder(f"tcp://127.0.0.1:{publisher.port}", replay, "kv@", out)
    deadline = time.monotonic() + 30
    # A subscriber hears nothing before it is connected: an empty topic until then.
    while not recorder._subscriber.poll(20):
        assert time.monotonic() < deadline
        publisher.pub.send_multipart([b"kv@hello"])
    while recorder._subscriber.poll(0):
        recorder._subscriber.recv_multipart()
    for number, payload in sent:
        publisher.publish(number, payload)
    publisher.publish(*wanted)

    def is_done():
        assert time.monotonic() < deadline
        return recorder._next == wanted[0] + 1

    return recorder.run(is_done, lambda _events: None), out.rows


def test_messages_that_were_dropped_are_asked_for_again(publisher):
    every = dict(enumerate(payloads()))
    sent = [(n, every[n]) for n in (3, 4, 6)]
    # The buffer of the engine has lost message 0 and 1 already.
    heard, rows = record(
        publisher({n: p for n, p in every.items() if 2 <= n < 7}), sent, (7, every[7])
    )
    assert [heard.first, heard.messages, heard.lost, heard.restarts] == [2, 6, 0, 0]
    assert [row["sequence"] for row in rows if row["event"] == "stored"] == [2, 3, 4, 5, 6, 7]
    assert any("number 2" in note for note in notes_of(heard, {}))


def test_what_cannot_be_had_again_is_counted(publisher):
    every = dict(enumerate(payloads()))
    heard, rows = record(
        publisher({}), [(0, every[0]), (2, every[2])], (6, every[6]), replays=False
    )
    assert [heard.messages, heard.lost, heard.replayed] == [3, 4, 0]
    assert [row["sequence"] for row in rows] == [0, 2, 6]
    assert show_each(notes_of(heard, {}), ["4 messages"])


def test_an_engine_that_starts_again(publisher):
    a, b = message(stored(1)), message(stored(2))
    heard, rows = record(publisher({}), [(7, a), (8, a), (0, b)], (1, b), replays=False)
    assert [heard.restarts, heard.lost, heard.messages] == [1, 0, 4]
    assert [row["sequence"] for row in rows] == [7, 8, 0, 1]


def test_garbage_does_not_end_a_recording(publisher):
    heard, rows = record(
        publisher({}), [(0, b"\xc1"), (1, b"")], (2, message(stored(1))), replays=False
    )
    assert [heard.unreadable, heard.events] == [2, 1]
    assert len(rows) == 1


def test_ctrl_c_leaves_a_valid_file(tmp_path, publisher):
    one = publisher(dict(enumerate(payloads())))
    out = tmp_path / "events.parquet"
    ends = [
        "--zmq",
        f"tcp://127.0.0.1:{one.port}",
        "--replay",
        f"tcp://127.0.0.1:{one.replay_port}",
    ]
    command = [
        sys.executable,
        "-c",
        "from kvtrace.cli import main; main()",
        "record",
        *ends,
        "-o",
        str(out),
        "--json",
    ]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=dict(os.environ)
    )
    assert b"recording" in process.stderr.readline()
    deadline = time.monotonic() + 60
    while not one.asked:  # It asks for all that was before it first of all.
        assert time.monotonic() < deadline
        time.sleep(0.02)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    shown, said = process.communicate(timeout=60)
    assert process.returncode == 0, said
    assert msgspec.json.decode(shown)["messages"] == 8
    assert open_table(out, EVENTS).meta.rows == len(read_table(out, EVENTS)) == 83
    assert detect(out) == "kv-events"
    assert [p.name for p in tmp_path.iterdir()] == ["events.parquet"]


def test_silence_is_said_and_leaves_no_file(tmp_path, monkeypatch, capsys):
    options = ["--zmq", "tcp://127.0.0.1:9", "--duration", "200ms", "-o", tmp_path / "e.parquet"]
    assert kvtrace(monkeypatch, "record", *options) == 3
    assert "tcp://127.0.0.1:9" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_an_endpoint_that_is_none(tmp_path, monkeypatch, capsys):
    assert (
        kvtrace(monkeypatch, "record", "--zmq", "localhost:5557", "-o", tmp_path / "e.parquet") == 2
    )
    assert "--zmq localhost:5557" in capsys.readouterr().err


def events(tmp_path, *messages):
    """Write the messages (ts, events) as an events table and return its path."""
    from kvtrace.core.metadata import describe
    from kvtrace.core.tables import create

    rows, path = EventRows(), tmp_path / "e.parquet"
    for number, (ts, said) in enumerate(messages):
        rows.add(number, message(*said, ts=ts))
    with create(path, EVENTS, describe(EVENTS, "kvtrace", [], {})) as out:
        out.write(rows.take())
    return path


def test_requests_of_vllms_events(tmp_path):
    path = events(
        tmp_path, *((1.0 + n, msgspec.msgpack.decode(p)[1]) for n, p in enumerate(payloads()))
    )
    requests = events_file.read(path)
    # Prompts of run_vllm.py: 26 blocks, then 2 shared blocks and the stores; the fifth store is an
    # answer's block.
    tokens = (requests.input_tokens // 32).tolist()
    assert tokens == [26, 28, 28, 8, 26, 18, 90]
    assert (requests.output_tokens // 32).tolist() == [0, 0, 0, 1, 0, 0, 0]
    assert len({int(requests.block_ids[requests.block_offsets[n]]) for n in range(7)}) == 1


def test_chunks_of_a_prompt_an_answer_and_the_next_turn(tmp_path):
    path = events(
        tmp_path,
        (1.0, [stored(1, 2)]),
        (1.1, [stored(3, 4, parent=2)]),  # its second chunk
        (1.5, [stored(5, parent=4)]),  # its answer
        (
            1.6,
            [
                stored(6, parent=5, medium="CPU"),
                {"type": "BlockRemoved", "block_hashes": [1], "medium": "GPU"},
            ],
        ),
        (9.0, [stored(7, 8, parent=5)]),  # the next turn, after a pause
        (9.1, [stored(20, parent=99)]),  # behind a block that was never seen stored
    )
    requests = events_file.read(path)
    assert requests.input_tokens.tolist() == [16, 28, 8]
    assert requests.output_tokens.tolist() == [4, 0, 0]
    assert requests.arrival_ns.tolist() == [0, 8 * 10**9, 8.1 * 10**9]
    assert requests.block_ids.tolist()[4:11] == [0, 1, 2, 3, 4, 5, 6]
    assert (requests.origin["unknown_parents"], requests.origin["stores_not_used"]) == (1, 1)


def test_a_chunk_of_one_block_within_a_prompt_is_of_the_prompt(tmp_path):
    """It was an answer's block.

    The prompt's chain had a gap, and what asks for the same again found half of it.
    """
    path = events(
        tmp_path,
        (1.0, [stored(1, 2, 3)]),
        (1.1, [stored(4, parent=3)]),  # a step that computes one block of the prompt
        (1.2, [stored(5, 6, parent=4)]),
        (1.3, [stored(7, parent=6)]),  # the answer
        (9.0, [stored(8, 9, parent=6)]),  # the same prompt, and more
    )
    requests = events_file.read(path)
    assert (requests.input_tokens // 4).tolist() == [6, 8]
    assert (requests.output_tokens // 4).tolist() == [1, 0]
    first, second = (
        requests.block_ids[slice(*requests.block_offsets[n : n + 2])].tolist() for n in (0, 1)
    )
    assert second[:6] == first
    assert requests.origin["rechained_ids"] == 0


@pytest.mark.parametrize(
    ("blocks", "sizes"), [((None, 4), r"\[0, 4\]"), ((0,), r"\[0\]"), ((4, 8), r"\[4, 8\]")]
)
def test_blocks_of_no_size_or_of_several_are_refused(tmp_path, blocks, sizes):
    path = events(tmp_path, *((1.0, [stored(n, block=block)]) for n, block in enumerate(blocks)))
    with pytest.raises(TraceError, match=f"{sizes} tokens:"):
        events_file.read(path)
