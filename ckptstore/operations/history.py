"""Where commits stand in their runs: what a new one stands on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ckptstore.catalog.base import Catalog
from ckptstore.catalog.records import CommitRecord
from ckptstore.errors import InvalidArgument, RunNotFound
from ckptstore.format.document import Origin
from ckptstore.operations.address import check_metadata, check_step


@dataclass(frozen=True, slots=True)
class Draft:
    """A commit that is to be made: where, on top of which commit id, with which metadata, and of which one a copy.

    Until it is `placed`, no commit id says that it is to stand on the run's highest step below it.
    """

    run: str
    step: int
    parent: str | None
    metadata: Mapping[str, Any]
    origin: Origin | None = None


def draft(run: str, step: int, parent: CommitRecord | None, metadata: Mapping[str, Any] | None) -> Draft:
    """A checked draft.

    Raises:
        InvalidArgument: a bad step or metadata, or a parent in the same run that does not lie below the step.
    """
    number = check_step(step)
    if parent is not None and parent.run == run and parent.step >= number:
        raise InvalidArgument(f"parent {parent.step} of step {number} in the same run: a parent is a lower step")
    return Draft(run, number, parent.id if parent else None, check_metadata(metadata))


def placed(catalog: Catalog, draft: Draft) -> Draft:
    """The draft on top of what it is to stand on, if there is anything."""
    if draft.parent is not None:
        return draft
    base = catalog.newest(draft.run, draft.step - 1)
    return replace(draft, parent=base.id if base else None)


def commit_at(catalog: Catalog, run: str, step: int) -> CommitRecord | None:
    """The live commit at a step, or None; also for a run that does not exist."""
    newest = catalog.newest(run, step)
    return newest if newest is not None and newest.step == step else None


def log(catalog: Catalog, run: str, *, deleted: bool = False) -> list[CommitRecord]:
    """Commits of a run, newest step first; none for a run that has none yet."""
    try:
        return catalog.commits(run, deleted=deleted)[::-1]
    except RunNotFound:
        return []
