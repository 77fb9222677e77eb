"""Words to a payload, block by block; `layout` describes how they lie in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from ckptstore.format.buffers import Buffer
from ckptstore.format.codecs.blocks import block as memory
from ckptstore.format.codecs.blocks import cut_off
from ckptstore.format.codecs.cutting import Cutter
from ckptstore.format.codecs.layout import LENGTH, Block, Plan, blocks_of, head_of
from ckptstore.format.codecs.squeezing import WHOLE, symbols_of
from ckptstore.format.codecs.tools import Tools, borrowed
from ckptstore.format.codecs.words import Plane, Words

_ABOUT, _MORE = 1.03, 1 << 16  # samples tell the size within half a percent, of small chunks within some bytes


def pack(plan: Plan, count: int, block: Callable[[Block, Tools], Words], tail: memoryview) -> Buffer:
    """The payload of `count` words, which `block` gives one block at a time, and of the `tail`."""
    head, blocks = head_of(plan), blocks_of(count)
    lengths = np.empty((len(blocks), plan.parts), LENGTH)
    end = len(head) + lengths.nbytes
    size = count * plan.cut.width
    out = memory(end + min(int(plan.share * _ABOUT * size) + _MORE, size) + len(tail))
    with borrowed() as tools:
        for where, row in zip(blocks, lengths, strict=True):
            words = block(where, tools)
            done = tools.loops.pack(plan, words, out[: len(out) - len(tail)], end, row)
            if done:
                end = done
                continue
            for place, part in enumerate(_coded(plan, words, tools)):
                row[place] = len(part)
                if end + len(part) + len(tail) > len(out):  # where a chunk is unlike its sample
                    out = _moved(out[:end], max(size, end) + len(part) + len(tail) + _MORE)
                out[end : end + len(part)] = part
                end += len(part)
    out[end : end + len(tail)] = tail
    header = head + lengths.tobytes()
    out[: len(header)] = np.frombuffer(header, np.uint8)
    return cut_off(out, end + len(tail))


def _moved(begun: Plane, size: int) -> Plane:
    """To where there is more room."""
    out = memory(size)
    out[: len(begun)] = begun
    return out


def _coded(plan: Plan, words: Words, tools: Tools) -> Iterator[Plane]:
    """The coded parts of a block; each stays until the next is asked for."""
    coder = tools.coders[plan.searched]
    for way, plane in zip(plan.ways, Cutter(plan.cut, tools).cut(words), strict=True):
        if way.bits == WHOLE:
            yield coder.encode(plane) if way.coded else plane
            continue
        common = tools.array(1, symbols_of(len(plane), way.bits), "common")
        gaps, others = tools.loops.squeeze(plane, way.bits, way.offset, common)
        yield coder.encode(common)
        if len(gaps):
            yield np.concatenate([np.array([len(gaps)], LENGTH).view(np.uint8), coder.encode(gaps)])
        else:
            yield gaps
        yield coder.encode(others)
