"""Every world that steps lead to, breadth first."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

World = TypeVar("World", bound=Hashable)


def search(
    first: World, steps: Callable[[World], Iterable[tuple[str, World]]], wrong: Callable[[World], str]
) -> tuple[int, str, list[str]]:
    """The number of worlds seen; what is wrong in one of them, and the shortest way there, if there is one."""
    came: dict[World, tuple[World, str] | None] = {first: None}
    queue = deque([first])
    while queue:
        world = queue.popleft()
        if violation := wrong(world):
            return len(came), violation, _way(came, world)
        for label, after in steps(world):
            if after not in came:
                came[after] = (world, label)
                queue.append(after)
    return len(came), "", []


def _way(came: dict[World, tuple[World, str] | None], world: World) -> list[str]:
    way: list[str] = []
    while (step := came[world]) is not None:
        world, label = step
        way.append(label)
    return way[::-1]
