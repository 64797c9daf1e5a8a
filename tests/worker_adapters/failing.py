"""Everything that an adapter's process can do wrong: `sample` does what the option `how` says."""

import ctypes
import os
import signal
import subprocess
import sys
import time

import numpy as np

CHUNK = 2**22


class Failing:
    def __init__(self, how="nothing", when="call"):
        self.how = how
        if when == "start":
            getattr(self, how)()

    def sample(self, p, q, n, seed):
        answer = getattr(self, self.how)()
        return np.zeros(n, np.int64) if answer is None else answer

    def act(self, how):
        return getattr(self, how)()

    def nothing(self):
        pass

    # Ends

    def segfault(self):
        ctypes.string_at(0)

    def abort(self):
        os.abort()

    def exit(self):
        os.write(1, b"last words\n")
        os._exit(3)

    def exit_quietly(self):
        os._exit(0)

    def kill_group(self):
        os.killpg(0, signal.SIGKILL)

    def kill_guardian(self):
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(3600)

    def close_pipes(self):
        os.closerange(3, 256)

    # Hangs

    def sleep(self):
        while True:
            time.sleep(3600)

    def spin(self):
        while True:
            pass

    def stubborn(self):
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGABRT):
            signal.signal(number, signal.SIG_IGN)
        self.sleep()

    def stopped(self):
        os.kill(os.getpid(), signal.SIGSTOP)

    # Memory

    def allocate(self):
        kept = []
        while True:
            kept.append(np.ones(CHUNK))

    def allocate_in_child(self):
        code = "import numpy\nkept = []\nwhile True: kept.append(numpy.ones(2**22))"
        subprocess.run([sys.executable, "-c", code], check=False)

    # Noise

    def print_all(self):
        print("printed by Python")
        sys.stderr.write("written to stderr\n")
        os.write(1, b"written to descriptor 1\n")
        libc = ctypes.CDLL(None)
        libc.puts(b"put by C")
        libc.fflush(None)
        subprocess.run([sys.executable, "-c", "print('printed by a subprocess')"], check=True)

    def flood(self):
        os.write(1, b"noise\n" * 2**15)

    # Answers that are none

    def objects(self):
        return np.array([object()])

    def word(self):
        return "token"

    def generator(self):
        return (i for i in range(3))

    def complex_numbers(self):
        return np.zeros(3, complex)

    def unreadable(self):
        class Unreadable:
            def __repr__(self):
                raise RuntimeError("no repr")

            def __array__(self, dtype=None, copy=None):
                raise RuntimeError("no array")

        return Unreadable()

    def nest(self):
        value = []
        value.append(value)
        return value

    def huge(self):
        return np.lib.stride_tricks.as_strided(np.zeros(2**17), (2**16, 2**16), (8, 8))

    def garbage_bytes(self):
        for descriptor in range(3, 64):
            try:
                os.write(descriptor, b"this is no frame of any protocol at all")
            except OSError:
                continue

    # Raises

    def raise_error(self):
        raise ValueError("the draft\nis too long")

    def raise_exit(self):
        sys.exit(4)

    def raise_interrupt(self):
        raise KeyboardInterrupt

    def raise_memory(self):
        raise MemoryError

    # Descendants

    def family(self):
        """A fork, a subprocess in a session of its own, and a daemon that nobody is the parent of."""
        if os.fork() == 0:
            _sleep_for_ever()
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"], start_new_session=True)
        middle = os.fork()
        if middle == 0:
            os.setsid()
            if os.fork() == 0:
                _sleep_for_ever()
            os._exit(0)
        os.waitpid(middle, 0)

    def family_and_segfault(self):
        self.family()
        self.segfault()

    def family_and_sleep(self):
        self.family()
        self.sleep()

    def forgotten_fork(self):
        child = os.fork()
        if child:
            os.waitpid(child, 0)


def _sleep_for_ever():
    while True:
        time.sleep(3600)
