"""What a store does, one module a verb. Modules that touch live state import torch; the others start fast."""
