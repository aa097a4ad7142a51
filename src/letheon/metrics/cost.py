"""What federated training costs, from a model's shape and the number of rounds alone: CM and FLOPs of printed tables.

Costs of runs are metered (``letheon.middleware.Metered``); these formulas say what a table ought to print.
"""

from __future__ import annotations

from dataclasses import dataclass

DIRECTIONS = 2
"""A round sends the model down and its update up."""
FLOAT32 = 4
"""Bytes of a single-precision number."""
TRAINING = 3
"""A training sample counts as three forward passes: one forward, two backward."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What a model's costs depend on.

    Attributes:
        parameters: numbers that travel; buffers are not counted.
        macs: multiply-accumulates of convolutions and linear layers in one forward pass of one sample.
    """

    parameters: int
    macs: int


LENET5 = Shape(44_426, 281_640)
"""LeNet-5 for 28×28 images, 10 classes."""
RESNET18 = Shape(11_173_962, 555_422_720)
"""ResNet-18 for 32×32 images, 10 classes: a 3×3 stem, no max-pooling, 1×1 shortcuts."""
LORA_PARAMETERS = 48_627_712
"""LoRA of rank 32 on all linear layers of Llama-3.2-3B."""


def communication(parameters: int, *, rounds: int, participants: int, scalar_bytes: int = FLOAT32) -> int:
    """CM in bytes: every participant of every round receives the model and returns an update."""
    return DIRECTIONS * scalar_bytes * parameters * rounds * participants


def computation(macs: int, *, rounds: int, samples: int) -> int:
    """FLOPs of ``rounds`` rounds that train on ``samples`` samples each, all clients together; 2 a multiply-accumulate.

    Normalisation, activations and pooling are not counted.
    """
    return TRAINING * 2 * macs * rounds * samples
