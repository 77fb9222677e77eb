"""Process groups: which rank of how many this process is, and what becomes of talking over one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
import torch.distributed as dist

from ckptstore.errors import InvalidArgument, RankFailed

Group = dist.ProcessGroup


class Seat(NamedTuple):
    """A rank of so many."""

    rank: int
    of: int


def seat(group: dist.ProcessGroup | None) -> Seat:
    """Which of how many ranks this process is.

    Raises InvalidArgument when it is none of the group, there is no such group any more, or what is given is none.
    """
    if not dist.is_available() or (group is None and not dist.is_initialized()):
        return Seat(0, 1)
    _check_group(group)
    try:
        rank = dist.get_rank(group)
    except ValueError:
        raise InvalidArgument("the process group was destroyed: give one that exists, or none") from None
    if rank < 0:
        raise InvalidArgument("this process is not in the process group: call this on its ranks only")
    return Seat(rank, dist.get_world_size(group))


def group_or_default(group: Group | None) -> Group:
    """The group itself, or the default one, which must be there."""
    found = group or dist.group.WORLD
    assert found is not None
    return found


def device_of(group: dist.ProcessGroup | None) -> torch.device:
    """Where a group moves bytes: the host, unless it only knows an accelerator."""
    backend = str(dist.get_backend_config(group))
    if "cpu" in backend or "gloo" in backend:
        return torch.device("cpu")
    return torch.accelerator.current_accelerator() or torch.device("cpu")


@contextmanager
def rank_failures() -> Iterator[None]:
    """Raises RankFailed when a rank is gone, silent for longer than the group waits, or the group is destroyed."""
    try:
        yield
    except (RuntimeError, ValueError) as error:
        problem = "the process group or a rank of it is gone, or did not make this call, as all must"
        raise RankFailed(f"{problem}: start all again ({error})") from error


def _check_group(group: object) -> None:
    if group is None or isinstance(group, Group) or group is dist.GroupMember.NON_GROUP_MEMBER:
        return
    advice = "what torch.distributed.new_group makes, or none"
    if type(group).__name__ == "DeviceMesh":
        advice = "mesh.get_group(), with the name of a dim where it has several"
    raise InvalidArgument(f"process_group is a {type(group).__name__}, no process group: give {advice}")
