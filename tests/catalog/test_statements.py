from __future__ import annotations

import pytest

from ckptstore.catalog import statements
from ckptstore.catalog.opening import open_catalog
from ckptstore.catalog.statements import COMPILED, Statements
from ckptstore.testing.catalog_making import make, new_commit, new_pack


@pytest.fixture(params=["sqlite", "postgres"])
def urls(request, tmp_path):
    if request.param == "postgres":
        make_database = request.getfixturevalue("databases")
        return [make_database(), make_database()]
    return [f"sqlite:///{tmp_path}/{name}.sqlite" for name in "ab"]


def use(url, step):
    catalog = open_catalog(url, create=True)
    make(catalog, new_commit(step, [new_pack("a")]))
    found = catalog.steps("main"), [run.name for run in catalog.runs()], len(catalog.packs())
    catalog.close()
    return found


def test_a_second_catalog_compiles_nothing_anew(urls):
    first, second = urls
    assert use(first, 1) == ([1], ["main"], 1)
    assert use(first, 2) == ([1, 2], ["main"], 2)
    known = dict(COMPILED)
    assert known
    assert use(second, 1) == ([1], ["main"], 1)
    assert use(second, 2) == ([1, 2], ["main"], 2)
    assert {key for key in COMPILED if key not in known} == set()


def test_there_are_not_more_and_more(monkeypatch):
    monkeypatch.setattr(statements, "_MOST", 10)
    kept = Statements()
    for number in range(25):
        kept["no dialect", number] = number
        assert kept.get(("no dialect", number)) == number
        assert len(kept) <= 10
    assert kept.get(("no dialect", 0)) is None
