"""`--engine threads`: a thread an I/O in flight, each of which takes its own next piece, and a few that make data."""

from __future__ import annotations

import threading

from kvreplay.engine import mailbox
from kvreplay.engine.job import IoEngine, Job
from kvreplay.engine.rings.rings import Rings
from kvreplay.engine.submitter import Submitter
from kvreplay.engine.workers import Check, Opened, Step

_NS_PER_S = 10**9
_NEVER = 1 << 62
"""A time that no run comes to."""


class ThreadSubmitter(Submitter):
    """One job whose pieces are done by the threads that take them: nothing stands between a completion and the next.

    All that they share is behind one lock. One at a time, the leader, sleeps until something is due or data is made;
    others with nothing to do wait for a completion that brings them some.
    The calling thread takes part only where it is alone; else it looks on.
    """

    def __init__(self, engine: IoEngine, job: Job) -> None:
        """Prepare to do `job` with the buffers of `engine`."""
        super().__init__(engine, job, Rings())
        self._lock, self._started = threading.Lock(), threading.Event()
        self._followers, self._ended = threading.Condition(self._lock), threading.Condition(self._lock)
        self._is_alone = False
        """Whether the calling thread does all pieces."""
        self._waiting = 0
        """Followers asleep."""
        self._leads_until: int | None = None
        """When the leader will wake up; None if there is none."""
        self._endings: list[Step] = []
        self._workers.tell = self._told

    def _start_threads(self, count: int) -> None:
        self._is_alone = count == 0
        # One more sees to copies while all pieces are out.
        more = 1 if count and self._copiers is not None else 0
        self._workers.start(self._engine.generators, count + more, self._serve)

    def _idle_ns(self) -> int | None:
        return None

    def _stop(self) -> None:
        with self._lock:
            self._schedule.stop()
            self._wake()
        self._started.set()

    def _go_on(self, until_ns: int) -> bool:
        self._started.set()
        if self._is_alone:
            self._serve(until_ns)
        with self._lock:
            self._take_mail()
            if not self._is_alone and not self._is_done:
                self._ended.wait((until_ns - self._now()) / _NS_PER_S)
            return self._is_done

    @property
    def _is_done(self) -> bool:
        return self._is_ended and not self._out

    @property
    def _is_ended(self) -> bool:
        """Whether no piece will be done any more, and nothing is copied."""
        return self._schedule.is_over and not self._pump.copying

    def _serve(self, until_ns: int = _NEVER) -> None:
        """Do one piece after the other, until none will come or it is `until_ns`."""
        self._started.wait()
        lock, workers = self._lock, self._workers
        is_alone_paced = self._depth == 1 and self._job.due_ns is not None
        with lock:
            while True:
                step = self._next()
                if step is None:
                    if self._is_ended:
                        self._wake()
                        self._ended.notify()
                        return
                    if self._now() >= until_ns:
                        return
                    self._rest(until_ns)
                    continue
                if self._waiting or self._leads_until is not None:
                    self._wake()
                taken_ns = self._now() if is_alone_paced else 0
                lock.release()
                try:
                    workers.do(step)
                finally:
                    lock.acquire()
                self._answer(step)
                if is_alone_paced:
                    self._pump.note_held(taken_ns, self._now())
                if step.done_ns >= until_ns:
                    return

    def _next(self) -> Step | None:
        """Return what to do now, if anything."""
        self._take_mail()
        if self._endings:
            return self._endings.pop()
        submission = self._pump.next_piece(self._out)
        return None if submission is None else self._step(submission)

    def _take_mail(self) -> None:
        for item in self._mail.answers():
            self._answer(item)

    def _hand_on(self, item: Step | Check) -> None:
        """Keep the end of a longer operation for the thread that did its last piece."""
        assert isinstance(item, Step), "a thread checks what it read at once"
        self._endings.append(item)

    def _told(self, item: Opened) -> None:
        with self._lock:
            self._answer(item)
            self._wake()

    def _rest(self, until_ns: int) -> None:
        """Sleep until there may be something to do, or `until_ns`."""
        if self._leads_until is not None:
            self._wake()
            self._waiting += 1
            self._followers.wait()
            self._waiting -= 1
            return
        self._leads_until = until_ns = self._pump.fall_asleep(until_ns)
        self._lock.release()
        try:
            self._pump.doze(until_ns)
        finally:
            self._lock.acquire()
            self._leads_until = None

    def _wake(self) -> None:
        """Wake a thread for what can be done now, or for what comes before the leader would wake up."""
        if self._is_ended:
            self._followers.notify_all()
            self._mail.wake(mailbox.FULL)
        elif self._leads_until is None:
            self._followers.notify()
        elif (due := self._pump.next_turn(self._leads_until)) < self._leads_until:
            if self._waiting and due <= self._now():
                self._followers.notify()
            else:
                self._mail.wake(mailbox.FULL)
