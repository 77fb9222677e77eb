"""The tools that save to an object store, each used as its documentation says, by a job that stays connected."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import torch
from torch import Tensor
from torch.distributed.checkpoint._fsspec_filesystem import FsspecReader, FsspecWriter
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

import ckptstore
from benchmarks.tools import Tensors, quiet
from ckptstore.testing.servers import Bucket


class RemoteTool(ABC):
    """Saves flat dicts of tensors in a bucket. `name` is how tables name it."""

    name: ClassVar[str]

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket

    def begin(self, place: str) -> None:
        """What a job does once, before its first save; `place` is where in the bucket it saves."""
        self._place, self._step = place, 0

    @abstractmethod
    def save(self, tensors: Tensors) -> None:
        """The next step."""

    @abstractmethod
    def load(self, tensors: Tensors) -> None:
        """The last step, into live tensors."""

    @abstractmethod
    def read(self, name: str, like: Tensor, rows: slice) -> Tensor:
        """Some rows of one tensor of the last step."""

    def end(self) -> None:  # noqa: B027 - most need nothing
        """What a job does after its last save."""

    @property
    def _url(self) -> str:
        return self._bucket.below(f"{self._place}/{self._step}")


class Ckptstore(RemoteTool):
    """ckptstore: every save is the next step of one store, with a catalog on the local disk."""

    name = "ckptstore"

    def __init__(self, bucket: Bucket, folder: Path) -> None:
        super().__init__(bucket)
        self._folder = folder

    def begin(self, place: str) -> None:
        super().begin(place)
        catalog = f"sqlite:///{self._folder / place}.sqlite"
        self._store = ckptstore.open(self._bucket.below(place), catalog=catalog, storage_options=self._bucket.options)

    def save(self, tensors: Tensors) -> None:
        self._step += 1
        self._store.commit({"state": tensors}, step=self._step)

    def load(self, tensors: Tensors) -> None:
        self._store.checkout(self._step, into={"state": tensors})

    def read(self, name: str, like: Tensor, rows: slice) -> Tensor:
        found: Tensor = self._store.read(self._step, f"state/{name}", index=rows)
        return found

    def end(self) -> None:
        self._store.close()


class Dcp(RemoteTool):
    """torch.distributed.checkpoint through its own writer and reader for fsspec, in one process."""

    name = "DCP"

    def save(self, tensors: Tensors) -> None:
        self._step += 1
        with quiet():
            save(tensors, storage_writer=FsspecWriter(self._url, **self._bucket.options), no_dist=True)

    def load(self, tensors: Tensors) -> None:
        with quiet():
            load(tensors, storage_reader=FsspecReader(self._url, **self._bucket.options), no_dist=True)

    def read(self, name: str, like: Tensor, rows: slice) -> Tensor:
        wanted = {name: torch.empty_like(like)}
        self.load(wanted)
        return wanted[name][rows]


class TorchSave(RemoteTool):
    """torch.save and torch.load on files of s3fs."""

    name = "torch.save"

    def save(self, tensors: Tensors) -> None:
        self._step += 1
        with self._file("wb") as file:
            torch.save(tensors, file)

    def load(self, tensors: Tensors) -> None:
        found = self._found()
        for name, tensor in tensors.items():
            tensor.copy_(found[name])

    def read(self, name: str, like: Tensor, rows: slice) -> Tensor:
        return self._found()[name][rows]

    def _found(self) -> Tensors:
        with self._file("rb") as file:
            found: Tensors = torch.load(file, weights_only=True)
            return found

    def _file(self, mode: str) -> Any:
        return fsspec.filesystem("s3", **self._bucket.options).open(f"{self._url}/state.pt", mode)
