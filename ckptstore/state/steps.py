"""Steps of optimizers: who wants to know is called before each of them."""

from __future__ import annotations

import sys
import weakref
from collections import OrderedDict, deque
from collections.abc import Collection
from collections.abc import Set as AbstractSet
from typing import Any, Protocol

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from ckptstore.compiling import uncompiled


class Watcher(Protocol):
    """Whoever wants to know."""

    def before_step(self, optimizer: Optimizer) -> None:
        """The optimizer steps when this returns."""


_WATCHERS: weakref.WeakValueDictionary[int, Watcher] = weakref.WeakValueDictionary()
_LEFT: deque[RemovableHandle] = deque()
"""Hooks of who is gone, for the next one to remove: the collector may come while they run."""
_FILE = Optimizer.profile_hook_step.__code__.co_filename


def watch(watcher: Watcher) -> None:
    """Call it before the steps of all optimizers from now on, until `unwatch`, or until it is gone."""
    _WATCHERS[id(watcher)] = watcher


def unwatch(watcher: Watcher) -> None:
    """Call it no more."""
    _WATCHERS.pop(id(watcher), None)


def stepping(value: object) -> Optimizer | None:
    """The optimizer whose hooks run when this one steps; None if it is none, or one that was not set up for them.

    Of one that only passes another one's state on, as Accelerate's wrappers do, it is that one.
    """
    inner = _meant(value)
    return inner if inner is not None and _runs_hooks(inner) else None


def loading(value: object) -> Optimizer | None:
    """The same of hooks that run when this one loads a state, for which some that step have no place."""
    inner = _meant(value)
    return inner if hasattr(inner, "_optimizer_load_state_dict_pre_hooks") else None


def _meant(value: object) -> Optimizer | None:
    """The optimizer whose own state this one has."""
    if not isinstance(value, Optimizer):
        return None
    if _is_set_up(value):
        return value
    inner = _meant(getattr(value, "optimizer", None))
    passes_on = inner is not None and value.state is inner.state and value.param_groups is inner.param_groups
    return inner if passes_on else None


def _is_set_up(optimizer: Optimizer) -> bool:
    """Whether torch has wrapped its step; some that were never set up have only a place for hooks."""
    hooks = getattr(optimizer, "_optimizer_step_pre_hooks", None)
    return isinstance(hooks, OrderedDict) and getattr(type(optimizer).step, "hooked", False)


def _runs_hooks(optimizer: Optimizer) -> bool:
    """Whether its step is torch's, around its own: functools.wraps copies torch's mark to one that may run none."""
    code = getattr(type(optimizer).step, "__code__", None)
    return getattr(code, "co_filename", "") == _FILE


def is_within_one() -> bool:
    """Whether this thread is in code of some optimizer: its hooks ran already, or run now and must stay as they are.

    So it is in a hook, in a closure that `step` calls, and in a signal's handler that interrupts either.
    """
    frame = sys._getframe()  # noqa: SLF001 - has no public name
    while frame.f_back is not None and frame.f_code.co_filename != _FILE:
        frame = frame.f_back
    return frame.f_code.co_filename == _FILE


class Hooks:
    """Make torch call out of steps that it compiles, which it does for optimizers that have hooks of their own.

    They stay from one commit to the next: torch compiles anew when they change, and iterates over them while they run.
    """

    def __init__(self) -> None:
        self._handles: list[RemovableHandle] = []
        weakref.finalize(self, _LEFT.extend, self._handles).atexit = False

    def attach(self, optimizers: Collection[Optimizer]) -> None:
        """To those that have none of these yet; none of them may be stepping."""
        _remove_left({id(optimizer._optimizer_step_pre_hooks) for optimizer in optimizers})  # noqa: SLF001 - as below
        self._handles[:] = [handle for handle in self._handles if handle.hooks_dict_ref()]  # not of those that are gone
        attached = {id(handle.hooks_dict_ref()) for handle in self._handles}
        for optimizer in optimizers:
            if id(optimizer._optimizer_step_pre_hooks) not in attached:  # noqa: SLF001 - has no public name
                self._handles.append(_first(optimizer.register_step_pre_hook(_before_step)))

    def detach(self) -> None:
        """From all, unless one of them may be running them: they do nothing without a commit in flight."""
        if not is_within_one():
            for handle in self._handles:
                handle.remove()
        self._handles.clear()


def _remove_left(hooks: AbstractSet[int]) -> None:
    """From these; others may be running theirs."""
    for _ in range(len(_LEFT)):
        handle = _LEFT.popleft()
        if id(handle.hooks_dict_ref()) in hooks:
            handle.remove()
        elif handle.hooks_dict_ref() is not None:
            _LEFT.append(handle)


def _first(handle: RemovableHandle) -> RemovableHandle:
    """Ahead of the hooks that are there: they may change parameters."""
    hooks = handle.hooks_dict_ref()
    if hooks is not None:
        hooks.move_to_end(handle.id, last=False)
    return handle


@uncompiled
def _before_step(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    for found in _WATCHERS.valuerefs():  # a list, whoever adds to it meanwhile
        watcher = found()
        if watcher is not None:
            watcher.before_step(optimizer)


def _before_any_step(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    """Ahead of all other hooks. Not where torch compiles, since it would compile this too; see `Hooks`."""
    if not torch.compiler.is_compiling():
        _before_step(optimizer, args, kwargs)


_first(register_optimizer_step_pre_hook(_before_any_step))
