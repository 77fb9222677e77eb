"""Git for training state: commits that store only the bytes that are new, checkouts that are bit-exact.

    store = ckptstore.open("./ckpts")
    store.commit({"model": model, "optim": optimizer}, step=100, metadata={"loss": 2.3})
    store.checkout(100, into={"model": model, "optim": optimizer})

Names are imported when they are first used, so that `import ckptstore` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ckptstore.administering import change_key, rebuild_catalog
    from ckptstore.catalog.records import CatalogStats as Stats
    from ckptstore.catalog.records import CommitRecord as Commit
    from ckptstore.catalog.records import RunRecord as Run
    from ckptstore.errors import (
        BudgetTooSmall,
        CatalogBusy,
        CatalogError,
        CatalogLocation,
        CatalogNotFound,
        CatalogUnavailable,
        CkptStoreError,
        CommitInFlight,
        Conflict,
        CorruptData,
        FormatError,
        GcRefused,
        InterpreterExiting,
        InvalidArgument,
        MissingData,
        NotAStore,
        NotFound,
        ObjectExists,
        ObjectNotFound,
        OutOfThreads,
        PathNotFound,
        PickleRefused,
        RankFailed,
        RunNotFound,
        SchemaTooNew,
        SchemaTooOld,
        SessionFenced,
        StateError,
        StateMismatch,
        StepExists,
        StepNotFound,
        StepProtected,
        StorageError,
        StorageFull,
        StorageReadOnly,
        StorageUnavailable,
        StoreExists,
        StoreTooNew,
        TagNotFound,
        TooManyConnections,
        UnknownType,
        UnsupportedLeaf,
        WrongKey,
    )
    from ckptstore.format.manifest import Container, TensorEntry, ValueEntry
    from ckptstore.manager.manager import CheckpointManager
    from ckptstore.manager.saving import Moment, SaveAt, SaveEvery, SaveEverySeconds, SaveIf, SavePolicy
    from ckptstore.operations.collecting.gc import GcPlan, GcReport
    from ckptstore.operations.collecting.retention import (
        KeepBest,
        KeepEvery,
        KeepEverySeconds,
        KeepIf,
        KeepLast,
        Policy,
    )
    from ckptstore.operations.committing.handles import CommitHandle
    from ckptstore.operations.diff import Change, Diff, Numbers
    from ckptstore.operations.mending.rebuild import LeftOut, RebuildReport
    from ckptstore.operations.mending.repair import RepairPlan, RepairReport
    from ckptstore.operations.problem import Problem
    from ckptstore.operations.structure import Restructured, Retied
    from ckptstore.operations.verifying.verify import VerifyReport
    from ckptstore.operations.view import ManifestView
    from ckptstore.state.stateful import RNGState, StateDict
    from ckptstore.store import Store
    from ckptstore.store import open_store as open  # noqa: A004 - `ckptstore.open` reads as it should

__version__ = "0.1.0"

__all__ = [
    "BudgetTooSmall",
    "CatalogBusy",
    "CatalogError",
    "CatalogLocation",
    "CatalogNotFound",
    "CatalogUnavailable",
    "Change",
    "CheckpointManager",
    "CkptStoreError",
    "Commit",
    "CommitHandle",
    "CommitInFlight",
    "Conflict",
    "Container",
    "CorruptData",
    "Diff",
    "FormatError",
    "GcPlan",
    "GcRefused",
    "GcReport",
    "InterpreterExiting",
    "InvalidArgument",
    "KeepBest",
    "KeepEvery",
    "KeepEverySeconds",
    "KeepIf",
    "KeepLast",
    "LeftOut",
    "ManifestView",
    "MissingData",
    "Moment",
    "NotAStore",
    "NotFound",
    "Numbers",
    "ObjectExists",
    "ObjectNotFound",
    "OutOfThreads",
    "PathNotFound",
    "PickleRefused",
    "Policy",
    "Problem",
    "RNGState",
    "RankFailed",
    "RebuildReport",
    "RepairPlan",
    "RepairReport",
    "Restructured",
    "Retied",
    "Run",
    "RunNotFound",
    "SaveAt",
    "SaveEvery",
    "SaveEverySeconds",
    "SaveIf",
    "SavePolicy",
    "SchemaTooNew",
    "SchemaTooOld",
    "SessionFenced",
    "StateDict",
    "StateError",
    "StateMismatch",
    "Stats",
    "StepExists",
    "StepNotFound",
    "StepProtected",
    "StorageError",
    "StorageFull",
    "StorageReadOnly",
    "StorageUnavailable",
    "Store",
    "StoreExists",
    "StoreTooNew",
    "TagNotFound",
    "TensorEntry",
    "TooManyConnections",
    "UnknownType",
    "UnsupportedLeaf",
    "ValueEntry",
    "VerifyReport",
    "WrongKey",
    "change_key",
    "open",
    "rebuild_catalog",
]

_ELSEWHERE = {
    "Change": "operations.diff:Change",
    "CheckpointManager": "manager.manager:CheckpointManager",
    "Commit": "catalog.records:CommitRecord",
    "CommitHandle": "operations.committing.handles:CommitHandle",
    "Container": "format.manifest:Container",
    "Diff": "operations.diff:Diff",
    "GcPlan": "operations.collecting.gc:GcPlan",
    "GcReport": "operations.collecting.gc:GcReport",
    "KeepBest": "operations.collecting.retention:KeepBest",
    "KeepEvery": "operations.collecting.retention:KeepEvery",
    "KeepEverySeconds": "operations.collecting.retention:KeepEverySeconds",
    "KeepIf": "operations.collecting.retention:KeepIf",
    "KeepLast": "operations.collecting.retention:KeepLast",
    "ManifestView": "operations.view:ManifestView",
    "Moment": "manager.saving:Moment",
    "Numbers": "operations.diff:Numbers",
    "Policy": "operations.collecting.retention:Policy",
    "Problem": "operations.problem:Problem",
    "RNGState": "state.stateful:RNGState",
    "Run": "catalog.records:RunRecord",
    "SaveAt": "manager.saving:SaveAt",
    "SaveEvery": "manager.saving:SaveEvery",
    "SaveEverySeconds": "manager.saving:SaveEverySeconds",
    "SaveIf": "manager.saving:SaveIf",
    "SavePolicy": "manager.saving:SavePolicy",
    "StateDict": "state.stateful:StateDict",
    "Stats": "catalog.records:CatalogStats",
    "Store": "store:Store",
    "TensorEntry": "format.manifest:TensorEntry",
    "ValueEntry": "format.manifest:ValueEntry",
    "LeftOut": "operations.mending.rebuild:LeftOut",
    "RepairPlan": "operations.mending.repair:RepairPlan",
    "RepairReport": "operations.mending.repair:RepairReport",
    "Restructured": "operations.structure:Restructured",
    "Retied": "operations.structure:Retied",
    "RebuildReport": "operations.mending.rebuild:RebuildReport",
    "VerifyReport": "operations.verifying.verify:VerifyReport",
    "change_key": "administering:change_key",
    "open": "store:open_store",
    "rebuild_catalog": "administering:rebuild_catalog",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, attribute = _ELSEWHERE.get(name, f"errors:{name}").partition(":")
    found = getattr(import_module(f"{__name__}.{module}"), attribute)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
