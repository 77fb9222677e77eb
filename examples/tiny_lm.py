"""A small causal transformer on real text: the sources of Python's standard library, byte by byte."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

VOCABULARY = 256
CONTEXT = 64
WIDTH = 128


class Block(nn.Module):
    """Causal attention and a feed-forward layer, each behind a norm and with dropout."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])
        self.attention = nn.MultiheadAttention(WIDTH, 4, dropout=dropout, batch_first=True)
        self.feed = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH), nn.Dropout(dropout)
        )

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Maps [batch, time, WIDTH] to the same."""
        h = self.norms[0](x)
        x = x + self.attention(h, h, h, attn_mask=mask, need_weights=False)[0]
        return x + self.feed(self.norms[1](x))


class TinyLM(nn.Module):
    """A language model of bytes; the embedding is also the output layer."""

    def __init__(self, layers: int = 4, dropout: float = 0.1) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        nn.init.normal_(self.embedding.weight, std=0.02)
        self.position = nn.Parameter(torch.zeros(CONTEXT, WIDTH))
        self.blocks = nn.ModuleList(Block(dropout) for _ in range(layers))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(CONTEXT), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Maps tokens [batch, CONTEXT] to logits [batch, CONTEXT, VOCABULARY]."""
        x = self.embedding(tokens) + self.position
        for block in self.blocks:
            x = block(x, self.mask)
        return self.head(x)


def corpus(megabytes: float = 2.0) -> Tensor:
    """The text as one long row of bytes."""
    sources = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    text = b"".join(source.read_bytes() for source in sources)[: int(megabytes * 1e6)]
    return torch.frombuffer(bytearray(text), dtype=torch.uint8)


def batch(text: Tensor, position: int, size: int = 8) -> tuple[Tensor, Tensor]:
    """Inputs and targets, each [size, CONTEXT], from a position in the text on."""
    span = size * CONTEXT
    start = position % (len(text) - span - 1)
    rows = text[start : start + span + 1].long()
    return rows[:-1].view(size, CONTEXT), rows[1:].view(size, CONTEXT)


def loss_of(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    """Mean cross entropy per byte."""
    return functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
