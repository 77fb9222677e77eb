"""Dropping old steps, and what no step needs any more."""
