import pytest
import torch


@pytest.fixture
def training(tmp_path, monkeypatch):
    """What the documentation's blocks find at hand, in a folder of their own."""
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    model = torch.nn.Linear(64, 32)
    optimizer = torch.optim.AdamW(model.parameters())
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 5)

    def train_step():
        loss = model(torch.randn(4, 64)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        return loss.item()

    return {"model": model, "optimizer": optimizer, "schedule": schedule, "train_step": train_step}
