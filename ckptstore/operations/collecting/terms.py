"""The terms of a gc, as a user gives them."""

from __future__ import annotations

from ckptstore.errors import InvalidArgument
from ckptstore.operations.collecting.retention import Policy
from ckptstore.operations.seconds import are_seconds

DEFAULT_GRACE = 900.0
"""Seconds for which a deleted step can be restored."""

DEFAULT_MOST = 0.9
"""The largest share of a run's commits that is deleted without a look at the plan."""


def check_terms(keep: object, grace: object) -> None:
    """Raises InvalidArgument for what is no policy, or a negative grace."""
    if keep is not None and not isinstance(keep, Policy):
        raise InvalidArgument(f"keep={keep!r}: give a policy, such as KeepLast(3)")
    if not are_seconds(grace) or grace < 0:
        raise InvalidArgument(f"grace={grace!r}: give 0 or more seconds")


def check_most(most: object) -> None:
    """Raises InvalidArgument for what is no share."""
    if not isinstance(most, int | float) or not 0 <= most <= 1:
        raise InvalidArgument(f"most={most!r}: give a share from 0 to 1")
