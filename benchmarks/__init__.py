"""ckptstore measured beside its peers."""
