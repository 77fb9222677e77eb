"""What a store does: a package for each family of verbs, and here what these share, and verbs that stand alone.

Modules that touch live state import torch; the others start fast.
"""
