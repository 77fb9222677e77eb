"""Noticing that the machine is about to be taken away."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType
from typing import Any

from ckptstore.errors import InvalidArgument

SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
"""What Kubernetes, torchrun and SLURM send, and what `sbatch --signal=USR1@120` asks for."""


class PreemptionWatch:
    """Remembers that one of `SIGNALS` came. Handlers that were there before are called too, and are back after `close`.

    The default actions, which end the process, do not happen meanwhile, except in forked children: they die of these
    signals as they would have without it.

    Attributes:
        preempted: whether one came.
    """

    def __init__(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            raise InvalidArgument("signals reach the main thread only: make the manager there, or on_preemption=False")
        self.preempted = False
        self._process = os.getpid()
        self._open = True
        self._previous: dict[int, Any] = {number: signal.getsignal(number) for number in SIGNALS}
        for number in SIGNALS:
            signal.signal(number, self._receive)

    def close(self) -> None:
        """Put the earlier handlers back, unless somebody has put another one on top; it may call this one."""
        if self._open:
            for number, previous in self._previous.items():
                if signal.getsignal(number) == self._receive:
                    signal.signal(number, previous)
        self._open = False

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self.preempted = True
        previous = self._previous[number]
        if callable(previous):
            previous(number, frame)
        elif os.getpid() != self._process:
            signal.signal(number, previous)
            os.kill(os.getpid(), number)
