"""The state that is saved: weights and Adam moments of a transformer that was really trained."""

from __future__ import annotations

import sysconfig
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

VOCABULARY, CONTEXT = 256, 32
FROZEN = 0.95
MOMENTS = ("exp_avg", "exp_avg_sq")
_BATCHES = {"cpu": 1, "cuda": 128}
"""How many sequences a step takes, so that it is at work for a tenth of a second or longer."""


class Trained:
    """A causal transformer of about `mib` MiB of state in float32, a third of it weights, under AdamW.

    `wrap` is called with the embedding, each layer and the head before they are trained, on the `device`.
    """

    def __init__(
        self,
        mib: float,
        layers: int = 12,
        wrap: Callable[[nn.Module], object] = lambda module: module,
        device: str = "cpu",
    ) -> None:
        torch.manual_seed(0)
        width = max(64, int((mib * 2**20 / 12 / (layers * 12)) ** 0.5) // 64 * 64)
        block = nn.TransformerEncoderLayer(width, width // 64, 4 * width, dropout=0, batch_first=True)
        self.model = nn.Sequential(
            nn.Embedding(VOCABULARY, width),
            nn.TransformerEncoder(block, layers, enable_nested_tensor=False),
            nn.Linear(width, VOCABULARY),
        ).to(device)
        embedding, encoder, head = self.model
        for part in (embedding, *encoder.get_submodule("layers").children(), head):
            wrap(part)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self._text = torch.frombuffer(bytearray(text()), dtype=torch.uint8).to(device)
        self.device, self._batch = device, _BATCHES[device]
        self._position = 0
        self.train()

    def train(self, *, frozen: float = 0.0) -> None:
        """One step of training; with `frozen`, the first parameters, that share of all bytes, stay as they are."""
        parameters = list(self.model.parameters())
        total, seen = sum(parameter.numel() for parameter in parameters), 0
        for parameter in parameters:
            parameter.requires_grad_(seen + parameter.numel() > frozen * total)
            seen += parameter.numel()
        given, expected = self._next_rows()
        mask = nn.Transformer.generate_square_subsequent_mask(CONTEXT, device=given.device)
        embedding, encoder, head = self.model
        logits = head(encoder(embedding(given), mask=mask, is_causal=True))
        self.optimizer.zero_grad()
        functional.cross_entropy(logits.flatten(0, 1), expected.flatten()).backward()
        self.optimizer.step()

    def _next_rows(self) -> tuple[Tensor, Tensor]:
        """Sequences of the text, and what follows each of their letters."""
        count = self._batch * CONTEXT
        if self._position + count >= len(self._text):
            self._position = 0
        rows = self._text[self._position : self._position + count + 1].long()
        self._position += count
        return rows[:-1].view(-1, CONTEXT), rows[1:].view(-1, CONTEXT)

    def tensors(self) -> dict[str, Tensor]:
        """Name → live tensor."""
        state = self.optimizer.state
        found = {name: parameter.detach() for name, parameter in self.model.named_parameters()}
        for name, parameter in self.model.named_parameters():
            for moment in MOMENTS:
                found[f"{moment}.{name}"] = state[parameter][moment]
        return found


def small(count: int = 10_000) -> dict[str, Tensor]:
    """`count` tensors of 1 KiB."""
    values = torch.randn(count, 256)
    return {f"tensor{number}": values[number].clone() for number in range(count)}


def text() -> bytes:
    """Real text: sources of the standard library."""
    return b"".join(source.read_bytes() for source in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))[:50])
