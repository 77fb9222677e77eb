"""A lock that nobody who is interrupted leaves taken."""

from __future__ import annotations

from _thread import RLock


class Lock(RLock):  # type: ignore[misc]  # which is final in the stubs alone
    """A lock for `with`, which stays free when a signal's handler raises just as it was taken.

    Python runs handlers in the main thread where a call into C has returned. Since 3.14, taking a lock for a `with` is
    such a call, and nothing would let go of what it took: the block has not begun then. As with `RLock`, a thread may
    take it again while it has it.
    """

    def __enter__(self, blocking: bool = True, timeout: float = -1) -> bool:  # noqa: FBT001, FBT002 - as RLock's
        try:
            return self.acquire(blocking, timeout)
        except BaseException:
            if self._is_owned():  # type: ignore[attr-defined]
                self.release()
            raise
