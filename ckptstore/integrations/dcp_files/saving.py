"""DCP's save of a commit, with a few of its tensors in memory at a time."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.metadata import MetadataIndex
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from ckptstore.chunkstore import ChunkStore
from ckptstore.chunkstore.grouping import Advance, groups
from ckptstore.errors import StateError, StorageError
from ckptstore.format.manifest import TensorEntry
from ckptstore.operations.loading.load import load_arrays
from ckptstore.state.dtypes import torch_dtype
from ckptstore.state.new_arrays import finish

_FILE_BYTES = 64 << 20
"""Where a file ends; with the tensor that reaches it."""


class Tensors:
    """Tensors of a commit that DCP writes as such. In the state that it saves, forms without memory stand for them."""

    def __init__(self, chunks: ChunkStore, entries: Mapping[str, TensorEntry], advance: Advance) -> None:
        self._chunks, self._entries, self._advance = chunks, entries, advance
        self.forms = {path: _form(path, entry) for path, entry in entries.items()}
        self.failure: BaseException | None = None
        self._paths = {id(form): path for path, form in self.forms.items()}
        self._held: dict[str, Any] = {}

    def bring(self, found: Iterable[object]) -> None:
        """Hold those whose forms are among `found`, and no others. What fails is `failure` then."""
        self._held = {}
        paths = [self._paths[id(form)] for form in found if id(form) in self._paths]
        entries = {path: self._entries[path] for path in paths}
        try:
            self._held = load_arrays(self._chunks, entries, {}, same=(), budget=None, advance=self._advance)
        except BaseException as error:
            self.failure = error
            raise

    def behind(self, found: Any) -> Any:
        """The tensor that a form stands for; anything else as it is."""
        return self._held[self._paths[id(found)]] if id(found) in self._paths else found


def save_with(tensors: Tensors, state: dict[str, Any], folder: Path, target: str) -> None:
    """Save a state with forms of `tensors`. Raises StateError for what DCP refuses, or StorageError, with `target`."""
    handled = sys.exception()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # that this is one process
            save(state, storage_writer=_Writer(folder, tensors), planner=_Planner(tensors), no_dist=True)
    except CheckpointException as error:
        cause = next((failure for failure, _ in error.failures.values()), error)
        if cause is tensors.failure:
            raise cause from None
        ended = _ended_by(cause, handled)
        if isinstance(ended, KeyboardInterrupt):
            raise ended from None
        kind = StateError if ended is None else StorageError
        raise kind(f"cannot write {target} with DCP: {ended or cause}") from error


def _ended_by(error: BaseException | None, handled: BaseException | None) -> BaseException | None:
    """The interrupt, or what the operating system refused, that torch fails to end its file behind, if that it was.

    What the caller is dealing with ended nothing here.
    """
    while error is not handled and not isinstance(error, OSError | KeyboardInterrupt | None):
        error = error.__context__
    return None if error is handled else error


class _Planner(DefaultSavePlanner):
    def __init__(self, tensors: Tensors) -> None:
        super().__init__()
        self._tensors = tensors

    def lookup_object(self, index: MetadataIndex) -> Any:
        return self._tensors.behind(super().lookup_object(index))


class _Writer(FileSystemWriter):
    """Writes one file after the other, as if many ranks did: DCP holds what is in a file until that is whole."""

    def __init__(self, folder: Path, tensors: Tensors) -> None:
        super().__init__(folder)
        self._tensors = tensors

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        assert isinstance(planner, _Planner)
        written: list[WriteResult] = []
        for number, items in enumerate(groups(plan.items, _size, _FILE_BYTES, len(plan.items))):
            self._tensors.bring(planner.state_dict[item.index.fqn] for item in items)
            place = replace(plan.storage_data, prefix=f"__{number}_")
            written += super().write_data(replace(plan, items=items, storage_data=place), planner).wait()
        done: Future[list[WriteResult]] = Future()
        done.set_result(written)
        return done


def _size(item: WriteItem) -> int:
    form = item.tensor_data
    return 0 if form is None else prod(form.size) * form.properties.dtype.itemsize


def _form(path: str, entry: TensorEntry) -> Any:
    return finish(path, torch.empty(entry.shape, dtype=torch_dtype(path, entry.dtype), device="meta"), entry)
