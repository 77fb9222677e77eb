"""ckptstore's codecs beside zipnn, Blosc2, zstd, XOR+planes and OpenZL, on states of a real training run.

    python -m benchmarks.codecs [--width 512] [--layers 2] [--steps 600] [--apart 1 10 50 100] [--runs 9]
        [--json FILE] [--markdown FILE]

Trains a transformer in float32 and another one in bfloat16, weights and moments alike, and keeps their states some
steps apart. Every codec encodes every chunk of a state, alone and with the same chunk some steps before; what it
decodes is compared. Then it is timed on chunks of 4 MiB, on one thread. docs/benchmarks.md says what the rows are.
Ends with status 1 when a codec gave back other bits than it was given.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.codec_peers import Chunk, Coding, Own, available
from benchmarks.figures import BEST, CODECS
from benchmarks.measuring import Samples, rotated
from benchmarks.report import Report, add_files
from benchmarks.trajectory import KINDS, State, Trajectory
from ckptstore.format.grid import Division, Grid, default_chunk_shape

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
CHUNK = 4 << 20
SERIES = 3


def main() -> None:
    """Train, measure, and report."""
    arguments = _arguments()
    torch.set_num_threads(1)
    codings, missing = available()
    bench = Codecs(codings)
    for name, dtype in DTYPES.items():
        run = Trajectory(dtype, arguments.width, arguments.layers, arguments.steps, max(arguments.apart))
        states = {(phase, apart): state for phase, apart, state in run.states(tuple(arguments.apart))}
        bench.samples.sizes[name] = sum(tensor.nbytes for kind in states["peak", 0].values() for tensor in kind)
        for (phase, apart), state in states.items():
            bench.measure_sizes(name, phase, apart, state, states[phase, 0])
        for kind in KINDS:
            bench.measure_speed(f"{name} {kind}", states["peak", 10][kind], states["peak", 0][kind], arguments.runs)
    Report(bench.samples, [*(coding.name for coding in codings), BEST], CODECS, missing).publish(arguments)


class Codecs:
    """The rows."""

    def __init__(self, codings: list[Coding]) -> None:
        self.samples = Samples()
        self._codings = codings

    def measure_sizes(self, name: str, phase: str, apart: int, state: State, before: State) -> None:
        """The share of the raw bytes that each kind of tensor takes, and all of them together."""
        case = f"{apart} apart, {phase}: share" if apart else f"alone, {phase}: share"
        raw = {kind: sum(tensor.nbytes for tensor in state[kind]) for kind in KINDS}
        for coding in self._codings:
            sizes = {}
            for kind in KINDS:
                pairs = zip(state[kind], before[kind], strict=True)
                row = f"{name} {kind}, {case}"
                sizes[kind] = sum(self._size(row, coding, *pair, alone=not apart) for pair in pairs)
                self.samples.add(row, coding.name, sizes[kind] / raw[kind])
            self.samples.add(f"{name} whole, {case}", coding.name, sum(sizes.values()) / sum(raw.values()))
        for kind in (*KINDS, "whole"):
            self._add_best(f"{name} {kind}, {case}", min)

    def _size(self, row: str, coding: Coding, tensor: Tensor, before: Tensor, *, alone: bool) -> int:
        """Of a tensor's chunks; each takes the smaller of the encodings with the older chunk and without it."""
        total = 0
        for raw, base in zip(_chunks(tensor), _chunks(before), strict=True):
            found = []
            for older in (None,) if alone else (None, base):
                coded = coding.encode(raw, tensor.itemsize, older)
                found.append(coding.size(coded))
                same = bytes(coding.decode(coded, len(raw), tensor.itemsize, older)) == raw
                columns = self.samples.correct.setdefault(row, {})
                columns[coding.name] = columns.get(coding.name, True) and same
            total += min(found)
        return total

    def measure_speed(self, name: str, after: list[Tensor], before: list[Tensor], runs: int) -> None:
        """Of chunks of the largest tensors, one after the other, alone and with what they were before."""
        width = after[0].itemsize
        raw, base = _largest(after), _largest(before)
        size = sum(map(len, raw))
        for case, older in (("alone", [None] * len(raw)), ("10 apart", base)):
            for run in range(runs):
                for coding in rotated(self._codings, run):
                    encode = partial(_encode, coding, raw, width, older)
                    decode = partial(_decode, coding, encode(), width, older)
                    self.samples.add(f"encode {name}, {case}: GB/s", coding.name, _speed(encode, size))
                    self.samples.add(f"decode {name}, {case}: GB/s", coding.name, _speed(decode, size))
            for act in ("encode", "decode"):
                self._add_best(f"{act} {name}, {case}: GB/s", max)

    def _add_best(self, row: str, best: Callable[[list[float]], float]) -> None:
        peers = [coding.name for coding in self._codings if not isinstance(coding, Own)]
        self.samples.add(row, BEST, best([found for peer in peers if (found := self.samples.median(row, peer))]))


def _chunks(tensor: Tensor) -> Iterator[Chunk]:
    """The chunks that a store cuts a tensor into."""
    data = tensor.reshape(-1).view(torch.uint8).numpy().data.cast("B")
    shape = tuple(tensor.shape)
    chunk_shape = default_chunk_shape(shape, tensor.itemsize, Division(CHUNK, halved=True))
    start = 0
    for size in Grid(shape, chunk_shape).sizes(tensor.itemsize):
        yield data[start : start + size]
        start += size


def _largest(tensors: list[Tensor]) -> list[Chunk]:
    """The first bytes of the largest ones, some chunks of them."""
    largest = torch.cat([tensor.reshape(-1) for tensor in sorted(tensors, key=lambda tensor: -tensor.nbytes)])
    data = largest.view(torch.uint8).numpy().data.cast("B")
    return [data[start : start + CHUNK] for start in range(0, min(SERIES * CHUNK, len(data)), CHUNK)]


def _encode(coding: Coding, raw: Sequence[Chunk], width: int, bases: Sequence[Chunk | None]) -> list[tuple[Any, int]]:
    return [(coding.encode(each, width, base), len(each)) for each, base in zip(raw, bases, strict=True)]


def _decode(coding: Coding, coded: list[tuple[Any, int]], width: int, bases: Sequence[Chunk | None]) -> None:
    for (each, size), base in zip(coded, bases, strict=True):
        coding.decode(each, size, width, base)


def _speed(act: Callable[[], object], size: int) -> float:
    """Bytes a second of processor time, whatever else the machine does meanwhile."""
    start = time.process_time()
    act()
    return size / (time.process_time() - start) / 1e9


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=512, help="of the model; a multiple of 64")
    parser.add_argument("--layers", type=int, default=2, help="of the model")
    parser.add_argument("--steps", type=int, default=600, help="of training")
    parser.add_argument("--apart", type=int, nargs="+", default=[1, 10, 50, 100], help="steps between two states")
    parser.add_argument("--runs", type=int, default=9, help="interleaved runs of which the median speed is taken")
    add_files(parser)
    return parser.parse_args()


if __name__ == "__main__":
    main()
