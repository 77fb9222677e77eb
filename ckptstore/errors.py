"""Every error a user of ckptstore can cause, as one tree.

Catch `CkptStoreError` for all of them, or a branch for one kind::

    CkptStoreError
    ├── InvalidArgument (ValueError)     a call that could never work: a bad step, name, index, policy
    │   ├── BudgetTooSmall               a memory budget below what one chunk needs
    │   └── WrongKey                     no key, or another one, for an encrypted store
    ├── NotFound (LookupError)           a name that does not exist; says which near ones do
    │   ├── StepNotFound
    │   ├── RunNotFound
    │   ├── TagNotFound
    │   └── PathNotFound (KeyError)
    ├── Conflict                         the name is taken, or something holds the object
    │   ├── StepExists
    │   ├── StoreExists
    │   ├── StepProtected                a tag holds the step
    │   ├── CommitInFlight               another background commit of the store has not ended
    │   ├── SessionFenced                the writer's lease ran out and gc took over
    │   └── GcRefused                    a tripwire stopped gc
    ├── StateError                       the state does not fit
    │   ├── UnsupportedLeaf (TypeError)
    │   ├── StateMismatch                the target of a checkout has another form
    │   ├── PickleRefused
    │   └── UnknownType                  a stored class that this process has not imported
    ├── FormatError                      what is there is not for this version
    │   ├── NotAStore
    │   ├── StoreTooNew
    │   ├── SchemaTooOld
    │   └── SchemaTooNew
    ├── CorruptData                      bytes are not what was written
    │   └── MissingData                  bytes are not there at all
    ├── RankFailed                       another process of the group failed, or is gone
    ├── InterpreterExiting               too late to begin what needs threads, as commits do
    ├── OutOfThreads                     the system lets this process begin no more of them
    ├── StorageError                     where bytes lie did not obey
    │   ├── ObjectNotFound
    │   ├── ObjectExists
    │   ├── StorageFull
    │   ├── StorageReadOnly
    │   └── StorageUnavailable           it did not answer; it may later
    └── CatalogError                     the database did not obey
        ├── CatalogBusy
        ├── CatalogNotFound              none was made yet, or it was lost
        ├── CatalogLocation              SQLite on a network file system
        └── CatalogUnavailable           it did not answer; it may later
            └── TooManyConnections       the server gives no more of them
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence

_WRAPPER = re.compile(r"(?<![^./])(_orig_mod|module)\.")
"""What `torch.compile` and DDP put before the names of what they wrap."""
_MOST_LISTED = 20
_OPTIMIZER_STATE = re.compile(r"(^|/)state/[^/]+/[^/]+$")
_OPTIMIZER_SHAPE = re.compile(r"(^|/)state/[^/]+/[^/]+: (shape|\w+)\b.* in the commit, (\2)?\[[^]]*\] in the target$")


class CkptStoreError(Exception):
    """The root of every error ckptstore raises on purpose."""


class InvalidArgument(CkptStoreError, ValueError):
    """An argument that no state of the store could make valid."""


class BudgetTooSmall(InvalidArgument):
    """A memory budget smaller than one chunk needs."""


class WrongKey(InvalidArgument):
    """The store is encrypted, and no key was given, or one that does not open it."""


class NotFound(CkptStoreError, LookupError):
    """A step, run, tag or path that does not exist."""


class StepNotFound(NotFound):
    """The run has no such step."""


class RunNotFound(NotFound):
    """The store has no such run."""


class TagNotFound(NotFound):
    """The run has no such tag."""


class PathNotFound(NotFound, KeyError):
    """The commit has no such logical path. Also a KeyError, since a manifest is a mapping."""

    __str__ = Exception.__str__


class Conflict(CkptStoreError):
    """What is asked for contradicts what already exists."""


class StepExists(Conflict):
    """The step is committed already, with other content."""


class StoreExists(Conflict):
    """A store lies there already, made with other settings."""


class StepProtected(Conflict):
    """A tag holds the step that should be deleted."""


class CommitInFlight(Conflict):
    """Another background commit of the store has not ended, and the caller did not ask to wait for it."""


class SessionFenced(Conflict):
    """The writer's lease ran out; what it had written may be gone."""


class GcRefused(Conflict):
    """A tripwire stopped gc before it touched anything."""


class StateError(CkptStoreError):
    """The state and what is stored do not fit together."""


class UnsupportedLeaf(StateError, TypeError):
    """A leaf whose type has no encoding."""

    def __init__(self, path: str, kind: str, advice: str, use: str = "store") -> None:
        super().__init__(f"cannot {use} {path!r}: {kind}; {advice}")
        self.path, self.kind, self._advice, self._use = path, kind, advice, use

    def __reduce__(self) -> tuple[type[UnsupportedLeaf], tuple[str, ...]]:
        return type(self), (self.path, self.kind, self._advice, self._use)


class StateMismatch(StateError):
    """The target of a checkout has other paths, shapes or dtypes; nothing was written to it."""

    def __init__(self, missing: Sequence[str], unexpected: Sequence[str], different: Sequence[str]) -> None:
        self.missing, self.unexpected, self.different = tuple(missing), tuple(unexpected), tuple(different)
        parts = [
            listing("different", self.different),
            listing("in the target but not in the commit", self.missing),
            listing("in the commit but not in the target", self.unexpected),
            _otherwise(self.different),
            _reshaped(self.different),
            _overlapping(self.different),
            _wrapping(self.missing, self.unexpected)
            or _fresh(self.unexpected)
            or _lenient(self.missing, self.unexpected, self.different),
        ]
        details = "\n".join(part for part in parts if part)
        super().__init__(f"the target does not fit the commit; nothing was changed\n{details}")

    def __reduce__(self) -> tuple[type[StateMismatch], tuple[tuple[str, ...], ...]]:
        return type(self), (self.missing, self.unexpected, self.different)


class PickleRefused(StateError):
    """A pickled leaf, read without `allow_pickle=True`."""


class UnknownType(StateError):
    """A stored dataclass, namedtuple or Enum whose module this process has not imported."""


class FormatError(CkptStoreError):
    """What was found is not what this version of ckptstore reads."""


class NotAStore(FormatError):
    """The place holds no `ckptstore.json`, or an unreadable one."""


class StoreTooNew(FormatError):
    """The store has a newer format, or requires a feature that this version does not have."""


class SchemaTooOld(FormatError):
    """The catalog's schema must be migrated first."""


class SchemaTooNew(FormatError):
    """The catalog's schema comes from a newer ckptstore."""


class CorruptData(CkptStoreError):
    """Bytes that are not what was written. Never returned as data."""


class MissingData(CorruptData):
    """A pack or manifest that the catalog relies on, or the wrapped key of an encrypted store, is not in storage."""


class RankFailed(CkptStoreError):
    """Another process of the group failed, or is gone; its own error says why."""


class InterpreterExiting(CkptStoreError):
    """The interpreter is exiting, and starts no more threads, which commits need, and so do most large reads."""


class OutOfThreads(CkptStoreError):
    """The system lets this process start no more threads."""


class StorageError(CkptStoreError):
    """The storage failed for a reason of its own."""


class ObjectNotFound(StorageError):
    """No object of this key."""


class ObjectExists(StorageError):
    """An object of this key exists already; nothing is ever overwritten."""


class StorageFull(StorageError):
    """No space is left where the store lies."""


class StorageReadOnly(StorageError):
    """The store's place, or the handle, does not allow writing."""


class StorageUnavailable(StorageError):
    """The storage did not answer, or asked for fewer requests; what was to be written may be there."""


class CatalogError(CkptStoreError):
    """The catalog's database failed for a reason of its own."""


class CatalogBusy(CatalogError):
    """The database's lock could not be taken in time."""


class CatalogNotFound(CatalogError):
    """There is no catalog at its address: none was made yet, or it was lost."""


class CatalogLocation(CatalogError):
    """SQLite on a network file system, where its locks are not safe."""


class CatalogUnavailable(CatalogError):
    """The database did not answer; a change that was asked for may have been made."""


class TooManyConnections(CatalogUnavailable):
    """The database's server, or a pooler before it, has no connection left for this process; nothing was changed."""


def require(holds: object, message: str) -> None:
    """Raises InvalidArgument with this message unless it holds."""
    if not holds:
        raise InvalidArgument(message)


def holds_another(run: str, step: int) -> StepExists:
    """For a commit of another state to a step."""
    back = "to go back and train on, delete this step and those behind it, or fork the run"
    other = "if another job commits to this run, give each a run of its own"
    return StepExists(f"step {step} of run {run!r} holds another state: commit to a new step; {back}; {other}")


def nearest(name: object, known: Iterable[object]) -> str:
    """A sentence that names what exists near `name`, for the end of a `NotFound` message."""
    options = [text for option in known if (text := str(option))]  # the root's path is no name
    if not options:
        return "there is none yet"
    close = difflib.get_close_matches(str(name), options, n=3, cutoff=0.4) or options[-3:]
    return "nearest: " + ", ".join(close)


def changed_meanwhile(path: str) -> StateError:
    """An array was written to while it was read, by somebody whose changes nobody counts, or whoever else."""
    advice = "change it when commit() has returned, or commit a copy of it"
    return StateError(f"{path!r} was changed while it was committed: {advice}")


def listing(title: str, paths: Sequence[str]) -> str:
    """A title and below it the first paths; nothing at all for none."""
    if not paths:
        return ""
    more = f"\n    … and {len(paths) - _MOST_LISTED} more" if len(paths) > _MOST_LISTED else ""
    return f"  {title}:\n" + "\n".join(f"    {path}" for path in paths[:_MOST_LISTED]) + more


def _otherwise(different: Sequence[str]) -> str:
    """What to do where a form is meant to be another one, as that of a new head."""
    found = any(" in the commit, " in line for line in different)
    advice = 'to leave what is meant to differ as it is, select the others with paths=, as paths=["model", "sched"]'
    return f"  {advice}" if found else ""


def _reshaped(different: Sequence[str]) -> str:
    """What to do where all that has other shapes is the state of optimizers, as of those that choose a rank anew."""
    found = different and all(map(_OPTIMIZER_SHAPE.search, different))
    advice = "where an optimizer changes the shape of its state as it trains, a new one takes the commit's"
    return f"  {advice}" if found else ""


def _fresh(unexpected: Sequence[str]) -> str:
    """What to do about the state of an optimizer that is not in the target."""
    found = any(_OPTIMIZER_STATE.search(path) for path in unexpected)
    advice = "give it itself, not its state_dict(), and all of its state, not a part of it by paths="
    return f"  an optimizer has no state before its first step: {advice}" if found else ""


def _overlapping(different: Sequence[str]) -> str:
    """What to do where leaves of the target overlap, and the commit has other bytes for one than for another."""
    found = any(": shares memory with " in line for line in different)
    return "  leave all but one of those that share memory out by paths=" if found else ""


def _lenient(missing: Sequence[str], unexpected: Sequence[str], different: Sequence[str]) -> str:
    """How to do without what only one side has, unless both have nothing."""
    nothing = any(": the commit has " in line or ": has nothing of " in line for line in different)
    found = (missing or unexpected) and not nothing
    return "  to load only what both sides have, give strict=False" if found else ""


def _wrapping(missing: Sequence[str], unexpected: Sequence[str]) -> str:
    """What to do about paths that are the same but for what wraps a module."""
    here, there = ({_WRAPPER.sub("", path): path for path in paths} for paths in (missing, unexpected))
    same = here.keys() & there.keys()
    ours, theirs = ({name for path in same for name in _WRAPPER.findall(side[path])} for side in (here, there))
    named = "or DCP's named state dicts"
    advice = [f"{name}. in the target: give what it wraps, model.{name}, {named}" for name in sorted(ours - theirs)]
    alike = "give a target that is wrapped alike, and from now on commit"
    advice += [f"{name}. in the commit: {alike} model.{name}, {named}" for name in sorted(theirs - ours)]
    return listing("the same but for what wraps a module", advice)
