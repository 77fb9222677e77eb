"""What people build on: the names, their signatures and what is said about them."""

from __future__ import annotations

import ast
import inspect
import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import ckptstore
from ckptstore import errors

NAMES = [
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

SIGNATURES = {
    "close": "(self) -> None",
    "commit": "(self, app_state, *, step, metadata=None, parent=None, run=None, allow_pickle=False, "
    "process_group=None, replicated=None, progress=None)",
    "commit_async": "(self, app_state, *, step, metadata=None, parent=None, run=None, allow_pickle=False, "
    "process_group=None, replicated=None, just_in_time=True, when_busy='wait')",
    "tag": "(self, name, step)",
    "untag": "(self, name)",
    "delete": "(self, step, *more)",
    "restore": "(self, step)",
    "checkout": "(self, step='latest', *, into=None, paths=None, strict=True, allow_cast=False, skip_damaged=False, "
    "allow_pickle=False, process_group=None, memory_budget_bytes=None, progress=None)",
    "read": "(self, step, path, *, index=..., out=None, allow_pickle=False, memory_budget_bytes=None)",
    "manifest": "(self, step='latest')",
    "steps": "(self)",
    "latest": "(self)",
    "log": "(self, *, deleted=False)",
    "find": "(self, step='latest')",
    "runs": "(self)",
    "tags": "(self)",
    "stats": "(self)",
    "diff": "(self, old, new, *, values=False, memory_budget_bytes=None, progress=None)",
    "plan_gc": "(self, keep=None, *, grace=900.0, sweep=False, progress=None)",
    "gc": "(self, keep=None, *, grace=900.0, sweep=False, most=0.9, progress=None)",
    "plan_repair": "(self, source=None, *, progress=None)",
    "repair": "(self, source=None, *, progress=None)",
    "push": "(self, target, *steps, run=None, progress=None)",
    "verify": "(self, level='data', *, subset=None, older_than=None, progress=None)",
}
OPEN = (
    "(url, *, catalog=None, run='main', create=True, read_only=False, digest=None, chunk_bytes=4194304, "
    "compression='auto', storage_options=None, encrypt=False, key_file=None)"
)


def signature(function: Any) -> str:
    """Names and defaults, without types."""
    found = inspect.signature(function)
    bare = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in found.parameters.values()]
    return str(found.replace(parameters=bare, return_annotation=inspect.Signature.empty)).replace("Ellipsis", "...")


def public(cls: type) -> dict[str, Any]:
    ours = [base for base in cls.__mro__ if base.__module__.startswith("ckptstore")]
    return {name: getattr(cls, name) for base in ours for name in vars(base) if not name.startswith("_")}


def test_the_names():
    assert ckptstore.__all__ == NAMES
    assert sorted(NAMES) == NAMES
    assert set(NAMES) <= set(dir(ckptstore))


@pytest.mark.parametrize("name", NAMES)
def test_every_name_can_be_imported_and_explains_itself(name):
    found = getattr(ckptstore, name)
    assert found.__module__.startswith("ckptstore")
    assert found.__doc__
    assert not found.__doc__.startswith(f"{name}(")  # what dataclass writes by itself


@pytest.mark.parametrize("name", NAMES)
def test_every_method_explains_itself(name):
    found = getattr(ckptstore, name)
    for method, value in public(found).items() if inspect.isclass(found) else ():
        if inspect.isfunction(value) or isinstance(value, property):
            assert inspect.getdoc(value), f"{name}.{method}"


def test_a_name_that_does_not_exist():
    with pytest.raises(AttributeError, match="module 'ckptstore' has no attribute 'Stroe'"):
        _ = ckptstore.Stroe
    assert not hasattr(ckptstore, "MIB")


def test_every_error_can_be_imported():
    tree = {name for name, value in vars(errors).items() if inspect.isclass(value) and issubclass(value, Exception)}
    here = {name for name in NAMES if inspect.isclass(getattr(ckptstore, name)) and name in tree}
    assert here == tree
    for name in here:
        assert issubclass(getattr(ckptstore, name), ckptstore.CkptStoreError)
        assert f" {name}" in (errors.__doc__ or ""), f"{name} is not drawn in the tree"


def test_types_and_names_agree():
    """What type checkers see is what is imported."""
    module = ast.parse(Path(ckptstore.__file__).read_text())
    block = next(node for node in module.body if isinstance(node, ast.If))
    for node in block.body:
        assert isinstance(node, ast.ImportFrom)
        assert node.module
        for alias in node.names:
            shown = getattr(ckptstore, alias.asname or alias.name)
            assert shown.__module__ == node.module or node.module.startswith(shown.__module__)
            assert shown.__name__ == alias.name
    imported = {alias.asname or alias.name for node in block.body for alias in getattr(node, "names", [])}
    assert imported == set(NAMES)


@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures_of_the_store(name):
    assert signature(getattr(ckptstore.Store, name)) == SIGNATURES[name].removesuffix(" -> None")


def test_the_store_has_no_other_methods():
    assert set(public(ckptstore.Store)) == {*SIGNATURES, "url", "run"}
    assert signature(ckptstore.open) == OPEN


def test_errors_reach_other_processes():
    leaf = pickle.loads(pickle.dumps(errors.UnsupportedLeaf("a/b", "a lambda", "name it")))
    assert (leaf.path, leaf.kind, str(leaf)) == ("a/b", "a lambda", "cannot store 'a/b': a lambda; name it")
    misfit = errors.StateMismatch(["a"], [], ["b: other"])
    again = pickle.loads(pickle.dumps(misfit))
    assert (again.missing, again.different, str(again)) == (misfit.missing, misfit.different, str(misfit))


def test_errors_are_caught_as_what_python_has():
    for name, builtin in {
        "InvalidArgument": ValueError,
        "BudgetTooSmall": ValueError,
        "NotFound": LookupError,
        "PathNotFound": KeyError,
        "UnsupportedLeaf": TypeError,
    }.items():
        assert issubclass(getattr(ckptstore, name), builtin)


_IMPORTING = """
import json, sys, time
before = time.process_time()
import ckptstore
spent = time.process_time() - before
{then}
print(json.dumps([spent, sorted(sys.modules)]))
"""


def _imported(then: str = "", *arguments: Path) -> tuple[float, set[str]]:
    source = _IMPORTING.format(then=then)
    done = subprocess.run([sys.executable, "-c", source, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    spent, modules = json.loads(done.stdout)
    return spent, set(modules)


def test_importing_costs_nothing():
    found = [_imported() for _ in range(3)]
    assert min(spent for spent, _ in found) < 0.1
    assert not found[0][1] & {"torch", "numpy", "sqlalchemy", "fsspec", "msgspec", "alembic", "rich", "click"}


def test_errors_import_nothing_either():
    assert not _imported("ckptstore.StepNotFound, ckptstore.CkptStoreError")[1] & {"torch", "sqlalchemy", "numpy"}


def test_what_reads_no_chunks_imports_no_numpy(tmp_path, store):
    store.commit({"w": 1}, step=0)
    _, modules = _imported("with ckptstore.open(sys.argv[1]) as store: store.log(), store.steps()", tmp_path / "store")
    assert not modules & {"torch", "numpy"}


def test_what_needs_no_tensors_imports_no_torch(tmp_path, store):
    store.commit({"w": 1, "v": list(range(3000))}, step=0)
    store.commit({"w": 2, "v": list(range(3000))}, step=1)
    then = """
with ckptstore.open(sys.argv[1]) as store:
    store.log(), store.steps(), store.latest(), store.runs(), store.tags(), store.stats(), store.find(0)
    store.manifest(0), store.diff(0, 1), store.tag("best", 0), store.delete(1), store.restore(1)
    store.plan_gc(ckptstore.KeepLast(1) | ckptstore.KeepEvery(5)), store.gc(), store.verify()
    store.push(store, run="fork")
"""
    _, modules = _imported(then, tmp_path / "store")
    assert not modules & {"torch", "alembic", "fsspec", "rich", "click"}
