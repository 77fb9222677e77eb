"""What verification finds."""

from __future__ import annotations

from dataclasses import dataclass

from ckptstore.errors import CorruptData, FormatError, ObjectNotFound, StepNotFound

DAMAGE = (CorruptData, FormatError, ObjectNotFound, StepNotFound)
"""Errors about what was to be read itself. Others are about the way to it, and say nothing of what lies there."""
OLDER = "the catalog is older than the storage: rebuild it, or bring back a newer copy"
"""What to do where the storage has what the catalog does not know."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that is not as it was written.

    Attributes:
        object: the storage key, or "catalog".
        detail: what is wrong.
        digest: the chunk that is lost, when one is.
        affected: the leaves hit, as "run@step path", or "run@step (deleted) path" where the step can still be restored.
    """

    object: str
    detail: str
    digest: bytes = b""
    affected: tuple[str, ...] = ()
