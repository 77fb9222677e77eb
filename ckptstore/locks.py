"""A lock that nobody who is interrupted leaves taken, and no thread that stays behind in a fork."""

from __future__ import annotations

import os
from _thread import RLock
from weakref import WeakSet


class Lock(RLock):  # type: ignore[misc]  # which is final in the stubs alone
    """A lock for `with`, which stays free when a signal's handler raises just as it was taken.

    Python runs handlers in the main thread where a call into C has returned. Since 3.14, taking a lock for a `with` is
    such a call, and nothing would let go of what it took: the block has not begun then. As with `RLock`, a thread may
    take it again while it has it.

    In a process that was forked off it is free if another thread had it, which does not come along to release it.
    """

    def __init__(self) -> None:
        _ALL.add(self)

    def __enter__(self, blocking: bool = True, timeout: float = -1) -> bool:  # noqa: FBT001, FBT002 - as RLock's
        try:
            return self.acquire(blocking, timeout)
        except BaseException:
            if self._is_owned():  # type: ignore[attr-defined]
                self.release()
            raise


_ALL: WeakSet[Lock] = WeakSet()


def _free_in_child() -> None:
    for lock in list(_ALL):
        if not lock._is_owned():  # type: ignore[attr-defined]  # noqa: SLF001
            lock._at_fork_reinit()  # type: ignore[attr-defined]  # noqa: SLF001 - as the standard library's own


os.register_at_fork(after_in_child=_free_in_child)
