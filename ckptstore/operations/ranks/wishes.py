"""What one process is asked to commit, alone or with others: all that the caller of a background commit needs of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ckptstore.operations.history import Draft
from ckptstore.operations.paths import as_globs
from ckptstore.state.tree import Flat, flatten


@dataclass(frozen=True, slots=True)
class Wish:
    """What a rank is asked to commit.

    Attributes:
        run, step: the address, which is checked here; the same on all ranks.
        flatten: gives its state; see `flattened`.
        draft: called by the coordinator alone.
    """

    run: object
    step: object
    flatten: Callable[[], Flat]
    draft: Callable[[], Draft]


def flattened(
    app_state: Mapping[str, object],
    own: Sequence[Mapping[str, object]] = (),
    *,
    allow_pickle: bool,
    replicated: object = None,
) -> Flat:
    """A rank's state, of which globs choose what is `Flat.replicated`; or what several have, and by rank each's `own`.

    Raises InvalidArgument for what are no globs, and as `flatten` does.
    """
    globs = as_globs(replicated, "replicated") or ()
    flat = flatten(app_state, allow_pickle=allow_pickle, replicated=globs)
    if not own:
        return flat
    from ckptstore.operations.ranks.as_one import as_one

    return as_one(flat, [flatten(each, allow_pickle=allow_pickle) for each in own])
