"""Checkpoints of torch.distributed.checkpoint (DCP) as folders of files."""

from ckptstore.integrations.dcp_files.transfer import export_dcp, import_dcp

__all__ = ["export_dcp", "import_dcp"]
