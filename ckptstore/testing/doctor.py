"""Runs the conformance suites against a user's storage and database, in places of its own that are removed again."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ckptstore.catalog.base import Catalog
from ckptstore.catalog.engine import Database
from ckptstore.catalog.opening import open_catalog, sqlite_url
from ckptstore.errors import InvalidArgument
from ckptstore.opening import catalog_url
from ckptstore.storage import Storage, open_storage
from ckptstore.storage.local import LocalStorage
from ckptstore.testing import doctor_suites

_TOLERATED = {
    "test_racing_puts_of_one_key": "the server ignores conditions of writes; names are random, so nobody races for one",
    "test_readers_never_see_a_part": "what is being written is seen; nobody asks for an object before it is committed",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """A check that does not hold.

    Attributes:
        suite: "storage" or "catalog".
        check: what was checked.
        detail: how it failed.
        tolerated: why it need not hold; "" when it must.
    """

    suite: str
    check: str
    detail: str
    tolerated: str = ""


@dataclass(frozen=True, slots=True)
class Examination:
    """How many checks were made, and those that do not hold."""

    checks: int
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Whether a store can live there."""
        return self.checks > 0 and all(finding.tolerated for finding in self.findings)


def examine(
    url: str | os.PathLike[str],
    *,
    catalog: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Examination:
    """Whether a store can live at a place; what is there already is not touched.

    Args:
        url: the storage.
        catalog: URL of the database; by default SQLite beside a folder. A bucket without one is examined alone. On
            Postgres, the user must be allowed to create schemas.
        storage_options: what fsspec passes on to the file system of a URL.

    Raises:
        InvalidArgument, StorageError, CatalogError: a place that cannot be opened at all.
        KeyboardInterrupt: it was interrupted; what it had found till then says nothing.
    """
    doctor = _Doctor(os.fspath(url), catalog, storage_options)
    with doctor.room() as suites, open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):
        chosen = [f"{doctor_suites.__file__}::{suite}" for suite in suites]
        options = [*(f"-pno:{plugin}" for plugin in ("cacheprovider", "xdist", "randomly")), "-c", os.devnull]
        code = pytest.main([*options, f"--rootdir={Path(doctor_suites.__file__).parent}", *chosen], plugins=[doctor])
    if code == pytest.ExitCode.INTERRUPTED:
        raise KeyboardInterrupt
    if code not in {pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED}:
        raise InvalidArgument("pytest did not run the checks to their end: see that PYTEST_ADDOPTS is not set")
    return Examination(doctor.checks, tuple(doctor.findings.values()))


class _Doctor:
    """A plugin of pytest: gives the suites their places, and listens to what comes of them."""

    def __init__(self, url: str, catalog: str | None, storage_options: Mapping[str, Any] | None) -> None:
        self._url, self._catalog, self._options = url.rstrip("/"), catalog, storage_options
        self._name = f"ckptstore-doctor-{uuid.uuid4().hex[:12]}"
        self.checks = 0
        self.findings: dict[str, Finding] = {}

    @contextmanager
    def room(self) -> Iterator[list[str]]:
        """The suites to run, once what can only fail as a whole has not; removes everything in the end."""
        with _removing(self._missing_folders()), self._empty_storage() as storage:
            storage.put("begun", [b""])
            if self._catalog is None and isinstance(storage, LocalStorage):
                self._catalog = catalog_url(storage, None)
            if self._catalog is not None:
                with _empty_catalog(self._catalog) as url:
                    open_catalog(url, create=True).close()
            yield ["TestStorage"] if self._catalog is None else ["TestStorage", "TestCatalog"]

    @pytest.fixture
    def doctors_storage(self) -> Storage:
        """A folder for each test."""
        return self._storage(f"{self._name}/{uuid.uuid4().hex}")

    @pytest.fixture
    def doctors_catalog(self) -> Iterator[Callable[[], Catalog]]:
        """A place for each test."""
        assert self._catalog is not None
        with _empty_catalog(self._catalog) as url:
            yield lambda: open_catalog(url, create=True)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count and note."""
        self.checks += report.when == "setup" and not report.skipped
        if report.failed:
            suite, _, test = report.nodeid.partition("::Test")[2].partition("::")
            name, _, case = test.partition("[")
            check = name.removeprefix("test_").replace("_", " ") + (f" ({case[:-1]})" if case else "")
            self.findings.setdefault(
                report.nodeid, Finding(suite.lower(), check, _failure_message(report), _TOLERATED.get(name, ""))
            )

    def _missing_folders(self) -> list[Path]:
        """Those that will be made on the way, the deepest first."""
        storage = self._storage(self._name, create=False)
        folders = list(storage.root.parents) if isinstance(storage, LocalStorage) else []
        if self._catalog is not None:
            with closing(Database(self._catalog)) as database:
                file = _file_of(database)
                folders += file.absolute().parents if file else []
        return [folder for folder in folders if not folder.exists()]

    @contextmanager
    def _empty_storage(self) -> Iterator[Storage]:
        storage = self._storage(self._name)
        try:
            yield storage
        finally:
            for info in storage.list(""):
                storage.delete(info.key)
            if isinstance(storage, LocalStorage):
                shutil.rmtree(storage.root)

    def _storage(self, name: str, *, create: bool = True) -> Storage:
        return open_storage(f"{self._url}/{name}", storage_options=self._options, create=create)


@contextmanager
def _removing(folders: list[Path]) -> Iterator[None]:
    try:
        yield
    finally:
        for folder in folders:
            with suppress(OSError):  # nobody made it, or somebody else put something there
                folder.rmdir()


@contextmanager
def _empty_catalog(url: str) -> Iterator[str]:
    """The URL of an empty place in a database: a file beside SQLite's, a schema of its own in Postgres."""
    name = f"ckptstore_doctor_{uuid.uuid4().hex[:12]}"
    with closing(Database(url)) as database:
        file = _file_of(database)
        if file is not None:
            path = file.with_name(name)
            try:
                yield sqlite_url(path)
            finally:
                for left in path.parent.glob(f"{name}*"):
                    left.unlink()
            return
        with database.write() as db:
            db.exec_driver_sql(f"CREATE SCHEMA {name}")
        try:
            search = f"{database.parsed.query.get('options', '')} -csearch_path={name}"
            yield database.parsed.update_query_dict({"options": search}).render_as_string(hide_password=False)
        finally:
            with database.write() as db:
                db.exec_driver_sql(f"DROP SCHEMA {name} CASCADE")


def _file_of(database: Database) -> Path | None:
    """SQLite's."""
    return Path(str(database.parsed.database)) if database.parsed.get_backend_name() == "sqlite" else None


def _failure_message(report: pytest.TestReport) -> str:
    """The last line of a failure that says something."""
    lines = [line.removeprefix("E").strip() for line in report.longreprtext.splitlines() if line.startswith("E ")]
    return lines[0] if lines else report.longreprtext.splitlines()[-1]
