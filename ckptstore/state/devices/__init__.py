"""Tensors of devices that have memory of their own: set apart, compared and filled there."""
