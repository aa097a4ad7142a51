"""A small multilayer perceptron, with the parts that make federated learning awkward on demand."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F


class MLP(nn.Module):
    """One hidden layer: linear, [BatchNorm], ReLU, [Dropout], linear.

    ``norm`` gives the model buffers (running statistics), ``dropout`` makes it draw from torch's global RNG while it
    trains. Without them it has neither.
    """

    def __init__(
        self, inputs: int = 64, hidden: int = 32, classes: int = 10, *, norm: bool = False, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.fc1 = nn.Linear(inputs, hidden)
        self.norm = nn.BatchNorm1d(hidden) if norm else nn.Identity()
        self.dropout = nn.Dropout(dropout) if dropout else nn.Identity()
        self.head = nn.Linear(hidden, classes)

    def forward(self, inputs: Tensor) -> Tensor:
        """``(n, inputs)`` vectors to ``(n, classes)`` logits."""
        logits: Tensor = self.head(self.dropout(F.relu(self.norm(self.fc1(inputs)))))
        return logits
