"""Commits, runs and leaves as JSON, with names that stay."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ckptstore.cli import text
from ckptstore.cli.values import shown
from ckptstore.format.manifest import Container, Entry, Manifest, TensorEntry, ValueEntry, entry_bytes

if TYPE_CHECKING:
    from ckptstore.catalog.records import CommitRecord, RunRecord


def commit_json(commit: CommitRecord) -> dict[str, Any]:
    """A commit; its parent as `run@step`, null for a first one and when that was purged."""
    return {
        "run": commit.run,
        "step": commit.step,
        "id": commit.id,
        "parent": commit.parent_ref,
        "tags": list(commit.tags),
        "created": text.iso(commit.created),
        "deleted": None if commit.deleted is None else text.iso(commit.deleted),
        "leaves": commit.leaves,
        "logical_bytes": commit.logical_bytes,
        "new_bytes": commit.new_bytes,
        "metadata": dict(commit.metadata),
    }


def run_json(run: RunRecord) -> dict[str, Any]:
    """A run, and the commit it forked from as `run@step`."""
    return {
        "name": run.name,
        "created": text.iso(run.created),
        "commits": run.commits,
        "latest": run.latest,
        "forked_from": run.forked_from,
    }


def entry_json(entry: Entry) -> dict[str, Any]:
    """A leaf: the form of an array, or a value as Python text (null when it is too large to be in the manifest)."""
    if isinstance(entry, TensorEntry):
        form: dict[str, Any] = {"library": entry.library, "dtype": entry.dtype, "shape": list(entry.shape)}
        return {"kind": "tensor", **form, "bytes": entry_bytes(entry)}
    return {"kind": "value", "value": None if entry.size else shown(entry.value), "bytes": entry_bytes(entry)}


def container_json(container: Container) -> dict[str, Any]:
    """A container: what it is, and as Python text its keys and what else belongs to it."""
    attributes = {name: shown(value) for name, value in container.attributes.items()}
    keys = [shown(key) for key in container.keys]
    return {"kind": container.kind, "type": container.type or None, "keys": keys, "attributes": attributes}


def nature(container: Container, other: Container | None) -> str:
    """`list`, `namedtuple train:Point`, or `deque maxlen=3`; of its keys nothing, nor what the other has alike."""
    parts = [container.kind, container.type]
    alike = other.attributes.items() if other is not None and other.kind == container.kind else ()
    parts += [f"{name}={shown(value)}" for name, value in container.attributes.items() if (name, value) not in alike]
    return text.clean(" ".join(filter(None, parts)))


def dtype(entry: Entry) -> str:
    """`float32`, `numpy <f4`, or `value`."""
    if isinstance(entry, ValueEntry):
        return "value"
    return entry.dtype if entry.library == "torch" else f"numpy {entry.dtype}"


def shape(entry: Entry) -> str:
    """`[4, 3]`; nothing for a value."""
    return str(list(entry.shape)) if isinstance(entry, TensorEntry) else ""


def notes(entry: Entry) -> list[str]:
    """What a tensor is beside its dtype and shape: `requires_grad`, `parameter`, `order=[1, 0]`."""
    if not isinstance(entry, TensorEntry):
        return []
    found = {"requires_grad": entry.requires_grad, "parameter": entry.parameter}
    order = [] if entry.order is None else [f"order={list(entry.order)}"]
    return [name for name, holds in found.items() if holds] + order


def preview(entry: Entry) -> str:
    """A value as Python text; nothing for an array."""
    if isinstance(entry, TensorEntry):
        return ""
    return text.clean(shown(entry.value)) if not entry.size else "…"


def summary(manifest: Manifest) -> dict[str, dict[str, int]]:
    """Per dtype how many leaves there are, and their bytes, of what is tied once; the largest first."""
    found: dict[str, dict[str, int]] = {}
    repeated = manifest.tied
    for path, entry in manifest.entries.items():
        group = found.setdefault(dtype(entry), {"leaves": 0, "bytes": 0})
        group["leaves"] += 1
        group["bytes"] += 0 if path in repeated else entry_bytes(entry)
    return dict(sorted(found.items(), key=lambda item: -item[1]["bytes"]))
