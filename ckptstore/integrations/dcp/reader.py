"""DCP's loads from a store."""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from ckptstore.catalog.records import LATEST
from ckptstore.errors import InvalidArgument, PickleRefused, StateError
from ckptstore.format.manifest import TensorEntry
from ckptstore.integrations.dcp.manifests import metadata_of
from ckptstore.integrations.dcp.names import own_names
from ckptstore.integrations.dcp.place import Place
from ckptstore.integrations.dcp.values import given_back, given_back_unpickled
from ckptstore.integrations.trees import KeyPath
from ckptstore.operations.address import Ref, check_name, resolve
from ckptstore.operations.loading.boxes import Box, fill_boxes
from ckptstore.operations.loading.read import read
from ckptstore.operations.ranks.groups import seat
from ckptstore.operations.view import ManifestView, view_of
from ckptstore.store import Store


class StoreReader(StorageReader):
    """One commit of a store, for `dcp.load(state, storage_reader=StoreReader(store, step=100))`.

    The commit may have been saved by any number of ranks, in any layout, or by `Store.commit`. Every rank reads the
    chunks that its own shards touch, straight into them where they are plain memory.

    Args:
        store: a store, or its URL.
        step: the commit: a step, a tag, "latest", any of these behind `run@`. A `checkpoint_id` given to `dcp.load` is
            another one.
        run: the run; by default the store's, or `main`.
        allow_pickle: load values that were stored as pickles. A pickle can run any code.
        allow_cast: load tensors into those of other dtypes, as `Tensor.copy_` does.
        memory_budget_bytes: what reading may hold beside the state; by default 128 MiB, or what one chunk needs.
        process_group: the group given to `dcp.load`, if it is not the default one: whose own a rank gets.
        options: for a URL, what `ckptstore.open` takes, such as `catalog`.

    A load raises, wrapped in DCP's CheckpointException:
        InvalidArgument: ranks found different commits, since one was made meanwhile; or a rank may get another's own,
            for want of `process_group`.
        StateError: a tensor of another dtype, or one that can not be filled in place; nothing was written to any,
            unless the planner has a `commit_tensor` of its own.
        PickleRefused: a value that is a pickle.
        CorruptData: stored bytes are damaged.
    """

    def __init__(
        self,
        store: Store | str | os.PathLike[str],
        *,
        step: Ref = LATEST,
        run: str | None = None,
        allow_pickle: bool = False,
        allow_cast: bool = False,
        memory_budget_bytes: int | None = None,
        process_group: dist.ProcessGroup | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        existing = {} if isinstance(store, Store) else {"create": False}
        self._place = Place(store, None if run is None else check_name("run", run), existing | options)
        self._step, self._allow_pickle, self._allow_cast = step, allow_pickle, allow_cast
        self._budget, self._group = memory_budget_bytes, process_group
        self._view: ManifestView | None = None
        self._paths: dict[str, str] = {}
        self._own: dict[str, tuple[str, KeyPath]] = {}
        self._seat = self._rank = 0

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Whether it may name a commit."""
        return isinstance(checkpoint_id, str | int)

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """See `StorageReader`. Raises InvalidArgument for a `checkpoint_id` that names no commit."""
        if checkpoint_id is None:
            return
        if not isinstance(checkpoint_id, str | int):
            raise InvalidArgument(f"checkpoint_id={checkpoint_id!r}: give a step or a tag, or leave it out")
        self._step = checkpoint_id

    def read_metadata(self, *args: Any) -> Metadata:
        """See `StorageReader`. Raises StepNotFound, RunNotFound, TagNotFound."""
        chunks = self._place.parts()
        self._view = view_of(chunks, resolve(chunks.catalog, self._place.run, self._step))
        own_seat = seat(self._group)
        self._own, self._seat = own_names(self._view.manifest, own_seat), own_seat.rank
        metadata, self._paths = metadata_of(self._view.manifest, self._own)
        metadata.storage_meta = StorageMeta(checkpoint_id=self._view.name, save_id=self._view.commit.id)
        return metadata

    def set_up_storage_reader(
        self,
        metadata: Metadata,
        is_coordinator: bool,  # noqa: FBT001 - by DCP
        *args: Any,
        **kwargs: Any,
    ) -> None:
        """See `StorageReader`."""
        self._rank = kwargs.get("rank", self._seat)

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """See `StorageReader`. Raises InvalidArgument when a rank would get what another one had for itself."""
        wanted = [item.storage_index.fqn for item in plan.items if item.storage_index.fqn in self._own]
        if wanted and self._rank != self._seat:
            problem = f"rank {self._rank} of this load is rank {self._seat} of StoreReader's process group"
            own = f"{self._seat}.{wanted[0]}"
            raise InvalidArgument(f"{problem}: give process_group= to it too, or ask for {own!r} if you want that")
        return replace(plan, storage_data=self._known.commit.id)

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """See `StorageReader`. Raises InvalidArgument when a tag or "latest" was another commit for another rank."""
        if len({plan.storage_data for plan in plans}) > 1:
            raise InvalidArgument(f"step={self._step!r} is not the same commit on all ranks: give a step's number")
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """See `StorageReader`."""
        self._place.settle()
        tensors = [item for item in plan.items if item.type is LoadItemType.TENSOR]
        self._read_tensors(tensors, planner)
        for item in plan.items:
            if item.type is LoadItemType.BYTE_IO:
                planner.load_bytes(item, self._read_value(item.storage_index.fqn))
        self._place.rest()
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def _read_tensors(self, items: Sequence[ReadItem], planner: LoadPlanner) -> None:
        for together in _at_once(items, planner):
            boxes = [self._box(item, planner.resolve_tensor(item)) for item in together]
            fill_boxes(self._place.parts(), boxes, allow_cast=self._allow_cast, budget=self._budget)
            for item, box in zip(together, boxes, strict=True):
                planner.commit_tensor(item, box.target)

    def _box(self, item: ReadItem, target: torch.Tensor) -> Box:
        name = item.storage_index.fqn
        entry = self._known.manifest.entries[self._paths[name]]
        if not isinstance(entry, TensorEntry):
            raise StateError(f"{name!r}: a plain value in the commit, a tensor in the target")
        return Box(entry, tuple(item.storage_offsets), tuple(item.lengths), target, name)

    def _read_value(self, name: str) -> io.BytesIO:
        try:
            return given_back(self._value(name, allow_pickle=False))
        except PickleRefused:
            if not self._allow_pickle:
                raise
            return given_back_unpickled(self._value(name, allow_pickle=True))

    def _value(self, name: str, *, allow_pickle: bool) -> object:
        chunks, path = self._place.parts(), self._paths[name]
        return read(chunks, self._known, path, ..., None, allow_pickle=allow_pickle, budget=self._budget)

    @property
    def _known(self) -> ManifestView:
        if self._view is None:
            self.read_metadata()
        assert self._view is not None
        return self._view


def _at_once(items: Sequence[ReadItem], planner: LoadPlanner) -> Iterable[Sequence[ReadItem]]:
    """The items that are filled together: all, or where the planner does something with each, those of one tensor.

    It may have memory for one only: DCP calls `resolve_tensor` and `commit_tensor` in pairs.
    """
    if getattr(planner.commit_tensor, "__func__", None) is DefaultLoadPlanner.commit_tensor:
        return [items]
    named: dict[str, list[ReadItem]] = {}
    for item in items:
        named.setdefault(item.storage_index.fqn, []).append(item)
    return named.values()
