"""Where bytes lie: a folder, an object store, anything fsspec reaches."""

from ckptstore.format.buffers import Buffer
from ckptstore.storage.base import ObjectInfo, RangeRead, Storage
from ckptstore.storage.opening import open_storage

__all__ = ["Buffer", "ObjectInfo", "RangeRead", "Storage", "open_storage"]
