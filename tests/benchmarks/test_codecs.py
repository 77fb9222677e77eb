import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ALWAYS = {"ckptstore", "ckptstore, auto", "zstd", "XOR+planes", "best peer"}


@pytest.mark.slow
def test_a_small_run_measures_every_codec(tmp_path, run):
    files = [f"--json={tmp_path}/all.json", f"--markdown={tmp_path}/all.md"]
    small = ["--width=64", "--layers=1", "--steps=30", "--apart", "1", "10", "--runs=1"]
    run("codecs", *small, *files, folder=False)
    found = json.loads((tmp_path / "all.json").read_text())
    for dtype in ("fp32", "bf16"):
        for kind in ("weights", "exp_avg", "exp_avg_sq", "whole"):
            for apart in ("alone", "1 apart", "10 apart"):
                for phase in ("peak", "decayed"):
                    samples = found["samples"][f"{dtype} {kind}, {apart}, {phase}: share"]
                    assert samples.keys() >= ALWAYS
                    assert all(0 < value < 1.001 for values in samples.values() for value in values)
                    assert samples["ckptstore"] <= samples["ckptstore, auto"]
        for act in ("encode", "decode"):
            assert found["samples"][f"{act} {dtype} weights, 10 apart: GB/s"].keys() >= ALWAYS
    assert found["samples"].keys() - found["correct"].keys() == {row for row in found["samples"] if not checked(row)}
    assert all(same for codecs in found["correct"].values() for same in codecs.values())
    assert len(found["figures"]) == 17
    assert len({line.count("|") for line in (tmp_path / "all.md").read_text().splitlines()}) == 1
    assert not found["missing"].keys() & ALWAYS


def checked(row):
    return row.endswith("share") and "whole" not in row


@pytest.fixture
def peers(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    from benchmarks import codec_peers

    return codec_peers


@pytest.mark.parametrize("width", [2, 4])
def test_every_codec_gives_back_what_it_took(peers, width):
    raw, base = (memoryview(bytes(range(1, 201)) * 40 + extra * 200) for extra in (b"a", b"b"))
    found, missing = peers.available()
    assert len(found) + len(missing) == len(peers.CODINGS)
    for coding in found:
        for older in (None, base):
            coded = coding.encode(raw, width, older)
            assert bytes(coding.decode(coded, len(raw), width, older)) == raw
            assert 0 < coding.size(coded) <= len(raw) + 100


def test_a_codec_that_gives_back_other_bits_is_reported(peers, monkeypatch):
    import torch

    from benchmarks.codecs import Codecs
    from benchmarks.figures import CODECS
    from benchmarks.report import Report

    state = {kind: [torch.randn(100)] for kind in ("weights", "exp_avg", "exp_avg_sq")}
    bench = Codecs([peers.Own(), peers.Zstd()])
    bench.measure_sizes("fp32", "peak", 0, state, state)
    assert Report(bench.samples, [], CODECS).correct
    monkeypatch.setattr(peers.Zstd, "unpack", lambda self, coded, size, width: bytes(size))
    bench.measure_sizes("fp32", "peak", 0, state, state)
    assert not Report(bench.samples, [], CODECS).correct
