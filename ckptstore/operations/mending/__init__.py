"""Mending what is damaged or lost, from whatever good copies are left."""
