"""What ranks talk over in the background, while the training goes on over its own groups."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptstore.operations.committing.handles import forget_locals

if TYPE_CHECKING:  # see `background`
    from ckptstore.operations.ranks.groups import Group
    from ckptstore.operations.ranks.ranks import Ranks


class Channels:
    """Beside each process group a gloo group of the same ranks, for one thread at a time."""

    def __init__(self) -> None:
        self._made: dict[Group, Ranks] = {}

    def has(self, group: Group) -> bool:
        """Whether there is one."""
        return group in self._made

    def make(self, group: Group | None) -> None:
        """Make another one; called by all ranks."""
        from ckptstore.operations.ranks.gloo import gloo_beside
        from ckptstore.operations.ranks.groups import group_or_default, seat
        from ckptstore.operations.ranks.ranks import Ranks

        self.leave(group_or_default(group))
        self._made[group_or_default(group)] = Ranks(*seat(group), gloo_beside(group))

    def ranks(self, group: Group | None) -> Ranks:
        """Those that talk over it, or this process alone."""
        from ckptstore.operations.ranks.ranks import Ranks

        return Ranks(0, 1) if group is None else self._made[group]

    def leave(self, group: Group | None, failure: BaseException | None = None) -> None:
        """Give it up, if there is one: ranks that wait for this one hear of it then.

        Its connections close when nobody refers to it; so what the functions had that a `failure` came through is
        forgotten.
        """
        if failure is not None:
            forget_locals(failure)
        ranks = None if group is None else self._made.pop(group, None)
        if ranks is not None:
            ranks.leave()

    def close(self) -> None:
        """Leave all groups."""
        for group in list(self._made):
            self.leave(group)
