"""What is known of a step that torch.optim.Adam made, and the predictions that may follow from it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ckptstore.format.codecs.adam_arithmetic import Kind, Number, Prediction, Rounding


@dataclass(frozen=True, slots=True)
class Step:
    """The hyperparameters of one step of Adam.

    Attributes:
        lr, betas, eps, weight_decay: as torch.optim.Adam has them.
        decoupled: whether decay acts on the weight itself, as in AdamW.
        count: the number of this step, from 1.
        number: what the words of the weight and of both moments are.
        single: whether the learning rate is a tensor of float32, and so what is computed with it.
    """

    lr: float
    betas: tuple[float, float]
    eps: float
    weight_decay: float
    decoupled: bool
    count: float
    number: Number
    single: bool = False

    def predictions(self, kind: Kind) -> list[Prediction]:
        """All that may fit; which one does depends on how torch went about the step."""
        roundings = [Rounding.EACH] if self.number is Number.FLOAT32 else list(Rounding)
        options = self._of_weight() if kind is Kind.WEIGHT else [self.betas]
        made = [Prediction(kind, self.number, rounding, option) for rounding in roundings for option in options]
        return [prediction for prediction in made if prediction.usable and prediction.lasting]

    def _of_weight(self) -> list[tuple[float, ...]]:
        if self.count < 1 or not all(0 <= beta < 1 for beta in self.betas):
            return []
        first = 1 - self.betas[0] ** self.count
        root = (1 - self.betas[1] ** self.count) ** 0.5
        decay = self.weight_decay if self.decoupled else 0.0
        found: list[tuple[float, ...]] = [(1 - self.lr * decay, -(self.lr / first), root, self.eps)]
        if self.single:
            lr, one = np.float32(self.lr), np.float32(1)
            found.append((float(one - lr * np.float32(decay)), -float(lr / np.float32(first)), root, self.eps))
        return found
