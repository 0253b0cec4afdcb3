"""Work on several processes that survives the death of any of them."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Protocol, TypeVar

Job = TypeVar("Job")
Answer = TypeVar("Answer")


class Workers(Protocol):
    """A function applied to jobs, the answers in their order."""

    def __call__(self, function: Callable[[Job], Answer], jobs: Sequence[Job],
                 done: Callable[[int], None] | None = None) -> list[Answer]:
        """Solve all jobs; `done` is called with how many are."""
        ...


@contextmanager
def process_pool(count: int) -> Generator[Workers]:
    """Solve jobs in this process, or on so many fresh ones.

    Notes
    -----
    A process that dies (killed for its memory, say) takes the whole pool with it; whatever is not solved by then is
    solved in this process. Where the work is given up (Ctrl-C, an error), or this process is gone, the others end at
    once, in the middle of their jobs. Functions and jobs must be picklable.

    Examples
    --------
    >>> with process_pool(1) as run:
    ...     run(abs, [-1, 2])
    [1, 2]
    """
    if count <= 1:
        yield _here
        return
    context = get_context("spawn")
    reader, writer = context.Pipe(duplex=False)
    pool = ProcessPoolExecutor(count, context, _follow, (reader,))
    try:
        yield _On(pool)
        pool.shutdown()
    finally:
        writer.close()
        pool.shutdown(cancel_futures=True)
        reader.close()


def _follow(reader: Connection) -> None:
    """End this process as soon as the other end of a pipe is closed."""
    threading.Thread(target=_end_with, args=(reader,), daemon=True).start()


def _end_with(reader: Connection) -> None:
    """Wait for the end of a pipe."""
    reader.poll(None)
    os.kill(os.getpid(), signal.SIGTERM)


@contextmanager
def _uninterrupted() -> Generator[None]:
    """Hold Ctrl-C back; processes that start meanwhile never get it, since it is for this one to answer."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _here(function: Callable[[Job], Answer], jobs: Sequence[Job],
          done: Callable[[int], None] | None = None) -> list[Answer]:
    answers: list[Answer] = []
    for job in jobs:
        answers.append(function(job))
        if done:
            done(len(answers))
    return answers


class _On:
    """`Workers` on a pool of processes."""

    def __init__(self, pool: ProcessPoolExecutor) -> None:
        self._pool = pool

    def __call__(self, function: Callable[[Job], Answer], jobs: Sequence[Job],
                 done: Callable[[int], None] | None = None) -> list[Answer]:
        futures = [self._submitted(function, job) for job in jobs]
        answers: list[Answer] = []
        for future, job in zip(futures, jobs, strict=True):
            answers.append(_answer(future, function, job))
            if done:
                done(len(answers))
        return answers

    def _submitted(self, function: Callable[[Job], Answer], job: Job) -> Future[Answer] | None:
        """The job on its way; None where the pool is broken already."""
        try:
            with _uninterrupted():
                return self._pool.submit(function, job)
        except BrokenProcessPool:
            return None


def _answer(future: Future[Answer] | None, function: Callable[[Job], Answer], job: Job) -> Answer:
    if future is None:
        return function(job)
    try:
        return future.result()
    except BrokenProcessPool:
        return function(job)
