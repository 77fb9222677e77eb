"""The tools that save in the background, each used as its documentation says, with memory kept from save to save."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar

from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_saver import async_save

import ckptstore
from benchmarks.figures import AT_ONCE, OWN, PEER
from benchmarks.measuring import remove
from benchmarks.tools import Dcp, Tensors, sync
from benchmarks.trained import MOMENTS, Trained


class Background(ABC):
    """Saves the state of one training to a folder, with one save in flight at a time."""

    name: ClassVar[str]

    def __init__(self, trained: Trained, folder: Path) -> None:
        self.trained, self.folder = trained, folder

    @abstractmethod
    def save(self) -> None:
        """Begin a save; the last one is finished."""

    @abstractmethod
    def is_busy(self) -> bool:
        """Whether the last save is not on disk yet."""

    @abstractmethod
    def finish(self) -> None:
        """Wait until the last save is on disk."""

    @abstractmethod
    def load(self, into: Tensors) -> None:
        """The last save, under the names of `Trained.tensors`."""

    @abstractmethod
    def close(self) -> None:
        """Give memory and disk back."""


class Own(Background):
    """commit_async as it comes."""

    name = OWN
    just_in_time = True

    def __init__(self, trained: Trained, folder: Path) -> None:
        super().__init__(trained, folder)
        self._store = ckptstore.open(folder)
        self._step = 0
        self._handle: ckptstore.CommitHandle | None = None

    def save(self) -> None:
        self._step += 1
        state = {"model": self.trained.model, "optimizer": self.trained.optimizer}
        self._handle = self._store.commit_async(state, step=self._step, just_in_time=self.just_in_time)

    def is_busy(self) -> bool:
        return self._handle is not None and not self._handle.done()

    def finish(self) -> None:
        if self._handle is not None:
            self._handle.result()

    def load(self, into: Tensors) -> None:
        state = self._store.checkout("latest")
        for number, (name, _) in enumerate(self.trained.model.named_parameters()):
            into[name].copy_(state["model"][name])
            for moment in MOMENTS:
                into[f"{moment}.{name}"].copy_(state["optimizer"]["state"][number][moment])

    def close(self) -> None:
        self._store.close()
        remove(self.folder)


class OwnAtOnce(Own):
    """commit_async that copies before it returns."""

    name = AT_ONCE
    just_in_time = False


class AsyncSaves:
    """DCP's async_save to one folder with a stager that is kept: it copies before it returns, or `in_thread`.

    `pinned` is for tensors on a device: copies to pinned memory, which do not wait for each other.
    """

    def __init__(self, folder: Path, *, in_thread: bool = False, pinned: bool = False) -> None:
        self._folder = folder
        self._saved: Any = None
        self._stager = DefaultStager(
            StagingOptions(
                use_pinned_memory=pinned,
                use_shared_memory=False,
                use_async_staging=in_thread,
                use_non_blocking_copy=pinned,
            )
        )

    def begin(self, tensors: Tensors) -> None:
        """Begin a save in place of the last one, which is finished."""
        remove(self._folder)
        writer = FileSystemWriter(self._folder, sync_files=True)
        self._saved = async_save(tensors, storage_writer=writer, async_stager=self._stager, no_dist=True)

    def is_busy(self) -> bool:
        """Whether it is not on disk yet."""
        return self._saved is not None and not self._upload().done()

    def wait_staged(self) -> None:
        """Wait until a thread has copied it."""
        if self._saved is not None:
            self._saved.staging_completion.result()

    def finish(self) -> None:
        """Wait until it is on disk."""
        if self._saved is not None:
            self._upload().result()
            sync(self._folder)

    def close(self) -> None:
        """Give memory and disk back."""
        self._stager.close()
        remove(self._folder)

    def _upload(self) -> Any:
        return getattr(self._saved, "upload_completion", self._saved)


class DcpAtOnce(Background):
    """async_save that copies before it returns."""

    name = PEER
    in_thread = False

    def __init__(self, trained: Trained, folder: Path) -> None:
        super().__init__(trained, folder)
        self.saves = AsyncSaves(folder, in_thread=self.in_thread, pinned=trained.device != "cpu")

    def save(self) -> None:
        self.saves.begin(self.trained.tensors())

    def is_busy(self) -> bool:
        return self.saves.is_busy()

    def finish(self) -> None:
        self.saves.finish()

    def load(self, into: Tensors) -> None:
        Dcp().load(into, self.folder)

    def close(self) -> None:
        self.saves.close()


class DcpInThread(DcpAtOnce):
    """async_save whose kept stager copies in a thread; the next step waits for it."""

    name = "DCP, in a thread"
    in_thread = True

    def __init__(self, trained: Trained, folder: Path) -> None:
        super().__init__(trained, folder)
        self._hook = trained.optimizer.register_step_pre_hook(lambda *_: self.saves.wait_staged())

    def close(self) -> None:
        self._hook.remove()
        super().close()


BACKGROUND: tuple[type[Background], ...] = (Own, OwnAtOnce, DcpAtOnce, DcpInThread)
