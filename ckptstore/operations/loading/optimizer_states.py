"""What checkouts must know of optimizers: whose parameter is whose, and what state they lack yet."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch.nn.parameter import is_lazy

from ckptstore.format.manifest import Container, Entry, Manifest, TensorEntry
from ckptstore.operations.loading.ownership import Ownership
from ckptstore.state import composites
from ckptstore.state.casts import can_cast
from ckptstore.state.dtypes import torch_dtype
from ckptstore.state.paths import join, segment, split
from ckptstore.state.shards import is_sharded
from ckptstore.state.steps import loading
from ckptstore.state.tensors import TensorLeaf

_STEP = "step"
"""What optimizers name their count of steps, which is no tensor like its parameter."""
_OF_ITS_SHAPE = frozenset(
    {"acc_delta", "ax", "exp_avg", "exp_avg_sq", "exp_inf", "grad_avg", "max_exp_avg_sq"}
    | {"momentum_buffer", "prev", "square_avg", "step_size", "sum"}
)
"""What torch's optimizers name state that has its parameter's shape, in whichever of them there is any."""
_REORDER = "make it in that order, or let a hook of register_load_state_dict_pre_hook bring its state into order"


def parameter_names(owned: Ownership) -> dict[str, Entry]:
    """The leaves by which optimizers may distinguish their parameters."""
    entries = owned.manifest.entries
    groups = (group for root in owned.optimizers if owned.touches(root) for group in _groups(owned.manifest, root))
    paths = (path for group in groups for path in _naming(group))
    return {path: entries[path] for path in paths if path in entries}


def other_optimizers(owned: Ownership, values: Mapping[str, object]) -> Iterator[str]:
    """What is wrong with optimizers, which cannot be made to fit; `values` are the commit's plain ones."""
    for root, optimizer in owned.optimizers.items():
        yield from list(_other_groups(owned, root, optimizer, values)) or _other_shapes(owned, root, optimizer)


def _other_groups(
    owned: Ownership, root: str, optimizer: torch.optim.Optimizer, values: Mapping[str, object]
) -> Iterator[str]:
    paths = _groups(owned.manifest, root)
    here = [len(group["params"]) for group in optimizer.param_groups]
    there = [len(_listed(values, f"{path}/params")) for path in paths]
    if paths and owned.is_free(root) and here != there:
        yield f"{root}: groups of {there} parameters in the commit, of {here} in the target"
    elif owned.strict and owned.is_free(root) and (lacking := _lacking(owned, optimizer, paths)):
        yield f"{root}: no {', '.join(lacking)} in the commit, which is of another kind of optimizer"
    elif owned.touches(f"{root}/state") or any(f"{path}/param_names" in owned.wanted for path in paths):
        moved = _moved(optimizer, [name for path in paths for name in _names(values, path)])
        if moved:
            yield f"{root}: its parameters have another order in the commit: {moved}; {_REORDER}"


def _lacking(owned: Ownership, optimizer: torch.optim.Optimizer, groups: Sequence[str]) -> list[str]:
    """Numbers among its hyperparameters that its groups have, and not the commit's; later torch adds only switches."""
    numbers = {name for name, value in getattr(optimizer, "defaults", {}).items() if _is_number(value)}
    here, there = owned.flat.containers, owned.manifest.containers
    lacking = (
        numbers.intersection(_hyperparameters(here[path])).difference(_hyperparameters(there[path]))
        for path in groups
        if path in here
    )
    return sorted(set().union(*lacking))


def _hyperparameters(group: Container) -> Iterator[str]:
    return (key for key in group.keys if type(key) is str)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float | tuple) and not isinstance(value, bool)


def _other_shapes(owned: Ownership, root: str, optimizer: torch.optim.Optimizer) -> Iterator[str]:
    """State that one of torch's optimizers lacks, and could not step with."""
    inner = loading(optimizer)
    if inner is not None and _is_torchs(inner) and not _has_own_loading(inner):
        for path, entry, parameter in _lacked(owned, root):
            there, here = list(entry.shape), list(parameter.shape)
            if split(path)[-1] in _OF_ITS_SHAPE and there != here:
                yield f"{path}: shape {there} in the commit, {here} of its parameter in the target"


def _is_torchs(optimizer: torch.optim.Optimizer) -> bool:
    cls = type(optimizer)
    return getattr(torch.optim, cls.__name__, None) is cls


def lacked_state(owned: Ownership, *, allow_cast: bool) -> Iterator[tuple[str, torch.Tensor]]:
    """Path and new tensor of state that optimizers lack, where it is a DTensor as its parameter is, or cast."""
    for root in owned.optimizers:
        for path, entry, parameter in _lacked(owned, root):
            alike = path not in owned.apart and _is_alike(path, entry, parameter)
            yield from _made(path, entry, parameter, alike=alike, allow_cast=allow_cast)


def _lacked(owned: Ownership, root: str) -> Iterator[tuple[str, TensorEntry, torch.Tensor]]:
    """State of an optimizer that it lacks, with the parameters that it is for; not of those without a shape yet."""
    groups = owned.optimizers[root].param_groups if owned.is_free(root) else []
    for number, parameter in enumerate(one for group in groups for one in group["params"]):
        for path in () if is_lazy(parameter) else _beneath(owned.manifest, f"{root}/state/{number}"):
            entry = owned.wanted.get(path)
            there = isinstance(owned.flat.leaves.get(path), TensorLeaf)
            if not there and isinstance(entry, TensorEntry) and entry.library == "torch":
                yield path, entry, parameter


def _made(
    path: str, entry: TensorEntry, parameter: torch.Tensor, *, alike: bool, allow_cast: bool
) -> Iterator[tuple[str, torch.Tensor]]:
    committed = torch_dtype(path, entry.dtype)
    dtype = parameter.dtype if allow_cast and _follows(path, committed, parameter) else committed
    if is_sharded(parameter) and alike:
        whole = entry.shape == tuple(parameter.shape)
        like = parameter if whole else parameter.new_empty(entry.shape)  # on every rank, as Adafactor makes it
        yield path, torch.empty_like(like, dtype=dtype, requires_grad=False)
    elif dtype != committed:
        yield path, torch.empty(entry.shape, dtype=dtype, device=parameter.device)


def _is_alike(path: str, entry: TensorEntry, parameter: torch.Tensor) -> bool:
    """Whether it is a DTensor where the parameter is one: of its shape, or reduced, as Adafactor's; not what counts."""
    reduced = len(entry.shape) == parameter.ndim and all(
        extent in {1, whole} for extent, whole in zip(entry.shape, parameter.shape, strict=True)
    )
    return reduced and split(path)[-1] != _STEP


def _beneath(manifest: Manifest, path: str) -> Iterator[str]:
    """The commit's leaves there, but for parts of sparse and quantised tensors."""
    container = manifest.containers.get(path)
    if container is None:
        yield path
    elif container.kind not in composites.KINDS:
        for key in container.keys:
            yield from _beneath(manifest, join(path, segment(key)))


def _groups(manifest: Manifest, root: str) -> list[str]:
    """The paths of an optimizer's groups of parameters in the commit."""
    groups = manifest.containers.get(f"{root}/param_groups")
    return [f"{root}/param_groups/{number}" for number in groups.keys] if groups else []


def _naming(group: str) -> tuple[str, str]:
    """What may name its parameters: torch's own names, or DCP's in place of numbers."""
    return f"{group}/param_names", f"{group}/params"


def _names(values: Mapping[str, object], group: str) -> list[object]:
    return next(filter(None, (_listed(values, path) for path in _naming(group))), [])


def _listed(values: Mapping[str, object], path: str) -> list[object]:
    found = values.get(path)
    return found if isinstance(found, list) else []


def _moved(optimizer: torch.optim.Optimizer, there: Sequence[object]) -> str | None:
    """The first parameter that another takes the place of, by the names that torch's optimizers may know.

    Other names say nothing about the order, and the user's own code may put it right.
    """
    here = [name for group in optimizer.param_groups for name in group.get("param_names", ())]
    if _has_own_loading(optimizer) or sorted(map(str, here)) != sorted(map(str, there)):
        return None
    pairs = enumerate(zip(here, there, strict=True))
    swapped = (
        f"number {number} is {theirs!r}, and {ours!r} here" for number, (ours, theirs) in pairs if ours != theirs
    )
    return next(swapped, None)


def _has_own_loading(optimizer: torch.optim.Optimizer) -> bool:
    """Whether code of the user's may make something else of the commit's state."""
    hooks = getattr(optimizer, "_optimizer_load_state_dict_pre_hooks", None)
    return bool(hooks) or type(optimizer).load_state_dict is not torch.optim.Optimizer.load_state_dict


def _follows(path: str, committed: torch.dtype, parameter: torch.Tensor) -> bool:
    """Whether state of an optimizer is cast to its parameter's dtype, as `Optimizer.load_state_dict` does it."""
    floats = committed.is_floating_point and parameter.is_floating_point()
    alike = floats or (committed.is_complex and parameter.is_complex())
    return alike and can_cast(committed, parameter.dtype) and split(path)[-1] != _STEP
