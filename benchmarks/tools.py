"""The tools that are measured, each used as its documentation says, with everything on disk when `save` returns."""

from __future__ import annotations

import contextlib
import io
import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

import ckptstore

Tensors = dict[str, Tensor]


class Tool(ABC):
    """Saves flat dicts of tensors to a folder of its own. `name` is how tables name it."""

    name: ClassVar[str]
    keeps_steps: ClassVar[bool] = False
    """Whether a further save goes to the same folder."""

    @abstractmethod
    def save(self, tensors: Tensors, folder: Path) -> None:
        """Durably; another save to the same folder follows only after `folder` was removed, or with `step` raised."""

    @abstractmethod
    def load(self, tensors: Tensors, folder: Path) -> None:
        """The last save, into live tensors."""

    def load_new(self, like: Tensors, folder: Path) -> Tensors:
        """The last save, in memory of its own."""
        made = {name: torch.empty_like(tensor) for name, tensor in like.items()}
        self.load(made, folder)
        return made

    @abstractmethod
    def load_one(self, name: str, like: Tensor, folder: Path) -> Tensor:
        """One tensor of the last save."""


class Ckptstore(Tool):
    """ckptstore: every save is the next step of one store, which stays open from save to save, as in training."""

    name = "ckptstore"
    keeps_steps = True

    def __init__(self) -> None:
        self._store: ckptstore.Store | None = None

    def save(self, tensors: Tensors, folder: Path) -> None:
        store = self._store_at(folder)
        latest = store.latest()
        store.commit({"state": tensors}, step=0 if latest is None else latest + 1)

    def load(self, tensors: Tensors, folder: Path) -> None:
        with ckptstore.open(folder) as store:
            store.checkout("latest", into={"state": tensors})

    def load_new(self, like: Tensors, folder: Path) -> Tensors:
        with ckptstore.open(folder) as store:
            made: Tensors = store.checkout("latest")["state"]
            return made

    def load_one(self, name: str, like: Tensor, folder: Path) -> Tensor:
        with ckptstore.open(folder) as store:
            found: Tensor = store.read("latest", f"state/{name}")
            return found

    def _store_at(self, folder: Path) -> ckptstore.Store:
        """The one that is open, unless another folder is meant, or it was removed."""
        if self._store is not None and self._store.url == os.path.abspath(folder) and folder.exists():
            return self._store
        if self._store is not None:
            self._store.close()
        self._store = ckptstore.open(folder)
        return self._store


class Dcp(Tool):
    """torch.distributed.checkpoint in one process."""

    name = "DCP"

    def save(self, tensors: Tensors, folder: Path) -> None:
        with quiet():
            save(tensors, storage_writer=FileSystemWriter(folder, sync_files=True), no_dist=True)
        sync(folder)

    def load(self, tensors: Tensors, folder: Path) -> None:
        with quiet():
            load(tensors, storage_reader=FileSystemReader(folder), no_dist=True)

    def load_one(self, name: str, like: Tensor, folder: Path) -> Tensor:
        wanted = {name: torch.empty_like(like)}
        self.load(wanted, folder)
        return wanted[name]


class TorchSave(Tool):
    """torch.save, and torch.load with mmap."""

    name = "torch.save"

    def save(self, tensors: Tensors, folder: Path) -> None:
        folder.mkdir()
        torch.save(tensors, folder / "state.pt")
        sync(folder / "state.pt", folder)

    def load(self, tensors: Tensors, folder: Path) -> None:
        found = torch.load(folder / "state.pt", mmap=True, weights_only=True)
        for name, tensor in tensors.items():
            tensor.copy_(found[name])

    def load_one(self, name: str, like: Tensor, folder: Path) -> Tensor:
        found: Tensor = torch.load(folder / "state.pt", mmap=True, weights_only=True)[name]
        return found.clone()


class Safetensors(Tool):
    """safetensors' own functions for torch."""

    name = "safetensors"

    def __init__(self) -> None:
        self._library = import_module("safetensors")
        self._torch = import_module("safetensors.torch")

    def save(self, tensors: Tensors, folder: Path) -> None:
        folder.mkdir()
        self._torch.save_file(tensors, folder / "state.safetensors")
        sync(folder / "state.safetensors", folder)

    def load(self, tensors: Tensors, folder: Path) -> None:
        with self._library.safe_open(folder / "state.safetensors", "pt") as found:
            for name, tensor in tensors.items():
                tensor.copy_(found.get_tensor(name))

    def load_one(self, name: str, like: Tensor, folder: Path) -> Tensor:
        with self._library.safe_open(folder / "state.safetensors", "pt") as found:
            one: Tensor = found.get_tensor(name)
            return one.clone()


class Torchsnapshot(Tool):
    """torchsnapshot, which does not flush by itself: its files are flushed after it."""

    name = "torchsnapshot"

    def __init__(self) -> None:
        with quiet():
            self._library: Any = import_module("torchsnapshot")

    def save(self, tensors: Tensors, folder: Path) -> None:
        with quiet():
            self._library.Snapshot.take(str(folder), {"state": self._library.StateDict(**tensors)})
        sync(*(path for path in folder.rglob("*")), folder)

    def load(self, tensors: Tensors, folder: Path) -> None:
        with quiet():
            self._library.Snapshot(str(folder)).restore({"state": self._library.StateDict(**tensors)})

    def load_one(self, name: str, like: Tensor, folder: Path) -> Tensor:
        with quiet():
            out = torch.empty_like(like)
            self._library.Snapshot(str(folder)).read_object(f"0/state/{name}", obj_out=out)
            return out


TOOLS: tuple[type[Tool], ...] = (Ckptstore, Dcp, TorchSave, Safetensors, Torchsnapshot)


def available() -> tuple[list[Tool], dict[str, str]]:
    """The tools that can be imported here, and why others cannot."""
    tools: list[Tool] = []
    missing: dict[str, str] = {}
    for make in TOOLS:
        try:
            tools.append(make())
        except ImportError as error:
            missing[make.name] = str(error)
    return tools, missing


def sync(*paths: Path) -> None:
    """Flush files and folders to disk."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        yield
