"""Blocking work runs in threads that are used again."""

from __future__ import annotations

import asyncio
import logging
import threading
import weakref
from queue import SimpleQueue

import pytest

from polyrec.server.app.background import Threads, repeat, run_in_thread, start_task


def idents(threads: Threads, count: int, at_once: int) -> list[int]:
    """Returns the threads in which pieces of work ran, `at_once` of them at a time."""
    found: SimpleQueue[int] = SimpleQueue()
    ran = []
    for _ in range(count // at_once):
        together = threading.Barrier(at_once + 1)

        def work(together: threading.Barrier = together) -> None:
            together.wait(10)
            found.put(threading.get_ident())

        for _ in range(at_once):
            threads.run(work)
        together.wait(10)
        ran += [found.get(timeout=10) for _ in range(at_once)]
        while threads._idle._value < at_once:  # the threads say so after their work
            pass
    return ran


def test_a_thread_that_is_idle_is_used_again() -> None:
    assert len(set(idents(Threads(), 20, 1))) == 1


def test_an_idle_thread_keeps_nothing_of_its_work_alive() -> None:
    """The first work of each thread was kept until it ended, with the version that the work had opened."""
    threads = Threads()
    for _ in range(2):  # in a new thread and in an idle one
        opened = threading.Event()
        kept = weakref.ref(opened)
        threads.run(opened.set)
        assert opened.wait(10)
        while not threads._idle._value:
            pass
        del opened
        assert kept() is None


def test_pieces_of_work_run_at_the_same_time() -> None:
    threads = Threads()
    assert len(set(idents(threads, 4, 4))) == 4
    assert len(set(idents(threads, 8, 4))) <= 4


def test_work_runs_where_idle_threads_end_at_once() -> None:
    threads, done = Threads(idle_s=0), SimpleQueue[int]()
    for i in range(500):
        threads.run(lambda i=i: done.put(i))  # type: ignore[misc]
    assert sorted(done.get(timeout=10) for _ in range(500)) == list(range(500))


def test_a_future_gets_the_result_or_the_exception() -> None:
    def fails() -> None:
        raise ValueError("no")

    async def both() -> None:
        assert await run_in_thread(lambda: 7) == 7
        with pytest.raises(ValueError, match="no"):
            await run_in_thread(fails)

    asyncio.run(both())


def test_an_error_that_ends_a_task_is_logged_while_the_task_is_kept(caplog: pytest.LogCaptureFixture) -> None:
    async def fails() -> None:
        raise ValueError("the reason")

    async def run() -> None:
        kept = [start_task(fails(), "reading"), start_task(asyncio.sleep(3600), "sleeping")]
        await asyncio.wait(kept, return_when=asyncio.FIRST_COMPLETED)
        kept[1].cancel()
        await asyncio.wait(kept)
        (record,) = caplog.records
        assert record.getMessage() == "reading ended by an unexpected error"
        assert record.exc_info is not None
        assert str(record.exc_info[1]) == "the reason"

    with caplog.at_level(logging.WARNING):
        asyncio.run(run())


def test_repeated_work_goes_on_after_it_failed(caplog: pytest.LogCaptureFixture) -> None:
    calls = 0

    async def run() -> None:
        third = asyncio.Event()

        async def work() -> None:
            nonlocal calls
            calls += 1
            if calls == 3:
                third.set()
            raise ValueError("the reason")

        task = repeat(work, 0.001, "reading")
        await asyncio.wait_for(third.wait(), 60)
        task.cancel()

    with caplog.at_level(logging.WARNING):
        asyncio.run(run())
    (record,) = caplog.records  # not one for each call
    assert record.getMessage() == "reading failed; it is tried again"
