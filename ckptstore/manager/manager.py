"""The training loop's one object for checkpoints."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

from ckptstore.errors import InvalidArgument, RankFailed, StepNotFound
from ckptstore.manager.agreement import Agreement, Ballot
from ckptstore.manager.preemption import PreemptionWatch
from ckptstore.manager.saves import Saves
from ckptstore.manager.saving import Moment, SavePolicy, as_policy
from ckptstore.manager.upkeep import Newest, Upkeep
from ckptstore.operations.address import Ref, check_step
from ckptstore.operations.collecting.retention import KeepBest, Policy, kept_by
from ckptstore.operations.collecting.terms import DEFAULT_GRACE, check_terms
from ckptstore.operations.paths import as_globs
from ckptstore.progress import ProgressCallback
from ckptstore.store import Store

if TYPE_CHECKING:
    import torch.distributed as dist


@dataclass(frozen=True, slots=True)
class _Decision:
    """What all ranks agreed on for a step."""

    step: int
    due: bool
    preempted: bool


class CheckpointManager:
    """Decides when to save a run, what to keep of it, and saves once more before the machine is taken away.

    Call `save` once each step::

        with ckptstore.CheckpointManager(store, 100, keep=ckptstore.KeepLast(3)) as manager:
            start = manager.latest_step() or 0
            if start:
                manager.restore(start, app_state)
            for step in range(start + 1, steps + 1):
                loss = train_step()
                manager.save(step, app_state, metrics={"loss": loss})
                if manager.reached_preemption(step):
                    break

    In a process group every rank makes a manager and calls `save` (or `should_save`, or `reached_preemption`) for every
    step: the first such call of a step is where the ranks agree, over gloo, in one round of messages for each doubling
    of their number. Rank 0's policy decides, and a signal that reached any rank counts for all. Without a group nobody
    is asked.

    What fails in the background, a commit or the dropping of old steps, is raised by the first such call of a later
    step, or by `join` or `close`; on other ranks RankFailed is. Use it as a context manager, or call `close`.
    """

    def __init__(
        self,
        store: Store,
        save_interval: int | SavePolicy,
        *,
        keep: Policy | None = None,
        grace: float = DEFAULT_GRACE,
        async_: bool = True,
        just_in_time: bool = True,
        on_preemption: bool = True,
        process_group: dist.ProcessGroup | None = None,
        replicated: str | Sequence[str] | None = None,
        allow_pickle: bool = False,
    ) -> None:
        """Watch over the run of a store, which stays the caller's to close.

        Args:
            store: an open store; its run is the one that is saved to and restored from.
            save_interval: save the steps that it divides; or a policy, as `SaveEvery(100) | SaveAt({1, 10})`.
            keep: what to keep of the run, as `KeepLast(3) | KeepBest("loss")`; all by default. After each commit that
                became durable the rest is dropped in the background. The highest step, what this manager saved last
                and tagged commits always stay. A KeepBest whose metric no commit has is warned of; where nothing else
                keeps any, none is dropped.
            grace: seconds for which a dropped step can be restored, and takes up space.
            async_: whether `save` returns before the commit is durable.
            just_in_time: see `Store.commit_async`; False where others than optimizers' steps change parameters.
            on_preemption: save once more, at the next step, when SIGTERM or SIGUSR1 comes. Earlier handlers are called
                too, and put back by `close`; without one, these signals do not end the process until then. A signal
                with a handler that is not Python's, as faulthandler's, is left to it, with a warning.
            process_group: the ranks that save together; by default those of torch.distributed's default group, if it
                is initialised.
            replicated: see `Store.commit`.
            allow_pickle: see `Store.commit` and `Store.checkout`.

        Raises:
            InvalidArgument: no open store; no valid interval, policy, grace or `replicated`; or `on_preemption` outside
                the main thread.
        """
        if not isinstance(store, Store):
            raise InvalidArgument(f"a manager of {store!r}: give an open store, as ckptstore.open gives it")
        self._policy = as_policy(save_interval)
        check_terms(keep, grace)
        self._store, self._keep, self._grace = store, keep, grace
        self._background, self._just_in_time, self._allow_pickle = async_, just_in_time, allow_pickle
        self._replicated = as_globs(replicated, "replicated")
        self._agreement, self._group = Agreement(process_group), process_group
        self._upkeep = Upkeep(self._drop)
        self._last = store.latest() if self._agreement.leads else None
        self._saves = Saves()
        self._decision: _Decision | None = None
        self._final = False
        self._watch = PreemptionWatch() if on_preemption else None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # saving

    def save(
        self, step: int, state: Mapping[str, Any], metrics: Mapping[str, Any] | None = None, *, force: bool = False
    ) -> bool:
        """Commit the state, if `should_save(step)`; whether it did.

        With `async_` it returns once the state is set apart, as `Store.commit_async` says; the last commit before a
        preemption is durable on return.

        Args:
            step: 0 to 2**63 - 1.
            state: as for `Store.commit`.
            metrics: JSON, such as {"loss": 2.3}: the commit's metadata, which `KeepBest` and `best` look at.
            force: commit in any case. Given on all ranks or on none.

        Raises:
            StepExists: the run holds another state at this step; raised later with `async_`. To train on from an older
                step, fork a run, or delete the steps behind it.
            RankFailed: another rank failed, or is gone.
            InvalidArgument: a bad step or metrics; or ranks that are not at the same step.
            CkptStoreError: as for `Store.commit`, also of what failed in the background since the last call.
        """
        return self._save(step, state, metrics, force=force, background=self._background)

    def save_async(
        self, step: int, state: Mapping[str, Any], metrics: Mapping[str, Any] | None = None, *, force: bool = False
    ) -> bool:
        """`save` as with `async_=True`."""
        return self._save(step, state, metrics, force=force, background=True)

    def should_save(self, step: int) -> bool:
        """Whether `save` would commit: the policy wants it, or preemption does, and it is not saved already."""
        return self._wants(self._agree(step))

    def reached_preemption(self, step: int) -> bool:
        """Whether any rank is to be taken away, as all agreed at this step: save, and leave the loop."""
        return self._agree(step).preempted

    def is_saving_in_progress(self) -> bool:
        """Whether a commit of this rank is not durable yet."""
        return self._saves.in_progress

    def join(self) -> None:
        """Wait until all that was saved is durable, and what need not be kept is dropped; raise what failed."""
        try:
            self._surface()
            self._saves.land()
        finally:
            self._upkeep.join()

    def close(self) -> None:
        """`join`, and put the earlier signal handlers back. The store stays open; saves go on to work, unwatched."""
        try:
            self.join()
        finally:
            if self._watch is not None:
                self._watch.close()

    # what was saved

    def all_steps(self) -> list[int]:
        """Steps of the run that are complete, ascending."""
        return self._store.steps()

    def latest_step(self) -> int | None:
        """The newest complete step, or None."""
        return self._store.latest()

    def best(self, metric: str, mode: Literal["min", "max"] = "min") -> int | None:
        """The step with the lowest (or highest) metric; the later one of equals.

        None if no step has it; with a warning when there are steps, since `restore` takes None for the newest one.
        """
        commits = self._store.log()[::-1]
        policy = KeepBest(metric, 1, mode)
        if doubt := policy.doubt(commits):
            warnings.warn(f"best({metric!r}): {doubt}", stacklevel=2)
        best = policy.keep(commits)
        return next((commit.step for commit in commits if commit.id in best), None)

    def restore(
        self,
        step: Ref | None = None,
        into: Mapping[str, Any] | None = None,
        *,
        paths: str | Sequence[str] | None = None,
        strict: bool = True,
        allow_cast: bool = False,
        skip_damaged: bool = False,
        memory_budget_bytes: int | None = None,
        progress: ProgressCallback | None = None,
    ) -> Any:
        """The state of a step, bit-exact: new, or loaded into live objects, as `Store.checkout` says.

        Args:
            step: as for `Store.checkout`; by default the newest complete one, in a process group rank 0's: then all
                ranks call this. A step whose save is in flight is waited for, if its number is given.
            into: an app state to be filled.
            paths: see `Store.checkout`.
            strict: see `Store.checkout`.
            allow_cast: see `Store.checkout`.
            skip_damaged: see `Store.checkout`.
            memory_budget_bytes: see `Store.checkout`.
            progress: see `Store.checkout`.

        Raises:
            StepNotFound: no such step, or none at all.
            StateMismatch: with `into`; nothing was changed.
            PathNotFound, BudgetTooSmall, InvalidArgument: as for `Store.checkout`.
            CorruptData: stored bytes are damaged.
            CkptStoreError: what failed of the save that was waited for.
        """
        chosen = self._agreement.from_first(self._store.latest) if step is None else step
        if chosen is None:
            raise StepNotFound(f"run {self._store.run!r} of {self._store.url} has no step yet: ask latest_step() first")
        if chosen == self._saves.last.step:
            self._saves.land()
        return self._store.checkout(
            chosen,
            into=into,
            paths=paths,
            strict=strict,
            allow_cast=allow_cast,
            skip_damaged=skip_damaged,
            allow_pickle=self._allow_pickle,
            process_group=self._group,
            memory_budget_bytes=memory_budget_bytes,
            progress=progress,
        )

    # inside

    def _save(
        self, step: int, state: Mapping[str, Any], metrics: Mapping[str, Any] | None, *, force: bool, background: bool
    ) -> bool:
        decision = self._agree(step)
        if isinstance(metrics, bool):
            raise InvalidArgument("metrics is a bool: give a dict; force= is given by name")
        if not force and not self._wants(decision):
            return False
        if decision.preempted:
            with self._saves.holding():  # a failure must not cost the last commit
                self._saves.land()
        try:  # ranks agree in there that the commit before failed on any
            durable = self._commit(decision, state, metrics, background=background and not decision.preempted)
        except BaseException:
            self._saves.take_back()
            raise
        self._saves.made(decision.step)
        self._final = self._final or decision.preempted
        if not decision.preempted:  # there may be seconds left to live, and the next run drops as well
            self._tidy(durable)
        return True

    def _commit(
        self, decision: _Decision, state: Mapping[str, Any], metrics: Mapping[str, Any] | None, *, background: bool
    ) -> Callable[[], bool]:
        """The one place where a commit is made; all ranks come here at the same step, for the same reason.

        What is returned waits for it, and says whether it became durable.
        """
        options: dict[str, Any] = {
            "step": decision.step,
            "metadata": metrics,
            "allow_pickle": self._allow_pickle,
            "process_group": self._group,
            "replicated": self._replicated,
        }
        if background:
            handle = self._store.commit_async(state, just_in_time=self._just_in_time, **options)
            self._saves.begun(handle)
            return lambda: handle.exception() is None
        self._store.commit(state, **options)
        return lambda: True

    def _tidy(self, durable: Callable[[], bool]) -> None:
        if self._keep is not None and self._agreement.leads:
            self._upkeep.after(durable)

    def _drop(self) -> None:
        assert self._keep is not None
        commits = self._store.log()[::-1]
        doubt = self._keep.doubt(commits)
        if doubt:
            warnings.warn(f"keep={self._keep}: {doubt}", stacklevel=1)
            if not kept_by(self._keep, commits):
                return
        newest = Newest(self._saves.recent)
        doubt = newest.doubt(commits)
        if doubt:
            warnings.warn(f"run {self._store.run!r}: {doubt}", stacklevel=1)
        self._store.plan_gc(self._keep | newest, grace=self._grace).execute()

    def _wants(self, decision: _Decision) -> bool:
        final = decision.preempted and not self._final
        return (decision.due or final) and decision.step != self._saves.last.step

    def _agree(self, step: int) -> _Decision:
        number = check_step(step)
        if self._decision is None or self._decision.step != number:
            self._decision = self._decide(number)
        return self._decision

    def _decide(self, step: int) -> _Decision:
        due = False
        with self._saves.holding():  # the others wait for this rank's ballot
            self._surface()
            due = self._agreement.leads and self._policy.due(self._moment(step))
        preempted = self._watch is not None and self._watch.preempted
        ballot = self._agreement.agree(step, Ballot(due, preempted, self._saves.failed))
        if ballot.failed and (self._final or not ballot.preempted):  # as in `_save`
            self._surface()
            self._saves.land()  # it is all ranks' commit: what failed on another rank is about to fail here
            raise RankFailed(f"another rank failed before step {step}: its own error says why")
        return _Decision(step, ballot.due, ballot.preempted)

    def _moment(self, step: int) -> Moment:
        saved = self._saves.last
        last = self._last if saved.step is None else saved.step
        return Moment(step, last, time.monotonic() - saved.at, self._saves.in_progress)

    def _surface(self) -> None:
        """Raise what failed in the background and nobody saw; wait for nothing."""
        self._saves.surface()
        self._upkeep.surface()
