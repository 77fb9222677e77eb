from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True)
def gradients():
    """Whoever leaves gradients off is named, before others fail for it."""
    yield
    left_on = torch.is_grad_enabled()
    torch.set_grad_enabled(True)
    assert left_on, "gradients were left off"
