"""DCP's saves into a store."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any

import torch.distributed as dist
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem
from torch.distributed.checkpoint.storage import StorageWriter, WriteResult
from torch.futures import Future

from ckptstore.chunkstore import ChunkStore
from ckptstore.errors import InvalidArgument
from ckptstore.integrations.dcp.branches import Branch, Values
from ckptstore.integrations.dcp.manifests import manifest_of
from ckptstore.integrations.dcp.names import logical_path, merged_keys
from ckptstore.integrations.dcp.place import Place
from ckptstore.integrations.dcp.sources import Sources
from ckptstore.operations import history
from ckptstore.operations.address import check_metadata, check_name, check_step
from ckptstore.operations.ranks.gathering import Gathering
from ckptstore.operations.ranks.groups import Seat
from ckptstore.operations.ranks.ranks import Ranks, packed, unpacked
from ckptstore.operations.ranks.reports import Report
from ckptstore.operations.ranks.writing import Held, write_share
from ckptstore.store import Store


class StoreWriter(StorageWriter):
    """One step of a store, saved by all ranks together: `dcp.save(state, storage_writer=StoreWriter(store, step=100))`.

    The commit is like any other. Its chunks follow the whole tensors, so that the same weights saved by other ranks, or
    by `Store.commit`, are stored once. Ranks send each other what they have of chunks that none has whole; only the
    coordinator uses the catalog. Whatever fails on one rank fails the save on all, and no step is changed.

    Args:
        store: a store, or its URL; a store that is missing is made.
        step: 0 to 2**63 - 1. A `checkpoint_id` given to `dcp.save` is another step.
        run: the run; by default the store's, or `main`.
        metadata: JSON, such as {"loss": 2.3}; the coordinator's counts.
        allow_pickle: store values of unknown types as pickles.
        process_group: the group given to `dcp.save`, if it is not the default one.
        options: for a URL, what `ckptstore.open` takes, such as `catalog`.

    Raises:
        InvalidArgument: a bad step, run, metadata or option.

    A save raises, wrapped in DCP's CheckpointException:
        StepExists: the step holds another state. The same state again is success.
        UnsupportedLeaf: a value or tensor that has no encoding; names it.
        StateError: shards that do not make whole tensors, or leaves that nobody writes.
        RankFailed: on the ranks on which nothing else failed.
        StorageError, CatalogError: a write failed.
    """

    def __init__(
        self,
        store: Store | str | os.PathLike[str],
        *,
        step: int,
        run: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        allow_pickle: bool = False,
        process_group: dist.ProcessGroup | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        self._place = Place(store, None if run is None else check_name("run", run), options)
        self._step, self._metadata, self._allow_pickle = check_step(step), check_metadata(metadata), allow_pickle
        self._group = process_group
        self._save = threading.local()

    def __getstate__(self) -> dict[str, Any]:
        """For the process of an `async_save`, which has a group of its own."""
        return {name: held for name, held in self.__dict__.items() if name not in {"_group", "_save"}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._group, self._save = None, threading.local()

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Whether it is a step."""
        return str(checkpoint_id).isdecimal()

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """See `StorageWriter`. Raises InvalidArgument for a `checkpoint_id` that is no step."""
        if checkpoint_id is None:
            return
        if not self.validate_checkpoint_id(checkpoint_id):
            raise InvalidArgument(f"checkpoint_id={checkpoint_id!r}: give a step, or leave it out")
        self._save.step = check_step(int(str(checkpoint_id)))

    def storage_meta(self) -> StorageMeta:
        """See `StorageWriter`."""
        return StorageMeta(checkpoint_id=f"{self._place.run}@{self._step_now}")

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:  # noqa: FBT001 - by DCP
        """See `StorageWriter`.

        Raises InvalidArgument for `use_collectives=False`, as no rank knows of others then, and for another coordinator
        than the first rank.
        """
        if not kwargs.get("use_collectives", True):
            raise InvalidArgument("use_collectives=False: leave it out, since all ranks make one commit together")
        rank = kwargs.get("rank", 0)
        if is_coordinator and rank:
            raise InvalidArgument(f"coordinator_rank={rank}: leave it out, since the first rank has the catalog")
        if is_coordinator:
            self._place.parts()

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """See `StorageWriter`."""
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """See `StorageWriter`. Raises StateError for names that stand for different keys on different ranks."""
        merged_keys([plan.planner_data for plan in plans])
        return [replace(plan, storage_data=Seat(rank, len(plans))) for rank, plan in enumerate(plans)]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """See `StorageWriter`."""
        ranks = self._ranks(plan.storage_data)
        place = self._place.parts if ranks.is_coordinator else self._place.storage

        def chunks() -> ChunkStore:
            return place().in_background()  # as it is with dcp.async_save

        gathering = Gathering(chunks(), self._draft) if ranks.is_coordinator else None
        tensors = [item for item in plan.items if item.tensor_data is not None]
        paths = _logical_paths(plan)
        values = Values(plan.items, planner, paths, allow_pickle=self._allow_pickle)
        parts = [*Sources(tensors, planner, chunks).parts(), *values.parts]
        named = paths | values.logical_paths
        held = Held(chunks, self._place.run, self._step_now, parts, values.plain, named)
        with gathering or nullcontext():
            report = write_share(ranks, gathering, held)
        self._save.gathering = gathering
        done: Future[list[WriteResult]] = Future()
        done.set_result(_results(plan.items, report, values.branches))
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """See `StorageWriter`."""
        gathering: Gathering = vars(self._save).pop("gathering")
        sent = [unpacked(each.storage_data) for of_rank in results for each in of_rank if each.storage_data is not None]
        branches = {name: branch for _, each in sent for name, branch in each.items()}
        record = gathering.publish([report for report, _ in sent], partial(manifest_of, metadata, branches))
        self._place.rest()
        metadata.storage_data = None
        metadata.storage_meta = replace(self.storage_meta(), save_id=record.id)

    @property
    def _step_now(self) -> int:
        step: int = getattr(self._save, "step", self._step)
        return step

    def _ranks(self, seat: Seat) -> Ranks:
        if seat.of > 1 and dist.get_world_size(self._group) != seat.of:
            problem = f"{seat.of} ranks save, but the process group has {dist.get_world_size(self._group)}"
            raise InvalidArgument(f"{problem}: give process_group= to StoreWriter too, as it was given to dcp.save")
        return Ranks(seat.rank, seat.of, self._group)

    def _draft(self) -> history.Draft:
        return history.draft(self._place.run, self._step_now, None, self._metadata)


def _logical_paths(plan: SavePlan) -> dict[str, str]:
    keys = merged_keys([plan.planner_data])
    names = (item.index.fqn for item in plan.items)
    return {name: logical_path(keys.get(name, (name,))) for name in names}


def _results(items: Sequence[WriteItem], report: Report, branches: Mapping[str, Branch]) -> list[WriteResult]:
    """One for each item; the first one also says what this rank wrote."""
    storage_data = [packed((report, branches)), *[None] * len(items)]
    return [WriteResult(item.index, _size(item), data) for item, data in zip(items, storage_data, strict=False)]


def _size(item: WriteItem) -> int:
    form = item.tensor_data
    return 0 if form is None else prod(form.chunk.sizes) * form.properties.dtype.itemsize
