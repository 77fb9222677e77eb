"""Loops are compiled once for a user and a machine, and only code of the user's own is run."""

import errno
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from unittest.mock import patch

import platformdirs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptstore.chunkstore import machine_code
from ckptstore.chunkstore.machine_code import KEPT
from ckptstore.format import codecs

CODE = """
import sys
import numpy as np
from ckptstore.format.codecs import Form, codec_numbered, encode, tools
from ckptstore.format.codecs.loops import Loops
from ckptstore.format.codecs.making import MAKING
from ckptstore.chunkstore.machine_code import KEPT
raw = memoryview(np.random.default_rng(0).normal(0, 0.02, 100_000).astype("<f4")).cast("B")
MAKING.kept = KEPT
tools._KEPT_AFTER, tools._COMPILED_AFTER = 10, {compiled_after}
for _ in range(200):
    made = encode(raw, Form(4, True), None, "auto")
called = []
sys.setprofile(lambda frame, event, argument: called.append(frame.f_code))
again = encode(raw, Form(4, True), None, "auto")
sys.setprofile(None)
numpys = [getattr(Loops, name).__code__ for name in ("halve", "cut_fields", "weigh", "squeeze")]
print("numpy" if any(code in called for code in numpys) else "compiled")
print(getattr(sys.modules.get("numba"), "cfunc", None))
out = memoryview(bytearray(len(raw)))
codec_numbered(made.codec).decode(memoryview(made.payload), out)
assert out == raw and again.payload == made.payload and len(made.payload) < 0.9 * len(raw)
"""


WITHOUT_NUMBA = "import sys; sys.modules['numba'] = None"
JIT_DISABLED = "import os; os.environ['NUMBA_DISABLE_JIT'] = '1'"


def coding(before="", compiled_after=100):
    """Which loops a process uses that codes much, whether it imported numba, and what it warns of."""
    code = before + CODE.replace("{compiled_after}", str(compiled_after))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr
    loops, *numba = done.stdout.split(maxsplit=1)
    return loops, numba != ["None\n"], done.stderr


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """Where this test's processes keep what they compile."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    machine_code._folder.cache_clear()
    yield tmp_path / "ckptstore"
    machine_code._folder.cache_clear()


def test_what_one_process_compiles_later_ones_use_without_numba(cache):
    assert coding() == ("compiled", True, "")
    assert coding(WITHOUT_NUMBA, compiled_after=1000) == ("compiled", False, "")
    assert coding(WITHOUT_NUMBA) == ("compiled", False, "")
    assert coding() == ("compiled", False, "")
    assert coding(JIT_DISABLED)[0] == "numpy"


@pytest.mark.parametrize("before", [WITHOUT_NUMBA, JIT_DISABLED])
def test_without_numba_nothing_is_compiled(cache, before):
    loops, _, warned = coding(before)
    assert (loops, warned) == ("numpy", "")
    assert not cache.exists()


@pytest.mark.parametrize("missing", ["zstandard._cffi", "_cffi_backend"])
def test_numba_without_cffi_is_warned_of_and_not_used(cache, missing):
    loops, _, warned = coding(f"import sys; sys.modules[{missing!r}] = None")
    assert loops == "numpy"
    assert 'numba needs cffi here, codecs go on without both: pip install "ckptstore[jit]"' in warned


@pytest.mark.parametrize(
    ("module", "content", "message"),
    [
        ("numba", "types=None", "numba does not work"),
        ("llvmlite", "binding=None", "what numba compiles does not work"),
    ],
)
def test_what_does_not_work_is_warned_of_and_not_used(cache, module, content, message):
    loops, _, warned = coding(f"import sys, types; sys.modules[{module!r}] = types.SimpleNamespace({content})")
    assert loops == "numpy"
    assert message in warned


def test_where_nothing_can_be_kept_each_process_compiles(cache):
    cache.write_text("not a folder")
    assert coding() == ("compiled", True, "")


def test_processes_may_compile_at_once(cache):
    with ThreadPoolExecutor(2) as pool:
        assert set(pool.map(lambda _: coding(), range(2))) == {("compiled", True, "")}
    (folder,) = (cache / "loops").iterdir()
    assert not [file for file in folder.iterdir() if file.name.startswith("tmp")]
    assert coding(WITHOUT_NUMBA, compiled_after=1000) == ("compiled", False, "")


@contextmanager
def kept_in(home):
    with patch.dict(os.environ, XDG_CACHE_HOME=home):
        machine_code._folder.cache_clear()
        yield
    machine_code._folder.cache_clear()


@given(st.binary(max_size=100), st.integers(0), st.integers(1, 255))
def test_damaged_code_is_not_read(code, place, change):
    with tempfile.TemporaryDirectory() as home, kept_in(home):
        assert KEPT.read("loop") is None
        KEPT.write("loop", b"another")
        KEPT.write("loop", code)
        assert KEPT.read("loop") == code
        (file,) = Path(home).rglob("loop")
        whole = bytearray(file.read_bytes())
        for harmed in (whole[: place % len(whole)], whole + b"x"):
            file.write_bytes(harmed)
            assert KEPT.read("loop") is None
        whole[place % len(whole)] ^= change
        file.write_bytes(whole)
        assert KEPT.read("loop") is None


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702])
def test_what_others_may_have_written_is_not_read(cache, mode):
    KEPT.write("loop", b"code")
    (folder,) = (cache / "loops").iterdir()
    folder.chmod(mode)
    KEPT.write("loop", b"more")
    assert KEPT.read("loop") is None
    folder.chmod(0o755)
    assert KEPT.read("loop") == b"code"


def test_a_file_that_others_may_have_written_is_not_read(cache, tmp_path):
    KEPT.write("loop", b"code")
    (file,) = cache.rglob("loop")
    file.chmod(0o622)
    assert KEPT.read("loop") is None
    file.chmod(0o600)
    assert KEPT.read("loop") == b"code"
    file.rename(tmp_path / "elsewhere")
    file.symlink_to(tmp_path / "elsewhere")
    assert KEPT.read("loop") is None


def test_a_folder_that_is_a_link_is_not_looked_into(cache, tmp_path):
    KEPT.write("loop", b"code")
    (folder,) = (cache / "loops").iterdir()
    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    assert KEPT.read("loop") is None


@pytest.mark.parametrize("home", ["relative/path", RuntimeError("no home")])
def test_without_a_folder_of_the_users_nothing_is_kept(cache, monkeypatch, tmp_path, home):
    def user_cache_path(_):
        if isinstance(home, Exception):
            raise home
        return Path(home)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(platformdirs, "user_cache_path", user_cache_path)
    KEPT.write("loop", b"code")
    assert KEPT.read("loop") is None
    assert not list(tmp_path.iterdir())


def test_other_settings_of_numba_are_other_code(cache, monkeypatch):
    KEPT.write("loop", b"code")
    monkeypatch.setenv("NUMBA_OPT", "0")
    machine_code._folder.cache_clear()
    assert KEPT.read("loop") is None


def test_what_belongs_to_others_is_not_read(cache, monkeypatch):
    KEPT.write("loop", b"code")
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    assert KEPT.read("loop") is None


def test_a_full_disk_leaves_nothing(cache, monkeypatch):
    KEPT.write("other", b"code")

    def full(*_):
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(os, "replace", full)
    KEPT.write("loop", b"code")
    assert [file.name for file in cache.rglob("*") if file.is_file()] == ["other"]


@pytest.mark.parametrize("missing", ["numba", "platformdirs"])
def test_where_a_part_of_the_extra_is_missing_nothing_is_kept(cache, monkeypatch, missing):
    def version(name):
        if name == missing:
            raise PackageNotFoundError(name)
        return "1"

    monkeypatch.setattr(machine_code, "version", version)
    if missing == "platformdirs":
        monkeypatch.setitem(sys.modules, missing, None)
    KEPT.write("loop", b"code")
    assert KEPT.read("loop") is None
    assert not cache.exists()


def test_other_sources_are_other_code(cache, tmp_path, monkeypatch):
    sources = tmp_path / "sources"
    sources.mkdir()
    monkeypatch.setattr(codecs, "__path__", [str(sources)])
    for content in ("one = 1", "one = 2"):
        (sources / "loops.py").write_text(content)
        machine_code._folder.cache_clear()
        assert KEPT.read("loop") is None
        KEPT.write("loop", content.encode())
        assert KEPT.read("loop") == content.encode()
    (sources / "loops.py").write_text("one = 3")
    KEPT.write("another", b"of what this process has not looked at")
    assert not list(cache.rglob("another"))
    (sources / "loops.py").unlink()
    machine_code._folder.cache_clear()
    KEPT.write("loop", b"of what nobody knows")
    assert KEPT.read("loop") is None
