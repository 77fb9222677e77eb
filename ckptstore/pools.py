"""Threads and pools of them: who can have none gets an error that says why, and what to do."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Thread
from typing import ParamSpec, TypeVar

from ckptstore.errors import CkptStoreError, InterpreterExiting, OutOfThreads

P = ParamSpec("P")
T = TypeVar("T")


class Pool(ThreadPoolExecutor):
    """Raises OutOfThreads, InterpreterExiting where threads cannot be begun."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """See `Executor.submit`."""
        try:
            return super().submit(fn, *args, **kwargs)
        except RuntimeError as error:
            lack = _lack(error)
            if lack is None:
                raise
            raise lack from error


def start(thread: Thread) -> None:
    """Begin a thread. Raises OutOfThreads, InterpreterExiting."""
    try:
        thread.start()
    except RuntimeError as error:
        lack = _lack(error)
        if lack is None:
            raise
        raise lack from error


def _lack(error: RuntimeError) -> CkptStoreError | None:
    """Python has one class, and its text, for all of these."""
    if "interpreter shutdown" in str(error):
        return InterpreterExiting("the interpreter exits, and begins no threads any more: do this before its last line")
    if "start new thread" in str(error):
        advice = "end some, or raise the limit (ulimit -u, the container's pids.max), and try again"
        return OutOfThreads(f"the system lets this process begin no more threads: {advice}")
    return None
