"""A store as the storage of torch.distributed.checkpoint (DCP): what ranks save is one commit like any other."""

from ckptstore.integrations.dcp.planners import StoreLoadPlanner, StoreSavePlanner
from ckptstore.integrations.dcp.reader import StoreReader
from ckptstore.integrations.dcp.writer import StoreWriter

__all__ = ["StoreLoadPlanner", "StoreReader", "StoreSavePlanner", "StoreWriter"]
