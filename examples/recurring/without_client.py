"""The same training without a client: it reads its arguments and writes its result to a file."""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path

from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier


def main(arguments: list[str]) -> None:
    """Trains until the target or the last epoch."""
    batch_size, seed, max_epochs = int(arguments[0]), int(arguments[2]), int(arguments[4])
    rate, target, result = float(arguments[1]), float(arguments[3]), Path(arguments[5])
    images, digits = load_digits(return_X_y=True)
    x, x_val, y, y_val = train_test_split(images / 16, digits, test_size=0.25, stratify=digits, random_state=seed)
    model = MLPClassifier((512,), batch_size=batch_size, learning_rate_init=rate, random_state=seed)
    loss, epoch = float("inf"), 0
    while loss > target and epoch < max_epochs:
        epoch += 1
        model.partial_fit(x, y, classes=range(10))
        loss = float(log_loss(y_val, model.predict_proba(x_val)))
        print(f"epoch {epoch}: log loss {loss:.4f}")
    result.write_text(json.dumps({"metric": loss, "epochs": epoch}))


if __name__ == "__main__":
    # Each call trains one epoch by design.
    warnings.filterwarnings("ignore", category=ConvergenceWarning)
    main(sys.argv[1:])
