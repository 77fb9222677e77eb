"""The tools that save what several ranks have, each as its documentation says, with everything on disk at the end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar

import torch.distributed as dist
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

import ckptstore
from benchmarks.figures import OWN, PEER
from benchmarks.tools import Tensors, quiet, sync
from ckptstore.integrations.dcp import StoreReader, StoreWriter


class RankTool(ABC):
    """Saves to a folder of its own. Every method is called by all ranks, but for `close`."""

    name: ClassVar[str]

    def __init__(self, folder: Path) -> None:
        self.folder, self.step = folder, 0

    @abstractmethod
    def save(self, tensors: Tensors) -> None:
        """Durably."""

    @abstractmethod
    def load(self, into: Tensors) -> None:
        """The last save."""

    def close(self) -> None:  # noqa: B027 - most have nothing to close
        """There will be no more saves."""


class Own(RankTool):
    """Every save is the next step of one store, which stays open, as it does in a training."""

    name = OWN

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._store = ckptstore.open(folder)

    def save(self, tensors: Tensors) -> None:
        self.step += 1
        save({"state": tensors}, storage_writer=StoreWriter(self._store, step=self.step))

    def load(self, into: Tensors) -> None:
        load({"state": into}, storage_reader=StoreReader(self._store, step=self.step))

    def close(self) -> None:
        self._store.close()


class Files(RankTool):
    """DCP's own files, a folder for each save: no training removes the last one before the next one is there."""

    name = PEER

    def save(self, tensors: Tensors) -> None:
        self.step += 1
        with quiet():
            save({"state": tensors}, storage_writer=FileSystemWriter(self._last, sync_files=True))
        if dist.get_rank() == 0:
            sync(self._last)

    def load(self, into: Tensors) -> None:
        with quiet():
            load({"state": into}, storage_reader=FileSystemReader(self._last))

    @property
    def _last(self) -> Path:
        return self.folder / str(self.step)


RANK_TOOLS: tuple[type[RankTool], ...] = (Own, Files)
