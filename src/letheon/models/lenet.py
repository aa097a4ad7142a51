"""LeNet-5 for 28×28 grey images."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F


class LeNet5(nn.Module):
    """Two convolutions without padding and three linear layers: 44,426 parameters for 10 classes.

    The penultimate feature, the input of ``head``, is a vector of 84.
    """

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, 5)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1 = nn.Linear(256, 120)
        self.fc2 = nn.Linear(120, 84)
        self.head = nn.Linear(84, classes)

    def forward(self, inputs: Tensor) -> Tensor:
        """``(n, 1, 28, 28)`` images to ``(n, classes)`` logits."""
        hidden = F.max_pool2d(F.relu(self.conv1(inputs)), 2)
        hidden = F.max_pool2d(F.relu(self.conv2(hidden)), 2)
        hidden = F.relu(self.fc1(hidden.flatten(1)))
        hidden = F.relu(self.fc2(hidden))
        logits: Tensor = self.head(hidden)
        return logits
