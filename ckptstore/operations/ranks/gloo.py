"""A gloo group beside a process group: nothing waits for a device there, whatever its own backend is."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast
from uuid import uuid4

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.distributed.distributed_c10d import PrefixStore

from ckptstore.operations.ranks.groups import Group, device_of, group_or_default, seat
from ckptstore.operations.ranks.ranks import Ranks

if TYPE_CHECKING:  # torch 2.9 has only strings
    from torch.distributed.distributed_c10d import GroupName


def gloo_beside(group: Group | None) -> Group:
    """A gloo group of the same ranks that waits as long for one of them, made here by all.

    Nothing waits for a device there, and the order among other collectives does not matter.
    """
    known, place = group_or_default(group), seat(group)
    waits = known._get_backend(device_of(group)).options._timeout  # noqa: SLF001 - has no public name
    if not hasattr(distributed_c10d, "_register_pg_in_world"):  # torch 2.9, which torch_xla needs
        return cast("Group", dist.new_group(dist.get_process_group_ranks(known), waits, "gloo"))
    chosen = Ranks(*place, group).agree(lambda: None, lambda messages: [f"ckptstore-{uuid4().hex}"] * len(messages))
    name = cast("GroupName", chosen)
    store = PrefixStore(f"{name}/", known.get_group_store())
    made = Group(store, *place)
    made._set_group_name(name)  # noqa: SLF001
    made._set_default_backend(Group.BackendType.GLOO)  # noqa: SLF001
    gloo = dist.ProcessGroupGloo(store, *place, waits)
    made._register_backend(torch.device("cpu"), Group.BackendType.GLOO, gloo)  # noqa: SLF001
    # new_group() names by counting: ranks that are in unequally many groups would wait for each other for ever
    places = {rank: number for number, rank in enumerate(dist.get_process_group_ranks(known))}
    distributed_c10d._register_pg_in_world(made, "gloo", store, name, "cpu:gloo", places)  # noqa: SLF001
    return made
