"""Fingerprints are equal where bytes are, and the kernel gives what plain torch gives."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
import types
from itertools import accumulate, product
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ckptstore.state.devices.copy_targets import CopyTargets
from ckptstore.state.devices.fingerprints import (
    SEGMENT,
    WORDS,
    fingerprints,
    kernel,
    keys,
    prepare,
    reference,
    segments,
)

CPU = torch.device("cpu")
SIZES = st.sampled_from([0, 1, 7, 8, 9, SEGMENT - 1, SEGMENT, SEGMENT + 1, 2 * SEGMENT + 12345]) | st.integers(0, 100)


def random_bytes(size: int, seed: int) -> Tensor:
    return torch.randint(0, 256, (size,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


@st.composite
def tensors(draw: st.DrawFn) -> list[Tensor]:
    """Pieces of one memory that begin anywhere."""
    sizes = draw(st.lists(SIZES, min_size=1, max_size=4))
    memory, at, found = random_bytes(sum(sizes) + 64, draw(st.integers(0, 99))), draw(st.integers(0, 17)), []
    for size in sizes:
        found.append(memory[at : at + size])
        at += size
    return found


def test_it_is_what_the_docstring_says():
    data = random_bytes(2 * SEGMENT - 13, 1)
    filled = data.numpy().tobytes() + bytes(13)
    expected = []
    for start in (0, SEGMENT):
        words = [int.from_bytes(filled[at : at + 8], "little") for at in range(start, start + SEGMENT, 8)]
        expected.append([nh(words, [number % 2**64 for number in row]) for row in keys(CPU).tolist()])
    assert [[number % 2**64 for number in row] for row in fingerprints([data]).tolist()] == expected


def nh(words: list[int], key: list[int]) -> int:
    half = 2**32
    return sum((m + k) % half * ((m // half + k // half) % half) for m, k in zip(words, key, strict=True)) % half**2


@given(tensors(), st.data())
def test_equal_if_and_only_if_bytes_are(found: list[Tensor], data: st.DataObject):
    here = torch.cat(found)
    again = here.clone()
    assert torch.equal(fingerprints([here]), fingerprints([again]))
    if len(here):
        place = data.draw(st.integers(0, len(here) - 1))
        again[place] ^= data.draw(st.integers(1, 255))
        differ = (fingerprints([here]) != fingerprints([again])).any(1)
        assert differ.nonzero().tolist() == [[place // SEGMENT]]


@given(tensors(), st.randoms())
def test_one_tensor_after_the_other_in_any_order(found: list[Tensor], random: Any):
    alone = [fingerprints([tensor]) for tensor in found]
    assert [len(rows) for rows in alone] == [segments(len(tensor)) for tensor in found]
    order = list(range(len(found)))
    random.shuffle(order)
    assert torch.equal(fingerprints([found[at] for at in order]), torch.cat([alone[at] for at in order]))


@given(tensors(), st.data())
def test_what_a_target_does_not_hold_is_copied(found: list[Tensor], data: st.DataObject):
    targets = [tensor.clone() for tensor in found]
    held, firsts = fingerprints(found), list(accumulate((segments(len(tensor)) for tensor in found), initial=0))
    changed = [tensor.clone() for tensor in found]
    for tensor in changed:
        if len(tensor):
            tensor[data.draw(st.integers(0, len(tensor) - 1))] ^= 1
    known = [data.draw(st.sampled_from([first, None])) for first in firsts[:-1]]
    copied = [data.draw(st.booleans()) for _ in found]
    into = [target if wanted else None for target, wanted in zip(targets, copied, strict=True)]
    assert torch.equal(fingerprints(changed, CopyTargets(into, known, held)), fingerprints(changed))
    for before, now, target, wanted in zip(found, changed, targets, copied, strict=True):
        assert torch.equal(target, now if wanted else before)


def test_what_a_target_holds_is_not_copied():
    data = random_bytes(3 * SEGMENT + 5, 4)
    target = torch.zeros_like(data)
    held = fingerprints([data])
    held[1] += 1
    fingerprints([data], CopyTargets([target], [0], held))
    assert torch.equal(target[SEGMENT : 2 * SEGMENT], data[SEGMENT : 2 * SEGMENT])
    assert not target[:SEGMENT].any()
    assert not target[2 * SEGMENT :].any()


def test_the_same_bytes_in_another_place_are_something_else():
    data = random_bytes(SEGMENT, 2)
    assert not torch.equal(fingerprints([data]), fingerprints([data.view(torch.int64).roll(1)]))


def test_two_words_that_would_cancel_out_in_a_sum_do_not():
    data = torch.zeros(WORDS, dtype=torch.int64)
    before = fingerprints([data])
    data[0], data[1] = 5, -5
    assert not torch.equal(before, fingerprints([data]))


def test_the_lemma_holds_for_every_case_of_small_words():
    """At most one value of a half's key makes two words that differ in the other half collide."""
    half = 8
    for one, other, shift, constant in product(range(half), range(half), range(half), range(half**2)):
        if one != other:
            hits = [u for u in range(half) if (u * one - (u + shift) % half * other - constant) % half**2 == 0]
            assert len(hits) <= 1


def test_keys_are_another_processs_own():
    code = (
        "import torch; from ckptstore.state.devices.fingerprints import keys; print(keys(torch.device('cpu')).tolist())"
    )
    found = {subprocess.check_output([sys.executable, "-c", code], text=True) for _ in range(2)}
    assert len(found) == 2
    assert str(keys(CPU).tolist()) not in found


def test_much_is_hashed_a_part_at_a_time(monkeypatch):
    tensors = [torch.randint(0, 256, (size,), dtype=torch.uint8) for size in (5 * SEGMENT + 3, 0, 2 * SEGMENT)]
    whole = reference(tensors, keys(CPU))
    monkeypatch.setattr("ckptstore.state.devices.fingerprints._AT_ONCE", 2 * SEGMENT)
    assert torch.equal(reference(tensors, keys(CPU)), whole)


# the kernel


def test_where_the_kernel_does_not_work_torch_does_the_same(monkeypatch):
    broken: Any = types.ModuleType("ckptstore.state.devices.fingerprint_kernel")
    monkeypatch.setitem(sys.modules, broken.__name__, broken)
    assert kernel(torch.device("cpu")) is None  # as where Triton is missing
    broken.launch = lambda tensors, keys, copies: (_ for _ in ()).throw(RuntimeError("Failed to find C compiler"))
    with pytest.warns(UserWarning, match="C compiler"):
        assert kernel(torch.device("cpu")) is None

    def odd(tensors: list[Tensor], keys: Tensor, copies: CopyTargets) -> Tensor:
        return reference([it[1:] if len(it) % SEGMENT else it for it in tensors], keys)

    def forgetful(tensors: list[Tensor], keys: Tensor, copies: CopyTargets) -> Tensor:
        return reference(tensors, keys)

    def eager(tensors: list[Tensor], keys: Tensor, copies: CopyTargets) -> Tensor:
        return reference(tensors, keys, copies._replace(firsts=[None] * len(tensors)))

    for launch in (odd, forgetful, eager):
        broken.launch = launch
        with pytest.warns(UserWarning, match="something else than torch"):
            assert kernel(torch.device("cpu")) is None
    broken.launch = lambda tensors, keys, copies: (_ for _ in ()).throw(torch.OutOfMemoryError("full"))
    with pytest.raises(torch.OutOfMemoryError):
        kernel(torch.device("cpu"))
    broken.launch = reference
    assert kernel(torch.device("cpu")) is broken.launch


def test_only_who_prepares_for_the_kernel_waits_for_it(monkeypatch):
    asked: list[torch.device] = []

    def kernel(device: torch.device) -> Any:
        asked.append(device)
        return (lambda *_: "kernel") if device.index else None

    def taken_by(device: torch.device) -> Any:
        tensor: Any = types.SimpleNamespace(device=device)
        return fingerprints([tensor])

    names = {"kernel": kernel, "keys": lambda _: None, "reference": lambda *_: "torch", "_FASTEST": {}}
    for name, fake in names.items():
        monkeypatch.setattr(f"ckptstore.state.devices.fingerprints.{name}", fake)
    without, having = torch.device("cuda", 0), torch.device("cuda", 1)
    assert (taken_by(having), asked) == ("torch", [])
    for device in (CPU, without, having, without, having):
        prepare(device)
    assert asked == [without, having]
    assert [taken_by(device) for device in (CPU, without, having)] == ["torch", "torch", "kernel"]


def test_a_warning_that_is_an_error_comes_once(monkeypatch):
    def warned(device: torch.device) -> None:
        asked.append(device)
        raise UserWarning("Triton does not work")

    asked, device = list[torch.device](), torch.device("cuda", 0)
    monkeypatch.setattr("ckptstore.state.devices.fingerprints.kernel", warned)
    monkeypatch.setattr("ckptstore.state.devices.fingerprints._FASTEST", {})
    with pytest.raises(UserWarning, match="Triton"):
        prepare(device)
    prepare(device)
    assert asked == [device]


def test_two_threads_have_it_compiled_once(monkeypatch):
    def slow(device: torch.device) -> None:
        asked.append(device)
        begun.set()
        time.sleep(0.1)

    asked, begun, device = list[torch.device](), threading.Event(), torch.device("cuda", 0)
    monkeypatch.setattr("ckptstore.state.devices.fingerprints.kernel", slow)
    monkeypatch.setattr("ckptstore.state.devices.fingerprints._FASTEST", {})
    first = threading.Thread(target=prepare, args=[device])
    first.start()
    assert begun.wait(60)
    prepare(device)
    first.join()
    assert asked == [device]


INTERPRETED = """
import torch
from ckptstore.state.devices.copy_targets import CopyTargets
from ckptstore.state.devices.fingerprints import SEGMENT, keys, reference
from ckptstore.state.devices.fingerprint_kernel import launch
memory = torch.randint(0, 256, (1 << 20,), dtype=torch.uint8)
for start in (0, 3, 16):
    found, at = [], start
    for size in (2 * SEGMENT, 0, 5, SEGMENT - 1, SEGMENT + 8, SEGMENT, 1):
        found.append(memory[at : at + size])
        at += size
    its = keys(memory.device)
    assert torch.equal(launch(found, its), reference(found, its)), start
    held = reference(found[2:] + [tensor.flip(0) for tensor in found[:2]], its)
    held[-2] = reference(found[:1], its)[0]

    def done(hashed):
        targets = [torch.zeros(len(tensor) + 24, dtype=torch.uint8)[8 : 8 + len(tensor)] for tensor in found]
        copies = CopyTargets([*targets[:-1], None], [len(held) - 2, None, None, 1, 2, 4, None], held)
        return [hashed(found, its, copies), *targets]

    assert all(map(torch.equal, done(launch), done(reference))), start
"""

COMPILED = """
import re
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from ckptstore.state.devices import fingerprint_kernel as kernel
from ckptstore.state.devices.fingerprints import WORDS
names = ("owners", "bases", "sizes", "begins", "targets", "firsts", "held", "keys", "hashes")
signature = {name: "*i64" for name in names} | {"count": "constexpr"}
divisible = {(place,): [["tt.divisibility", 16]] for place in range(len(names))}
source = ASTSource(kernel._do_segment, signature, {"count": WORDS}, divisible)
options = {"num_warps": kernel._WARPS, "maxnreg": kernel._REGISTERS}
made = compile(source, target=GPUTarget("cuda", 90, 32), options=options)
loads = re.findall(r"ld[.]global[.]cg[.](\\S+)", made.asm["ptx"])
stores = re.findall(r"st[.]global[.](v\\S+)", made.asm["ptx"])
assert loads == stores == ["v2.b64"] * (WORDS // 2 // (32 * kernel._WARPS)), (loads, stores)
"""


def run_with_triton(source: str, **environment: str) -> None:
    pytest.importorskip("triton", reason="triton comes with torch's CUDA builds; there is no other use for it")
    subprocess.check_call([sys.executable, "-c", source], env=os.environ | environment)


def test_the_kernel_interpreted_gives_what_torch_gives():
    run_with_triton(INTERPRETED, TRITON_INTERPRET="1")


def test_the_kernel_for_a_gpu_loads_16_bytes_at_a_time():
    run_with_triton(COMPILED)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@settings(deadline=None)
@given(tensors())
def test_the_kernel_on_a_gpu_gives_what_torch_gives(found: list[Tensor]):
    prepare(torch.device("cuda", 0))
    there = [tensor.cuda() for tensor in found]
    views = [torch.cat([tensor.new_zeros(3), tensor])[3:] for tensor in there]
    expected = reference(found, keys(CPU))
    for tensors_there in (there, views):
        targets = [torch.zeros_like(tensor) for tensor in there]
        copies = CopyTargets(targets, [None] * len(found), keys(there[0].device))
        assert torch.equal(fingerprints(tensors_there, copies).cpu(), expected)
        assert all(map(torch.equal, targets, there))
