"""What takes seconds to make, as compiled loops: threads of their own do it, and who asks does without until then."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable
from typing import Any

from ckptstore.locks import Lock

Make = Callable[..., Any]
_Key = tuple[Make, tuple[Any, ...]]


class Later:
    """One thing is made after the other, and stays for the life of the process. A process that was forked from it makes
    nothing more, since threads, and who would release the locks that they hold, do not come along.

    Args:
        what: what makes it, for the warning when that fails.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._made: dict[_Key, Any] = {}
        self._one_at_a_time = Lock()
        self._threads: list[threading.Thread] = []
        self._home: int | None = None

    def get(self, make: Make, *arguments: Any) -> Any:
        """What `make(*arguments)` gives; None while it is not there yet, and for good when that fails."""
        key = make, arguments
        if key not in self._made:
            self._made[key] = None
            self._begin(key)
        return self._made[key]

    def settle(self) -> None:
        """Wait for all that was asked for."""
        for thread in self._threads:
            thread.join()

    def _begin(self, key: _Key) -> None:
        self._home = self._home or os.getpid()
        if self._home != os.getpid():
            return
        thread = threading.Thread(target=self._work, args=(key,), name="ckptstore-compile")
        try:
            thread.start()
        except RuntimeError:  # the interpreter exits, and begins none any more
            return
        self._threads.append(thread)

    def _work(self, key: _Key) -> None:
        make, arguments = key
        with self._one_at_a_time:
            if not threading.main_thread().is_alive():  # nobody needs it any more
                return
            try:
                self._made[key] = make(*arguments)
            except Exception as error:  # noqa: BLE001 - whatever is wrong with it, there is another way
                warnings.warn(f"{self._what} does not work, codecs go on without it: {error!r}", stacklevel=1)


LOOPS = Later("numba")
"""The loops of codecs."""
