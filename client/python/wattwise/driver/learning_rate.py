"""The learning rate that goes with a batch size."""

from __future__ import annotations

import math

SQUARE_ROOT = ("adam", "adamw", "adadelta")
OPTIMIZERS = ("sgd", *SQUARE_ROOT)


def learning_rate_for(optimizer: str, default_rate: float, default_batch_size: int, batch_size: int) -> float:
    """Scales a learning rate that is known to work with another batch size.

    Linearly for SGD (Goyal et al., arXiv 1706.02677); with the square root for Adam and its kin, whose updates are
    divided by a running size of the gradient (Malladi et al., arXiv 2205.10287).

    Args:
        optimizer: one of `OPTIMIZERS`.
        default_rate: the rate that goes with `default_batch_size`.
        default_batch_size: the batch size that it was tuned for.
        batch_size: the batch size to train with.
    """
    factor = batch_size / default_batch_size
    return default_rate * (math.sqrt(factor) if optimizer in SQUARE_ROOT else factor)
