"""An adapter in a process of its own: it answers as it would here, whatever it does is told as what it is, nothing is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import sysconfig
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from auditor import worker
from auditor.adapter import Law, Mode, Model, Round, Settings
from auditor.errors import (
    AdapterBroken,
    AdapterNotFound,
    CallFailed,
    EngineMissing,
    WorkerCrashed,
    WorkerFailed,
    WorkerGarbled,
    WorkerHung,
    WorkerOutOfMemory,
    WorkerUnavailable,
)
from auditor.process.guardian import process_table

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")

HERE = Path(__file__).parent
ROOT = HERE.parent
PLAIN = f"{HERE / 'worker_adapters' / 'plain.py'}:Plain"
FAILING = f"{HERE / 'worker_adapters' / 'failing.py'}:Failing"
PATIENCE = 60.0
HALF = np.array([0.5, 0.5])

Start = Callable[..., worker.RemoteAdapter]


def marked(mark: str) -> list[int]:
    """Living processes with the mark in their environment, whoever their parent is."""
    found = []
    for pid in process_table():
        try:
            if mark.encode() in Path(f"/proc/{pid}/environ").read_bytes():
                found.append(pid)
        except OSError:
            continue
    return found


def comes_to(mark: str, count: int) -> bool:
    """Whether there are so many, now or soon."""
    end = time.monotonic() + PATIENCE
    while len(marked(mark)) != count:
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


@pytest.fixture
def mark(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    value = uuid.uuid4().hex
    monkeypatch.setenv("AUDIT_TEST_MARK", value)
    yield value
    left = marked(value)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left


@pytest.fixture
def start(mark: str) -> Iterator[Start]:
    made = []

    def make(source: str = FAILING, mode: str | None = None, options: dict[str, Any] | None = None, **limits: Any):
        made.append(
            worker.start(source, mode, options or {}, **{"call_timeout": PATIENCE, "start_timeout": PATIENCE, **limits})
        )
        return made[-1]

    yield make
    for adapter in made:
        adapter.close()
        assert not adapter.alive


# ---------------------------------------------------------------------------------------------------- answers as here


def test_it_has_what_the_adapter_has(start: Start) -> None:
    adapter = start(PLAIN, "two", {"scale": "2.5"}, tolerance=1e-4)
    assert (adapter.rule, adapter.tolerance, adapter.settings) == ("match", 1e-4, ("temperature", "top_k"))
    assert adapter.modes == (Mode("one"), Mode("two", rule="match", summary="the second"))
    assert (adapter.mode, adapter.scale) == ("two", 2.5)
    assert adapter.engine == {"numpy": np.__version__}
    assert adapter.versions["python"] == sys.version.split()[0]
    assert all(
        callable(getattr(adapter, name)) for name in ("sample", "verify", "law", "speculate", "generate", "echo")
    )
    for name in ("plain", "module", "broken", "_private"):
        assert not hasattr(adapter, name)


def test_it_answers_as_it_would_here(start: Start) -> None:
    adapter = start(PLAIN)
    p, q = np.array([[0.2, 0.8], [0.9, 0.1]]), np.array([[0.5, 0.5]])
    batch_p, batch_q = np.broadcast_to(p, (3, 2, 2)), np.broadcast_to(q, (3, 1, 2))
    drafts = np.array([[0], [1], [0]])
    tokens, accepted = adapter.sample(p[0], q[0], 5, 7)
    assert np.array_equal(tokens, np.random.default_rng(7).choice(2, size=5, p=p[0]))
    assert accepted.dtype == np.bool_
    assert adapter.verify(batch_p, batch_q, drafts, 1).tolist() == [[0, 0], [1, 0], [0, 0]]
    law = adapter.law(batch_p, batch_q, drafts)
    assert isinstance(law, Law)
    assert np.array_equal(law.bonus, batch_p[:, -1])
    rounds = adapter.speculate(p, q, 4, 1)
    assert isinstance(rounds, Round)
    assert rounds.draft_probs.shape == (4, 1, 2)
    model = Model("key", 2, "/target", "/draft", {"table": p})
    first, second = adapter.generate(model, [[1], [1, 0]], 2, Settings(temperature=0.5), 3)
    assert (first.tokens.tolist(), second.tokens.tolist(), first.finish) == ([1, 2], [2, 3], "key 0.5")


def test_views_arrive_as_views(start: Start) -> None:
    row = np.linspace(0, 1, 131_072)
    strides, shape, writable, last = start(PLAIN).strides(np.broadcast_to(row, (4_000, 5, row.size)))
    assert (strides, shape, writable, last) == ((0, 0, 8), (4_000, 5, row.size), False, 1.0)


def test_large_messages_go_both_ways(start: Start) -> None:
    array = np.arange(2**21, dtype=np.float64)
    back, named = start(PLAIN).echo(array, flag=array[::-1])
    assert np.array_equal(back[0], array)
    assert np.array_equal(named["flag"], array[::-1])


def test_a_request_without_a_form_is_an_error_of_the_caller(start: Start) -> None:
    adapter = start(PLAIN)
    with pytest.raises(TypeError, match="object"):
        adapter.echo(object())
    assert adapter.echo(1) == (1,)


@pytest.mark.parametrize("how", ["objects", "word", "generator", "complex_numbers", "unreadable"])
def test_an_answer_without_a_form_is_described(start: Start, how: str) -> None:
    adapter = start()
    answer = adapter.act(how)
    if how == "word":
        assert answer == "token"
    else:
        with pytest.raises(TypeError):
            np.asarray(answer)
    assert adapter.act("nothing") is None


@pytest.mark.parametrize(("how", "words"), [("nest", "nested deeper"), ("huge", "MB of numbers")])
def test_an_answer_that_no_message_carries(start: Start, how: str, words: str) -> None:
    adapter = start()
    with pytest.raises(WorkerGarbled, match=words) as caught:
        adapter.act(how)
    assert caught.value.alive
    assert adapter.alive
    assert adapter.act("nothing") is None


@pytest.mark.parametrize(
    ("how", "summary"),
    [
        ("raise_error", "ValueError: the draft is too long"),
        ("raise_exit", "SystemExit: 4"),
        ("raise_interrupt", "KeyboardInterrupt"),
        ("raise_memory", "MemoryError"),
    ],
)
def test_an_exception_comes_back_and_the_worker_lives_on(start: Start, how: str, summary: str) -> None:
    adapter = start()
    with pytest.raises(CallFailed) as caught:
        adapter.act(how)
    assert caught.value.summary == summary
    assert not isinstance(caught.value, WorkerFailed)
    assert f"in {how}" in caught.value.traceback
    assert "process/child" not in caught.value.traceback
    assert adapter.act("nothing") is None
    assert adapter.starts == 1


def test_printing_goes_to_the_log(start: Start, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "adapter.log"
    adapter = start(log=log)
    adapter.act("flood")
    assert adapter.act("print_all") is None
    text = log.read_text()
    for line in (
        "printed by Python",
        "written to stderr",
        "written to descriptor 1",
        "put by C",
        "printed by a subprocess",
    ):
        assert line in text
    adapter.restart()
    adapter.act("print_all")
    assert log.read_text().count("put by C") == 2
    assert capfd.readouterr() == ("", "")


# ------------------------------------------------------------------------------------------------- failures, told apart

ENDS = [
    ("segfault", WorkerCrashed, "SIGSEGV"),
    ("abort", WorkerCrashed, "SIGABRT"),
    ("exit", WorkerCrashed, "exit code 3"),
    ("exit_quietly", WorkerCrashed, "exit code 0"),
    ("kill_group", WorkerCrashed, "SIGKILL"),
    ("kill_guardian", WorkerCrashed, "guardian"),
    ("close_pipes", WorkerCrashed, "exit code|closed its pipes"),
    ("family_and_segfault", WorkerCrashed, "SIGSEGV"),
    ("garbage_bytes", WorkerGarbled, "no message"),
]


@pytest.mark.parametrize(("how", "kind", "words"), ENDS, ids=[how for how, _, _ in ENDS])
def test_ends(start: Start, mark: str, how: str, kind: type[WorkerFailed], words: str) -> None:
    adapter = start()
    with pytest.raises(kind, match=words) as caught:
        adapter.act(how)
    assert caught.value.method == "act"
    assert marked(mark) == []
    assert not adapter.alive
    assert adapter.act("nothing") is None
    assert adapter.starts == 2


@pytest.mark.parametrize("how", ["sleep", "spin", "stubborn", "stopped", "family_and_sleep"])
def test_hangs(start: Start, mark: str, how: str) -> None:
    adapter = start(call_timeout=0.3)
    with pytest.raises(WorkerHung, match="call-timeout") as caught:
        adapter.act(how)
    assert not caught.value.audit_over
    assert marked(mark) == []
    adapter.call_timeout = PATIENCE
    assert adapter.act("nothing") is None


def test_a_crash_tells_where_and_what_was_printed(start: Start) -> None:
    adapter = start()
    with pytest.raises(WorkerCrashed) as caught:
        adapter.act("segfault")
    assert "in segfault" in caught.value.traceback
    with pytest.raises(WorkerCrashed) as caught:
        adapter.act("exit")
    assert caught.value.traceback == "last words"


def test_a_hang_tells_where(start: Start) -> None:
    adapter = start(call_timeout=3.0)
    with pytest.raises(WorkerHung) as caught:
        adapter.act("spin")
    assert "in spin" in caught.value.traceback


def test_no_call_outlasts_the_audit(start: Start) -> None:
    adapter = start()
    adapter.deadline = time.monotonic() + 0.3
    with pytest.raises(WorkerHung, match="the audit's time is up") as caught:
        adapter.act("sleep")
    assert caught.value.audit_over


@pytest.mark.parametrize("how", ["allocate", "allocate_in_child"])
def test_memory(start: Start, mark: str, how: str) -> None:
    adapter = start(memory_limit=400 * 2**20)
    with pytest.raises(WorkerOutOfMemory, match="where 400 MiB is the limit"):
        adapter.act(how)
    assert marked(mark) == []
    assert adapter.act("nothing") is None


def test_descendants_end_with_it(start: Start, mark: str) -> None:
    adapter = start()
    adapter.act("family")
    assert comes_to(mark, 5)
    adapter.close()
    assert marked(mark) == []
    adapter.close()


def test_a_forgotten_fork_does_not_answer(start: Start) -> None:
    adapter = start()
    assert adapter.act("forgotten_fork") is None
    assert adapter.act("nothing") is None


def test_it_dies_between_two_calls(start: Start, mark: str) -> None:
    adapter = start(PLAIN)
    pid, _, _ = adapter.process()
    os.kill(pid, signal.SIGKILL)
    assert comes_to(mark, 0)
    with pytest.raises(WorkerCrashed, match="SIGKILL"):
        adapter.process()
    assert adapter.count() == 1
    adapter.restart()
    assert adapter.count() == 1
    adapter.close()
    with pytest.raises(WorkerCrashed, match="closed"):
        adapter.count()


def test_a_restart_that_fails_is_a_failed_call(start: Start, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text((HERE / "worker_adapters" / "failing.py").read_text())
    adapter = start(f"{file}:Failing")
    with pytest.raises(WorkerCrashed):
        adapter.act("exit")
    file.rename(tmp_path / "away.py")
    with pytest.raises(WorkerCrashed, match="could not be started again"):
        adapter.act("nothing")
    (tmp_path / "away.py").rename(file)
    assert adapter.act("nothing") is None


def test_an_interrupted_call_ends_the_process(start: Start, mark: str, monkeypatch: pytest.MonkeyPatch) -> None:
    adapter = start()

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("auditor.process.wire.receive", interrupt)
    with pytest.raises(KeyboardInterrupt):
        adapter.act("nothing")
    assert marked(mark) == []


# ----------------------------------------------------------------------------------------------------------- the start


@pytest.mark.parametrize(
    ("how", "words"),
    [("segfault", "SIGSEGV"), ("exit", "exit code 3.*last words"), ("sleep", "start-timeout"), ("allocate", "memory")],
)
def test_failures_at_the_start(mark: str, how: str, words: str) -> None:
    limit = 2.0 if how == "sleep" else PATIENCE
    with pytest.raises(WorkerUnavailable, match=words):
        worker.start(FAILING, None, {"how": how, "when": "start"}, start_timeout=limit, memory_limit=400 * 2**20)
    assert marked(mark) == []


def test_errors_of_a_build_come_back_as_they_are(mark: str) -> None:
    with pytest.raises(AdapterBroken, match="ValueError: the draft"):
        worker.start(FAILING, None, {"how": "raise_error", "when": "start"})
    with pytest.raises(AdapterBroken, match="no_such_option"):
        worker.start(FAILING, None, {"no_such_option": 1})
    with pytest.raises(AdapterNotFound):
        worker.start(FAILING + "s", None, {})
    assert marked(mark) == []


def test_a_missing_engine_is_told(tmp_path: Path, mark: str) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "class Mine:\n    def __init__(self):\n        import no_such_engine\n    def sample(self, p, q, n, seed): ...\n"
    )
    with pytest.raises(EngineMissing, match="no_such_engine"):
        worker.start(str(file), None, {})


def test_loading_and_building_each_mode(mark: str) -> None:
    with worker.loaded_apart(PLAIN, options={"scale": "2"}, rule="onehot") as loaded:
        assert marked(mark) == []
        assert (loaded.name, loaded.summary) == ("plain:Plain", "Emits the target's own samples.")
        assert [mode.name for mode in loaded.modes] == ["one", "two"]
        for mode in loaded.modes:
            adapter = loaded.build(mode.name)
            assert isinstance(adapter, worker.RemoteAdapter)
            assert (adapter.mode, adapter.rule, adapter.scale) == (mode.name, "onehot", 2.0)
            assert comes_to(mark, 2)
    assert marked(mark) == []
    with pytest.raises(AdapterNotFound, match="no adapter is called"), worker.loaded_apart("no-such", options={}):
        pass


def test_a_plain_function(tmp_path: Path, start: Start) -> None:
    file = tmp_path / "tutorial.py"
    file.write_text("def step(p, q, rng):\n    return rng.choice(len(p), p=p), True\n")
    tokens, accepted = start(str(file)).sample(HALF, HALF, 50, 3)
    assert set(tokens.tolist()) == {0, 1}
    assert accepted.all()


def test_no_such_interpreter(tmp_path: Path, mark: str) -> None:
    with pytest.raises(WorkerUnavailable, match="no-python cannot be started"):
        worker.start(PLAIN, None, {}, python=str(tmp_path / "no-python"))
    with pytest.raises(WorkerUnavailable, match="exit code 0"):
        worker.start(PLAIN, None, {}, python="/bin/true")


def environment_with(folder: Path, *packages: str) -> str:
    """A virtual environment that has these of our packages and nothing else."""
    site = folder / sysconfig.get_path("purelib", "venv", {"base": "."})
    site.mkdir(parents=True)
    (folder / "bin").mkdir()
    (folder / "pyvenv.cfg").write_text(
        f"home = {Path(sys._base_executable).parent}\ninclude-system-site-packages = false\n"
    )  # type: ignore[attr-defined]
    (folder / "bin" / "python").symlink_to(sys._base_executable)  # type: ignore[attr-defined]
    ours = Path(np.__file__).parent.parent
    for package in packages:
        if (ours / package).exists():
            (site / package).symlink_to(ours / package)
    return str(folder / "bin" / "python")


def test_another_interpreter_sees_nothing_of_ours(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = str(Path(pytest.__file__).parent.parent)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([site, str(ROOT)]))
    monkeypatch.setenv("VIRTUAL_ENV", sys.prefix)
    monkeypatch.chdir(ROOT)
    python = environment_with(tmp_path / "env", "numpy", "numpy.libs")
    adapter = start(PLAIN, python=python)
    path, variables, executable = adapter.surroundings()
    assert executable == python
    forbidden = {site, str(ROOT), str(ROOT / "auditor"), str(ROOT / "adapters"), str(HERE / "worker_adapters"), "", "."}
    assert not forbidden & set(path)
    assert "PYTHONPATH" not in variables
    assert variables["VIRTUAL_ENV"] == str(tmp_path / "env")
    assert variables["PATH"].split(os.pathsep)[0] == str(tmp_path / "env" / "bin")
    assert "ImportError" in adapter.can_import("hypothesis")
    assert "ImportError" in adapter.can_import("transformers")
    assert "ImportError" in adapter.can_import("adapter")
    assert adapter.can_import("auditor.rules") == str(ROOT / "auditor" / "__init__.py")


def test_without_numpy_it_says_so(tmp_path: Path, mark: str) -> None:
    with pytest.raises(WorkerUnavailable, match=r"no NumPy.*pip install numpy"):
        worker.start(PLAIN, None, {}, python=environment_with(tmp_path / "env"))
    assert marked(mark) == []


# ------------------------------------------------------------------------------------------------------------- our end

DRIVER = """
import sys, time
from auditor import worker
adapter = worker.start(sys.argv[1], None, {})
adapter.act("family")
try:
    print("ready", flush=True)
    if sys.argv[2] == "call":
        adapter.act("sleep")
    time.sleep(3600)
except KeyboardInterrupt:
    print(adapter.act("nothing"), flush=True)
"""


def drive(what: str) -> subprocess.Popen[str]:
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, FAILING, what],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        start_new_session=True,
    )
    assert driver.stdout is not None
    assert driver.stdout.readline() == "ready\n"
    return driver


@pytest.mark.parametrize("what", ["call", "idle"])
def test_a_killed_audit_leaves_nothing_behind(mark: str, what: str) -> None:
    with drive(what) as driver:
        assert comes_to(mark, 6)
        driver.kill()
        driver.wait(PATIENCE)
        assert comes_to(mark, 0)


def test_an_interrupt_in_the_terminal_does_not_reach_the_worker(mark: str) -> None:
    with drive("idle") as driver:
        os.killpg(driver.pid, signal.SIGINT)
        out, _ = driver.communicate(timeout=PATIENCE)
        assert out == "None\n"
    assert comes_to(mark, 0)


def test_an_audit_that_just_ends_leaves_nothing_behind(mark: str) -> None:
    with drive("call") as driver:
        os.killpg(driver.pid, signal.SIGTERM)
        driver.wait(PATIENCE)
    assert comes_to(mark, 0)
