from __future__ import annotations

import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from contextlib import closing
from pathlib import Path

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import text

from ckptstore.catalog import migrate, schema
from ckptstore.catalog.engine import Database
from ckptstore.catalog.opening import open_catalog
from ckptstore.errors import CatalogError, SchemaTooNew, SchemaTooOld
from ckptstore.testing.catalog_making import make, new_commit

ROOT = Path(__file__).parents[2]
UPGRADE = "from ckptstore.catalog import migrate; print(migrate.script_location(), *migrate.upgrade(sys.argv[1]))"


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path}/catalog.sqlite"


def set_version(url, version):
    with Database(url).write() as db:
        db.execute(text("UPDATE alembic_version SET version_num = :version"), {"version": version})


def tables(url):
    with Database(url).read() as db:
        found = db.execute(text("SELECT name, sql FROM sqlite_master")).all()
    return {name: sorted(filter(None, re.split(r'[\s,()"]+', sql or ""))) for name, sql in found}


def test_models_and_head_agree(url):
    assert migrate.upgrade(url) == ("base", schema.HEAD)
    with Database(url).read() as db:
        context = MigrationContext.configure(db, opts={"compare_type": True, "compare_server_default": True})
        assert compare_metadata(context, schema.metadata) == []


def test_head_is_the_newest_revision():
    config = Config()
    config.set_main_option("script_location", str(migrate.script_location()))
    scripts = ScriptDirectory.from_config(config)
    assert scripts.get_current_head() == schema.HEAD
    revisions = [script.revision for script in scripts.walk_revisions()]
    assert revisions == [f"{n:04}" for n in range(len(revisions), 0, -1)]


def test_a_created_schema_is_the_migrated_one(url, tmp_path):
    open_catalog(f"{url}-created", create=True)
    migrate.upgrade(f"{url}-migrated")
    assert tables(f"{url}-created") == tables(f"{url}-migrated")


def test_upgrade_keeps_what_is_there(url):
    catalog = open_catalog(url, create=True)
    made = make(catalog, new_commit(0))
    assert migrate.upgrade(url) == (schema.HEAD, schema.HEAD)
    assert catalog.commits() == [made]


@pytest.mark.parametrize("place", ["sqlite", "postgres"])
def test_a_catalog_of_the_first_schema_is_brought_up(request, url, place):
    url = request.getfixturevalue("postgres") if place == "postgres" else url
    database = Database(url)
    database.prepare()
    with database.rebuild() as db:
        command.upgrade(migrate._config(db), "0001")
        db.execute(text("INSERT INTO runs (key, name, created) VALUES (1, 'main', 0)"))
        db.execute(text("INSERT INTO packs (key, name, state, size, chunks, created) VALUES (1, 'a', 'live', 9, 1, 0)"))
        db.execute(
            text(
                "INSERT INTO commits (key, id, run, step, created, metadata, content, document, leaves, logical_bytes, "
                "new_bytes) VALUES (1, 'c', 1, 5, 0, '{}', :content, 'd', 1, 1, 1)"
            ),
            {"content": b""},
        )
        db.execute(text('INSERT INTO commit_packs ("commit", pack) VALUES (1, 1)'))
        for name in ("best", "good"):
            db.execute(text('INSERT INTO tags (run, name, "commit") VALUES (1, :name, 1)'), {"name": name})
    database.close()
    assert migrate.upgrade(url) == ("0001", schema.HEAD)
    with database.read() as db:
        context = MigrationContext.configure(db, opts={"compare_type": True, "compare_server_default": True})
        assert compare_metadata(context, schema.metadata) == []
    database.close()
    with closing(open_catalog(url, create=False)) as catalog:
        assert catalog.find("main", 5).id == "c"
        best, good = catalog.tags()
        assert (best.name, best.commit, good.name, good.commit) == ("best", "c", "good", "c")
        assert best.document == good.document == ""
        assert [(pack.name, pack.needed_by, pack.needed_bytes, pack.verified) for pack in catalog.packs()] == [
            ("a", 1, 0, None)
        ]
        assert catalog.check() == []


def test_an_older_schema_is_refused_with_the_remedy(url):
    open_catalog(url, create=True)
    set_version(url, "0000")
    for create in (False, True):
        with pytest.raises(SchemaTooOld, match="ckptstore migrate <store>"):
            open_catalog(url, create=create)
    with pytest.raises(CatalogError, match="can not be migrated"):
        migrate.upgrade(url)


@pytest.mark.parametrize("version", ["9999", "unknown"])
def test_a_newer_schema_is_refused(url, version):
    open_catalog(url, create=True)
    set_version(url, version)
    for act in (lambda: open_catalog(url, create=True), lambda: migrate.upgrade(url)):
        with pytest.raises(SchemaTooNew, match=version):
            act()


def test_a_broken_migration_changes_nothing(url, monkeypatch, tmp_path):
    catalog = open_catalog(url, create=True)
    made = make(catalog, new_commit(0))
    folder = shutil.copytree(migrate.script_location(), tmp_path / "scripts")
    (folder / "versions" / "9998_broken.py").write_text(
        "from alembic import op\nrevision, down_revision = '9998', '0004'\n"
        "def upgrade():\n    op.drop_table('tags')\n    op.execute('DELETE FROM runs')\n"
    )
    monkeypatch.setattr(migrate, "script_location", lambda: folder)
    before = tables(url)
    with pytest.raises(CatalogError, match="would break"):
        migrate.upgrade(url)
    assert tables(url) == before
    assert open_catalog(url, create=False).commits() == [made]


def run_upgrade(url, site):
    """In an interpreter that knows no other ckptstore than the one at `site`, be it by a .pth file."""
    known = [f"sys.path.append({path!r})" for path in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib"))]
    code = "; ".join(["import sys, site", f"site.addsitedir({str(site)!r})", *known, UPGRADE])
    command = [sys.executable, "-S", "-P", "-c", code, url]
    done = subprocess.run(command, env={}, capture_output=True, text=True, cwd="/", check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def pip_install(target, *what):
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*command, "--target", target, *what], check=True, capture_output=True)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A copy of the tree, so that building leaves nothing in it."""
    copied = tmp_path_factory.mktemp("source")
    for name in ("ckptstore", "migrations"):
        shutil.copytree(ROOT / name, copied / name, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ROOT.glob("*.*"):
        if file.is_file():
            shutil.copy(file, copied)
    shutil.copy(ROOT / "LICENSE", copied)
    return copied


def test_migrate_from_the_source_tree(source, url):
    assert run_upgrade(url, source) == [str(source / "migrations"), "base", schema.HEAD]


def test_migrate_from_a_wheel(source, url, tmp_path):
    pip_install(tmp_path / "site", str(source))
    assert run_upgrade(url, tmp_path / "site") == [str(tmp_path / "site/ckptstore/_migrations"), "base", schema.HEAD]
    assert (tmp_path / "site/ckptstore/py.typed").exists()


def test_migrate_from_an_editable_install(source, url, tmp_path):
    pip_install(tmp_path / "site", "--editable", str(source))
    assert run_upgrade(url, tmp_path / "site") == [str(source / "migrations"), "base", schema.HEAD]


def test_every_package_is_listed():
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    found = {
        file.parent.relative_to(ROOT)
        for folder in ("ckptstore", "migrations")
        for file in (ROOT / folder).rglob("*.py")
    }
    names = {".".join(path.parts).replace("migrations", "ckptstore._migrations", 1) for path in found}
    assert set(listed) == names


def test_the_catalog_does_not_import_alembic():
    code = "import sys, ckptstore.catalog.opening; print('alembic' in sys.modules)"
    env = {"PYTHONPATH": str(ROOT)}
    assert subprocess.check_output([sys.executable, "-c", code], env=env, text=True) == "False\n"
