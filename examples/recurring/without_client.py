"""The same training without a client: it reads its arguments and leaves its result in a file."""

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


def main(given: list[str]) -> None:
    """Trains until the target or the last epoch."""
    batch_size, seed, max_epochs = int(given[0]), int(given[2]), int(given[4])
    rate, target, result = float(given[1]), float(given[3]), Path(given[5])
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
    # One epoch per call is the point, not a sign of trouble.
    warnings.filterwarnings("ignore", category=ConvergenceWarning)
    main(sys.argv[1:])
