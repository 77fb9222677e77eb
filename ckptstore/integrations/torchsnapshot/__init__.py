"""Snapshots of torchsnapshot, which need not be installed."""

from ckptstore.integrations.torchsnapshot.transfer import import_torchsnapshot

__all__ = ["import_torchsnapshot"]
