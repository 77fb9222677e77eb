"""Whether the documents of tags are whole, and known to the catalog."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ckptstore.catalog.records import Objects, TagRecord
from ckptstore.chunkstore import ChunkStore
from ckptstore.errors import ObjectNotFound
from ckptstore.format import tagging
from ckptstore.operations.problem import OLDER, Problem
from ckptstore.operations.tags import missing_tags, read_tags, tag_keys

_UNKNOWN = f"is a tag that the catalog does not know, of a commit that it has: {OLDER}"
_DAMAGED = (
    "is damaged, and may be a tag that the catalog does not know, which protects a step: bring it back from a copy and "
    "rebuild the catalog, or tag that step again and remove it"
)


def unknown_tags(chunks: ChunkStore) -> Iterator[tuple[str, str]]:
    """Documents of tags that the catalog does not know, each with the reason.

    Of a newer catalog than this one, which has their commits; or damaged, so that what they tag is not protected.
    """
    unknown = chunks.catalog.unknown(Objects(sorted(tag_keys(chunks)))).documents
    documents, useless = read_tags(chunks, unknown)
    for key, one in documents.items():
        commit = chunks.catalog.by_id(one.commit)
        if commit is not None and commit.run == one.run:
            yield key, _UNKNOWN
    for key, _ in useless:
        if _is_damaged(chunks, key):
            yield key, _DAMAGED


def check_missing_tags(chunks: ChunkStore) -> Iterator[Problem]:
    """Documents of tags that are not there, as `check_tags` reports them, without reading any."""
    missing = [record for record in missing_tags(chunks) if record.document]
    for record in _still(chunks, missing):
        yield Problem(record.document, f"{_description(record)}: its document is not there; run repair")


def check_tags(chunks: ChunkStore) -> Iterator[Problem]:
    """What is wrong with the documents of tags. Those that gc has yet to store, of an older schema, are not missed, nor
    those of tags that are moved or removed meanwhile.
    """
    records = [record for record in chunks.catalog.tags() if record.document]
    return (Problem(record.document, detail) for record, detail in _damaged(chunks, records))


def damaged_tags(chunks: ChunkStore, records: Sequence[TagRecord]) -> list[TagRecord]:
    """Those of the tags that `check_tags` would report."""
    return [record for record, _ in _damaged(chunks, records)]


def _is_damaged(chunks: ChunkStore, key: str) -> bool:
    try:
        return tagging.is_damaged(chunks.storage.get(key), key, chunks.sealer)
    except ObjectNotFound:
        return False


def _damaged(chunks: ChunkStore, records: Sequence[TagRecord]) -> Iterator[tuple[TagRecord, str]]:
    documents, damaged = read_tags(chunks, [record.document for record in records])
    reasons = dict(damaged)
    for record in _still(chunks, records):
        found = documents.get(record.document)
        if found is None:
            yield record, f"{_description(record)}: {reasons[record.document]}; run repair"
        elif (found.run, found.name, found.commit) != (record.run, record.name, record.commit):
            yield record, f"tells of something else than {_description(record)}; run repair"


def _still(chunks: ChunkStore, records: Sequence[TagRecord]) -> Iterator[TagRecord]:
    return filter(set(chunks.catalog.tags()).__contains__, records)


def _description(record: TagRecord) -> str:
    return f"the tag {record.name!r} of {record.run}@{record.step}"
