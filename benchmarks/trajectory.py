"""States of one training run, some steps apart, while the learning rate is at its peak and after it has decayed."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.trained import VOCABULARY, text

PHASES = ("peak", "decayed")
KINDS = ("weights", "exp_avg", "exp_avg_sq")
CONTEXT, BATCH = 64, 16
PEAK, FLOOR = 1e-4, 1e-5

State = dict[str, list[Tensor]]
"""Kind → the tensors of all parameters."""


class Trajectory:
    """A causal transformer under AdamW: linear warm-up, a plateau until half of the steps, cosine decay, the floor.

    The peak phase ends with the plateau, the decayed one with the run; both are `longest` steps long.
    """

    def __init__(self, dtype: torch.dtype, width: int, layers: int, steps: int, longest: int) -> None:
        torch.manual_seed(0)
        block = nn.TransformerEncoderLayer(width, width // 64, 4 * width, dropout=0, batch_first=True, norm_first=True)
        self._model = nn.Sequential(
            nn.Embedding(VOCABULARY, width),
            nn.TransformerEncoder(block, layers, enable_nested_tensor=False),
            nn.Linear(width, VOCABULARY),
        ).to(dtype)
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=PEAK)
        self._text = torch.frombuffer(bytearray(text()), dtype=torch.uint8)
        self._mask = nn.Transformer.generate_square_subsequent_mask(CONTEXT, dtype=dtype)
        self._steps, self._longest = steps, longest

    def states(self, apart: tuple[int, ...]) -> Iterator[tuple[str, int, State]]:
        """Phase, steps since its begin (0 or one of `apart`), and the state then."""
        starts = dict(zip(PHASES, (self._steps // 2 - self._longest - 1, self._steps - self._longest - 1), strict=True))
        for step in range(self._steps):
            self._train(self._rate(step))
            for phase, start in starts.items():
                if step - start in {0, *apart}:
                    yield phase, step - start, self._state()

    def _rate(self, step: int) -> float:
        if step < self._steps // 2:
            return PEAK * min(1, 12 * (step + 1) / self._steps)
        decayed = min(1, (step / self._steps - 1 / 2) * 3)
        return FLOOR + (PEAK - FLOOR) * (1 + math.cos(math.pi * decayed)) / 2

    def _train(self, rate: float) -> None:
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        begins = torch.randint(0, len(self._text) - CONTEXT - 1, (BATCH,))
        rows = torch.stack([self._text[begin : begin + CONTEXT + 1] for begin in begins]).long()
        embedding, encoder, head = self._model
        logits = head(encoder(embedding(rows[:, :-1]), mask=self._mask, is_causal=True))
        self._optimizer.zero_grad()
        functional.cross_entropy(logits.flatten(0, 1).float(), rows[:, 1:].flatten()).backward()
        self._optimizer.step()

    def _state(self) -> State:
        found: State = {kind: [] for kind in KINDS}
        for parameter in self._model.parameters():
            found["weights"].append(parameter.detach().clone())
            for moment in KINDS[1:]:
                found[moment].append(self._optimizer.state[parameter][moment].clone())
        return found
