"""One worker process: started, spoken to with time limits, watched, and ended with everything that it started."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO, Any, NoReturn

from auditor.errors import WorkerCrashed, WorkerGarbled, WorkerHung, WorkerOutOfMemory
from auditor.process import wire
from auditor.process.guardian import KILL_SECONDS, family
from auditor.process.interpreter import environment

CHILD = Path(__file__).with_name("child.py")
TICK = 0.05
"""Seconds between two looks at the memory while a call runs; between calls at most every 10 ticks."""
ABORT_SECONDS = 1.0
"""What a hanging worker gets to write where it hangs."""
CLOSE_SECONDS = 3.0
"""What an idle worker gets to end by itself, for the engine's own cleaning up."""
TAIL = 6000
"""Bytes of the log that go with a failure."""
PIPE_BYTES = 2**20


class WorkerProcess:
    """A guardian with its worker (see `auditor.process.guardian`), in a session of their own, and four pipes to them.

    Whatever the worker prints goes to `log` (appended), or to an unnamed file that is only kept for messages about failures.
    `memory_limit` (bytes) is compared to the resident memory of all its processes together; pages that they share count
    for each of them. Raises `OSError` where the interpreter cannot be started.
    """

    def __init__(self, python: str, log: Path | None, memory_limit: int | None) -> None:
        self.memory_limit = memory_limit
        self._log: IO[bytes] = log.open("ab+") if log is not None else tempfile.TemporaryFile()  # noqa: SIM115
        self._said = os.fstat(self._log.fileno()).st_size
        requests, self._requests = os.pipe()
        self._answers, answers = os.pipe()
        lifeline, self._lifeline = os.pipe()
        self._status, status = os.pipe()
        theirs, ours = (
            (requests, answers, lifeline, status),
            (self._requests, self._answers, self._lifeline, self._status),
        )
        try:
            self._process = subprocess.Popen(
                [python, str(CHILD), *map(str, theirs)],
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                pass_fds=theirs,
                env=environment(python),
                start_new_session=True,
            )
        except OSError:
            for descriptor in ours:
                os.close(descriptor)
            self._log.close()
            raise
        finally:
            for descriptor in theirs:
                os.close(descriptor)
        self._open = list(ours)
        self._news = b""
        self._ended: str | None = None
        self._watched = 0.0
        for pipe in (self._requests, self._answers):
            if sys.platform == "linux":
                with contextlib.suppress(OSError):  # a limit of the system: slower for large arrays, no more
                    fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        for pipe in (self._requests, self._answers, self._status):
            os.set_blocking(pipe, False)
        self._writable, self._readable, self._news_waiting = select.poll(), select.poll(), select.poll()
        self._writable.register(self._requests, select.POLLOUT)
        self._readable.register(self._answers, select.POLLIN)
        for poll in (self._writable, self._readable, self._news_waiting):
            poll.register(self._status, select.POLLIN)

    @property
    def alive(self) -> bool:
        """Whether it can be spoken to."""
        return bool(self._open)

    @property
    def guardian(self) -> int:
        """The process id of the guardian, which is the leader of the session."""
        return self._process.pid

    def exchange(self, method: str, request: dict[str, Any], end: float, limit: str) -> dict[str, Any]:
        """Send a request and return its answer.

        `end` is the time (`time.monotonic`) when waiting is over, `limit` says in words which limit that is. Raises
        `WorkerCrashed`, `WorkerHung`, `WorkerOutOfMemory` or `WorkerGarbled`, each after everything has been killed, and
        `wire.Unsendable` (nothing was sent) where the request itself has no form on the wire. Any other exception, such as a
        `KeyboardInterrupt`, kills the worker too: half a message makes the pipe useless.
        """
        pieces = wire.pack(request)
        self._said = os.fstat(self._log.fileno()).st_size
        began = time.monotonic()
        try:
            self._look()
            while pieces:
                try:
                    wire.write_some(self._requests, pieces)
                except BlockingIOError:
                    self._wait(self._writable, self._requests, end)
                except BrokenPipeError:
                    self._closed()
            return wire.receive(lambda view: self._read(view, end))
        except _Ended:
            self.kill()
            raise WorkerCrashed(method, f"its process {self._death()}", self.tail()) from None
        except _TimeUp:
            self._abort()
            self.kill()
            raise WorkerHung(
                method, f"no answer after {time.monotonic() - began:.1f} s ({limit})", self.tail()
            ) from None
        except _TooLarge as error:
            self.kill()
            used, most = error.bytes / 2**20, (self.memory_limit or 0) / 2**20
            text = f"its processes used {used:.0f} MiB of memory, where {most:.0f} MiB is the limit"
            raise WorkerOutOfMemory(method, text, self.tail()) from None
        except wire.Malformed as error:
            self.kill()
            raise WorkerGarbled(method, f"its answer is no message: {error}", self.tail()) from None
        except BaseException:
            self.kill()
            raise

    def close(self) -> None:
        """Let it end by itself for a moment, then kill what is left. Does nothing where it is not alive."""
        if self._open:
            self._open.remove(self._requests)
            os.close(self._requests)
            with contextlib.suppress(_Ended, _TimeUp, _TooLarge):
                self._wait(self._news_waiting, -1, time.monotonic() + CLOSE_SECONDS)
            self.kill()
        self._log.close()

    def kill(self) -> None:
        """Kill it and everything that it started; no process is left when this returns."""
        if not self._open:
            return
        self._open.remove(self._lifeline)
        os.close(self._lifeline)
        try:
            self._process.wait(KILL_SECONDS + 5)
        except subprocess.TimeoutExpired:
            self._kill_session()
        else:
            if self._process.returncode:  # the guardian itself was killed, or never came to its work
                self._kill_session()
        self._news += self._drain()
        for descriptor in self._open:
            os.close(descriptor)
        self._open.clear()

    def tail(self) -> str:
        """What it wrote to its log since the last request was sent, its end alone where that is long."""
        if self._log.closed:
            return ""
        descriptor = self._log.fileno()
        size = os.fstat(descriptor).st_size
        start = max(self._said, size - TAIL)
        text = os.pread(descriptor, max(0, size - start), start).decode("utf-8", "replace").strip()
        return f"[...]\n{text}" if start > self._said else text

    def _read(self, view: memoryview, end: float) -> int:
        while True:
            try:
                read = os.readv(self._answers, [view])
            except BlockingIOError:
                self._wait(self._readable, self._answers, end)
                continue
            return read or self._closed()

    def _wait(self, poll: select.poll, wanted: int, end: float) -> None:
        """Until the pipe is ready. Raises `_Ended`, `_TimeUp` and `_TooLarge`."""
        while True:
            left = end - time.monotonic()
            if left <= 0:
                raise _TimeUp
            pause = left if self.memory_limit is None else min(left, TICK)
            ready = [descriptor for descriptor, _ in poll.poll(max(1, int(pause * 1000)))]
            if wanted in ready:
                return
            if self._status in ready:
                self._read_news()
            if self.memory_limit is not None and time.monotonic() - self._watched >= TICK:
                self._weigh()

    def _closed(self) -> NoReturn:
        """A pipe was closed: by the worker's end, whose cause comes next, or by hand."""
        with contextlib.suppress(_TimeUp):
            self._wait(self._news_waiting, -1, time.monotonic() + 1.0)
        raise _Ended

    def _look(self) -> None:
        """At the start of a call: whether it ended since the last one, and its memory."""
        if self._news_waiting.poll(0):
            self._read_news()
        if self.memory_limit is not None and time.monotonic() - self._watched >= 10 * TICK:
            self._weigh()

    def _read_news(self) -> None:
        news = self._drain()
        self._news += news
        if not news or b"exit" in self._news or b"signal" in self._news:
            raise _Ended

    def _drain(self) -> bytes:
        try:
            return os.read(self._status, 4096)
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EBADF):
                raise
            return b""

    def _weigh(self) -> None:
        self._watched = time.monotonic()
        used = sum(process.rss for process in family(self._process.pid).values())
        if self.memory_limit is not None and used > self.memory_limit:
            raise _TooLarge(used)

    def _abort(self) -> None:
        """Ask the guardian to abort the worker, so that its log says where it hangs."""
        with contextlib.suppress(OSError, _Ended, _TimeUp, _TooLarge):
            os.write(self._lifeline, b"A")
            self._wait(self._news_waiting, -1, time.monotonic() + ABORT_SECONDS)

    def _kill_session(self) -> None:
        # The guardian is not reaped where it timed out, and a session keeps its number while it has a member.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            self._process.kill()
        end = time.monotonic() + KILL_SECONDS
        while (left := family(self._process.pid)) and time.monotonic() < end:
            for pid in left:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.005)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(KILL_SECONDS)

    def _death(self) -> str:
        """How it ended, in words."""
        for line in self._news.decode("ascii", "replace").splitlines():
            what, _, number = line.partition(" ")
            if what == "exit":
                return f"ended by itself with exit code {number}"
            if what == "signal":
                return f"was killed by {signal_name(int(number))}"
        if self._news:
            return "closed its pipes" if self._process.returncode == 0 else "was killed together with its guardian"
        return f"ended with exit code {self._process.returncode} before it began"


def signal_name(number: int) -> str:
    """A signal as people know it; SIGKILL is what the kernel sends when the machine's memory is used up."""
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = "unknown"
    hint = "; the kernel sends it when the machine's memory is used up" if number == signal.SIGKILL else ""
    return f"signal {number} ({name}{hint})"


class _Ended(Exception):
    """The worker is gone."""


class _TimeUp(Exception):
    """No answer in time."""


class _TooLarge(Exception):
    """Too much memory."""

    def __init__(self, used: int) -> None:
        super().__init__(used)
        self.bytes = used
