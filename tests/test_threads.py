"""Tasks side by side: all are done, errors are raised, and nothing hangs, whoever calls."""

import os
import subprocess
import sys
import textwrap
import threading
import time

import pytest

from recorder import threads
from recorder.threads import ordinary_threads, side_by_side


@pytest.fixture(autouse=True)
def several_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "cores", lambda: 4)


def test_every_task_is_done_once() -> None:
    done: list[int] = []
    side_by_side([lambda i=i: done.append(i) for i in range(1000)])
    assert sorted(done) == list(range(1000))


def test_nothing_is_done_for_no_tasks() -> None:
    side_by_side([])


def test_several_threads_work_at_once() -> None:
    meeting = threading.Barrier(3, timeout=30)
    side_by_side([meeting.wait] * 3)


def test_all_tasks_are_done_where_one_raises_and_its_error_is_raised() -> None:
    done: list[int] = []

    def task(i: int) -> None:
        done.append(i)
        if i == 3:
            raise MemoryError("no room for 3")

    with pytest.raises(MemoryError, match="no room for 3"):
        side_by_side([lambda i=i: task(i) for i in range(50)])
    assert sorted(done) == list(range(50))


@pytest.mark.parametrize("raised", [KeyboardInterrupt, SystemExit, ValueError])
def test_whatever_another_thread_raises_reaches_the_caller(raised: type[BaseException]) -> None:
    caller = threading.current_thread()

    def task() -> None:
        time.sleep(0.01)  # so that the others get some
        if threading.current_thread() is not caller:
            raise raised

    with pytest.raises(raised):
        side_by_side([task] * 40)


def test_tasks_may_call_tasks_as_deep_as_they_like() -> None:
    done: list[int] = []

    def task(depth: int) -> None:
        if depth:
            side_by_side([lambda: task(depth - 1)] * 4)
        else:
            done.append(depth)

    task(4)
    assert len(done) == 4**4


def test_many_callers_share_the_threads() -> None:
    done: list[list[int]] = [[] for _ in range(8)]

    def caller(mine: list[int]) -> None:
        for _ in range(50):
            side_by_side([lambda i=i: mine.append(i) for i in range(3)])

    callers = [threading.Thread(target=caller, args=(mine,)) for mine in done]
    for each in callers:
        each.start()
    for each in callers:
        each.join(60)
    assert [len(mine) for mine in done] == [150] * 8


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
def test_a_forked_child_has_threads_of_its_own() -> None:
    side_by_side([lambda: None] * 8)
    child = os.fork()
    if child == 0:
        done: list[int] = []
        side_by_side([lambda i=i: done.append(i) for i in range(100)])
        os._exit(0 if len(done) == 100 else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_tasks_are_done_while_the_interpreter_ends() -> None:
    script = """
    import atexit
    from recorder import threads
    threads.cores = lambda: 4
    done = []
    atexit.register(lambda: (threads.side_by_side([lambda i=i: done.append(i) for i in range(9)]), print(len(done))))
    """
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=60, check=True
    )
    assert result.stdout.strip() == "9"


@pytest.mark.skipif(not hasattr(os, "SCHED_FIFO"), reason="the system has no threads of real time")
def test_threads_that_a_library_starts_run_as_their_caller_does() -> None:
    """Some libraries let their threads run in real time where they may, which keeps all else off the cores."""
    done = threading.Event()
    asked: list[bool] = []

    def greedy() -> None:
        try:
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
            asked.append(True)
        except PermissionError:
            asked.append(False)
        done.wait(30)

    thread = threading.Thread(target=greedy)
    with ordinary_threads():
        thread.start()
        while not asked:
            time.sleep(0.001)
        assert thread.native_id is not None
        assert (os.sched_getscheduler(thread.native_id) == os.SCHED_FIFO) == asked[0]
    try:
        assert os.sched_getscheduler(thread.native_id) == os.sched_getscheduler(0) != os.SCHED_FIFO
    finally:
        done.set()
        thread.join()
    if not asked[0]:
        pytest.skip("only root may have threads of real time")
