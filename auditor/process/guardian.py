"""The guardian of a worker: a tiny process that outlives the worker and leaves nothing behind.

The audit starts the guardian in a session of its own, and the guardian forks the worker, before NumPy or any engine (and
their threads) exist. It holds the reading end of a lifeline whose writing end is the audit's alone: when the audit closes
it, or dies of whatever, even SIGKILL, the lifeline ends and the guardian kills the worker, the worker's process group and
every other descendant. It adopts orphaned descendants (Linux's child subreaper), so that a grandchild which put itself into
a session of its own is found too; a death signal of the parent would miss all of these.

It says two things on its status pipe, one line each: "worker PID" at the start, and how the worker ended, "exit CODE" or
"signal NUMBER". One byte on the lifeline asks it to abort the worker, so that `faulthandler` writes where it hangs.

Imports the standard library only.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import sys
import time
from typing import NamedTuple, NoReturn

KILL_SECONDS = 5.0
ADOPT_ORPHANS, DIE_WITH_PARENT = 36, 1  # PR_SET_CHILD_SUBREAPER, PR_SET_PDEATHSIG of linux/prctl.h
PAGE = os.sysconf("SC_PAGE_SIZE")


class Process(NamedTuple):
    """One row of the process table; `rss` in bytes."""

    parent: int
    session: int
    rss: int


def process_table() -> dict[int, Process]:
    """Every living process, from /proc (proc(5)); empty on a system without it."""
    table: dict[int, Process] = {}
    for name in os.listdir("/proc") if os.path.isdir("/proc") else []:
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    text = file.read()
            except OSError:  # it ended meanwhile
                continue
            # The command's name stands in parentheses and may hold spaces and parentheses itself.
            fields = text[text.rindex(b")") + 2 :].split()
            if fields[0] not in (b"Z", b"X"):
                table[int(name)] = Process(int(fields[1]), int(fields[3]), int(fields[21]) * PAGE)
    return table


def family(root: int) -> dict[int, Process]:
    """The descendants of a session's leader and whoever else is in its session, without the leader itself."""
    table = process_table()
    children: dict[int, list[int]] = {}
    for pid, process in table.items():
        children.setdefault(process.parent, []).append(pid)
    found = {pid for pid, process in table.items() if process.session == root}
    waiting = [root, *found]
    while waiting:
        new = [pid for pid in children.get(waiting.pop(), ()) if pid not in found]
        found.update(new)
        waiting.extend(new)
    return {pid: table[pid] for pid in found if pid != root}


def fork_guarded(lifeline: int, status: int) -> None:
    """Fork. The child returns from this, as the worker; the parent stays behind as its guardian and never returns."""
    wake, wake_end = os.pipe()
    os.set_blocking(wake_end, False)
    # A signal that arrives between a look at the children and the wait for events must end the wait.
    signal.set_wakeup_fd(wake_end, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    _control(ADOPT_ORPHANS, 1)
    guardian = os.getpid()
    worker = os.fork()
    if worker:
        _guard(worker, lifeline, status, wake, wake_end)
    os.setpgid(0, 0)
    _control(DIE_WITH_PARENT, signal.SIGKILL)
    if os.getppid() != guardian:  # it died before the line above
        os._exit(1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.set_wakeup_fd(-1)
    for descriptor in (wake, wake_end, lifeline, status):
        os.close(descriptor)


def _control(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _guard(worker: int, lifeline: int, status: int, wake: int, wake_end: int) -> NoReturn:
    with contextlib.suppress(ProcessLookupError, PermissionError):  # the worker does it too: whoever comes first
        os.setpgid(worker, worker)
    for name in os.listdir("/dev/fd"):
        if int(name) > 2 and int(name) not in (lifeline, status, wake, wake_end):
            with contextlib.suppress(OSError):  # the listing's own descriptor is closed already
                os.close(int(name))
    _say(status, f"worker {worker}")
    events = select.poll()
    events.register(lifeline, select.POLLIN)
    events.register(wake, select.POLLIN)
    ended: str | None = None
    alive = True
    while alive and ended is None:
        for descriptor, _ in events.poll():
            command = os.read(descriptor, 4096)
            if descriptor == lifeline:
                alive = command != b""
                if alive:
                    os.kill(worker, signal.SIGABRT)
        ended = _ended(worker)
    if ended is not None:
        _say(status, ended)
    _kill_all(worker)
    os._exit(0)


def _say(status: int, line: str) -> None:
    with contextlib.suppress(OSError):  # nobody listens any more
        os.write(status, line.encode() + b"\n")


def _ended(worker: int) -> str | None:
    """How the worker ended, or None while it runs; it stays unreaped, so that its number still names its group."""
    if sys.platform == "darwin" and sys.version_info < (3, 13):  # no waitid there
        pid, code = os.waitpid(worker, os.WNOHANG)
        code = os.waitstatus_to_exitcode(code)
        return None if not pid else f"exit {code}" if code >= 0 else f"signal {-code}"
    while True:
        found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if found is None:
            return None
        if found.si_pid == worker:
            return f"exit {found.si_status}" if found.si_code == os.CLD_EXITED else f"signal {found.si_status}"
        os.waitpid(found.si_pid, 0)  # an adopted orphan


def _kill_all(worker: int) -> None:
    # First the group, then the wait: once the worker is reaped, its number may belong to somebody else.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(worker, signal.SIGKILL)
    end = time.monotonic() + KILL_SECONDS
    while time.monotonic() < end:
        for pid in family(os.getpid()):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:  # no child is left, and an orphan would be one
            return
        time.sleep(0.002)
