import ast
import re
import tomllib
from pathlib import Path

import pytest

import ckptstore
from ckptstore import errors

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(page, language):
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("page", ["README.md", "docs/guide.md", "docs/manager.md", "docs/dcp.md", "docs/encryption.md"])
def test_python_blocks_run(page, training, tmp_path):
    for name in ("passphrase", "new-passphrase"):
        (tmp_path / name).write_text(name)
    found = blocks(ROOT / page, "python")
    assert found
    for block in found:
        exec(compile(block, page, "exec"), training)


@pytest.mark.parametrize("place", ["s3", "gcs"])
def test_remote_blocks_run(place, request, training, postgres):
    bucket = request.getfixturevalue(place)
    training |= {"bucket": bucket.url, "options": bucket.options, "database": postgres}
    for block in blocks(ROOT / "docs" / "remote.md", "python"):
        exec(compile(block, "docs/remote.md", "exec"), training)
    training["store"].close()


def test_readme_is_set_up_in_two_lines():
    commands = dict(re.findall(r"<!-- (\w+) -->\n```bash\n([^\n]*)\n```", (ROOT / "README.md").read_text()))
    assert commands.keys() == {"quickstart", "tests"}
    assert commands["quickstart"].endswith(".venv/bin/python examples/quickstart.py")
    assert ".venv/bin/python -m pytest" in commands["tests"]
    assert all(command.startswith("python3 -m venv .venv && ") for command in commands.values())
    assert "<!-- tests -->" in (ROOT / ".ci" / "run").read_text()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
        assert target.startswith("https://") or (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_page_is_linked_or_known(page):
    readme = (ROOT / "README.md").read_text()
    assert page.name == "README.md" or page.name in readme


def test_every_dependency_has_its_reasons():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = sum(project["optional-dependencies"].values(), project["dependencies"])
    names = {name for requirement in wanted for name in re.findall(r"^[\w-]+", requirement)} - {"ckptstore"}
    page = (ROOT / "docs" / "dependencies.md").read_text()
    listed = {name for row in re.findall(r"^\| ([^|]+) \|(?: ([\w-]+) \|)?", page, re.MULTILINE) for name in row}
    assert names <= {name.strip() for cell in listed for name in cell.split(",")}


def test_the_guide_shows_every_method():
    page = (ROOT / "docs" / "guide.md").read_text()
    ours = [cls for cls in ckptstore.Store.__mro__ if cls is not object]
    methods = [name for cls in ours for name in vars(cls) if not name.startswith("_")]
    assert not [name for name in methods if not re.search(rf"\.{name}\b", page)]


def test_the_manager_has_what_its_page_says():
    page = (ROOT / "docs" / "manager.md").read_text()
    for name, cls in {"manager": ckptstore.CheckpointManager, "store": ckptstore.Store}.items():
        assert not [method for method in re.findall(rf"\b{name}\.(\w+)", page) if not hasattr(cls, method)]
    methods = [name for name in vars(ckptstore.CheckpointManager) if not name.startswith("_")]
    assert not [name for name in methods if not re.search(rf"manager\.{name}\b", page)]
    policies = set(re.findall(r"\b(?:Save|Keep)[A-Z]\w+", page))
    assert policies - {"SavePolicy"} == {name for name in ckptstore.__all__ if re.match("(Save|Keep)[A-Z]", name)} - {
        "SavePolicy"
    }


def test_the_tree_of_errors_is_drawn_whole():
    drawn = set(re.findall(r"[├└]── (\w+)", errors.__doc__ or ""))
    classes = {
        node.name
        for node in ast.parse(Path(errors.__file__).read_text()).body
        if isinstance(node, ast.ClassDef) and node.name != "CkptStoreError"
    }
    assert drawn == classes


def below(group):
    return {error for child in group.__subclasses__() for error in (child, *below(child))}


def test_the_guide_names_every_error_in_its_group():
    page = (ROOT / "docs" / "guide.md").read_text().partition("\n## Errors\n")[2].partition("\n## ")[0]
    rows = [re.findall(r"`(\w+)`", row) for row in re.findall(r"^\| `.*$", page, re.MULTILINE)]
    groups = {group: {name for name in names if hasattr(errors, name)} for group, *names in rows}
    assert groups == {
        group.__name__: {error.__name__ for error in below(group)} for group in errors.CkptStoreError.__subclasses__()
    }
    assert {*groups, *set().union(*groups.values())} < set(ckptstore.__all__)
