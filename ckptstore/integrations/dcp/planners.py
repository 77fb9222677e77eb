"""Planners that give plain values as they are, where DCP's own ones give pickles."""

from __future__ import annotations

import io
from typing import Any

from torch.distributed.checkpoint._traverse import set_element
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.metadata import StorageMeta
from torch.distributed.checkpoint.planner import ReadItem, WriteItem, WriteItemType

from ckptstore.errors import StateError
from ckptstore.integrations.dcp.values import PlainValue


class StoreSavePlanner(DefaultSavePlanner):
    """DCP's default planner for saves, but that plain values of every type that the store knows keep their types.

    With DCP's own planner, they are what `torch.load(…, weights_only=True)` makes of them.
    """

    def set_up_planner(
        self,
        state_dict: dict[str, Any],
        storage_meta: StorageMeta | None = None,
        is_coordinator: bool = False,  # noqa: FBT001, FBT002 - by DCP
    ) -> None:
        """See `SavePlanner`. Raises StateError for keys that are one once flattened."""
        try:
            super().set_up_planner(state_dict, storage_meta, is_coordinator)
        except ValueError as error:
            raise StateError(f"keys of the state are one once they are joined by dots: {error}: rename one") from None

    def transform_object(self, write_item: WriteItem, object: Any) -> Any:  # noqa: A002 - named by DCP
        """See `DefaultSavePlanner`."""
        if write_item.type is WriteItemType.BYTE_IO:
            return PlainValue(object)
        return super().transform_object(write_item, object)


class StoreLoadPlanner(DefaultLoadPlanner):
    """DCP's default planner for loads, but that plain values come as they were, without a pickle in between."""

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        """See `LoadPlanner`."""
        name = read_item.dest_index.fqn
        if not isinstance(value, PlainValue):
            super().load_bytes(read_item, value)
        elif self.flatten_state_dict:
            set_element(self.original_state_dict, self.mappings[name], value.value)
        else:
            self.state_dict[name] = value.value
