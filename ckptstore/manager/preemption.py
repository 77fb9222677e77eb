"""Noticing that the machine is about to be taken away."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import warnings
from types import FrameType
from typing import Any

from ckptstore.errors import InvalidArgument

SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
"""What Kubernetes, torchrun and SLURM send, and what `sbatch --signal=USR1@120` asks for."""

_open: dict[PreemptionWatch, int] = {}
"""Watches, and the processes in which they were made."""

_installed = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_int)(("PyOS_getsig", ctypes.pythonapi))
"""The address of what the system calls when a signal comes: None for SIG_DFL, one and the same for all of Python's."""


class PreemptionWatch:
    """Remembers that one of `SIGNALS` came. Handlers that were there before are called too, and are back after `close`.

    The default actions, which end the process, do not happen while any watch is open, except in forked children: they
    die of these signals as they would have without it. Who calls a closed one calls what was there before.

    A handler that is not Python's can be neither called nor put back: its signal is left to it, with a warning.

    Attributes:
        preempted: whether one came.
        earlier: what was there before, for each signal that is watched.
    """

    def __init__(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            raise InvalidArgument("signals reach the main thread only: make the manager there, or on_preemption=False")
        self.preempted = False
        for each in SIGNALS:
            if not _is_free(each):
                warnings.warn(_left_alone(each), stacklevel=3)
        self.earlier: dict[int, Any] = {number: signal.getsignal(number) for number in SIGNALS if _is_free(number)}
        _open[self] = os.getpid()
        for number in self.earlier:
            signal.signal(number, self._receive)
            self._address = _installed(number)

    def close(self) -> None:
        """Put the earlier handlers back, unless somebody has put another one on top; it may call this one."""
        if self in _open:
            for number in self.earlier:
                if signal.getsignal(number) == self._receive and _installed(number) == self._address:
                    signal.signal(number, self._below(number))
            del _open[self]

    def _below(self, number: int) -> Any:
        """What was there before, and before watches that are closed by now."""
        handler = self.earlier[number]
        while isinstance(watch := getattr(handler, "__self__", None), PreemptionWatch) and watch not in _open:
            handler = watch.earlier[number]
        return handler

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self.preempted = True
        earlier = self.earlier[number]
        if callable(earlier):
            earlier(number, frame)
        elif earlier == signal.SIG_DFL and os.getpid() not in _open.values():
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)


def _is_free(number: int) -> bool:
    """Whether the handler can be put back: of one of C's, as faulthandler's, Python believes that there is none."""
    known = signal.getsignal(number)
    return callable(known) or (known is not None and _installed(number) in {None, int(signal.SIG_IGN)})


def _left_alone(number: signal.Signals) -> str:
    name = number.name
    advice = f"to have both, let it take {name} after the manager, as faulthandler.register(…, chain=True) does"
    return f"{name} has a handler that is not Python's, and is left to it: no last commit when it comes; {advice}"
