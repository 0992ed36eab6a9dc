"""Keras 3 on PyTorch, on scikit-learn's handwritten digits."""

import argparse
import os

os.environ.setdefault("KERAS_BACKEND", "torch")

import keras
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from wattwise import (
    Attempt,
    BatchSizeOptimizer,
    EstimateMonitor,
    JobSpec,
    NvmlMonitor,
    fit_attempts,
    scaled_learning_rate,
)
from wattwise.integrations.keras import WattwiseCallback

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--server", default=os.environ.get("WATTWISE_SERVER", "localhost:50051"))
server = parser.parse_args().server

job = JobSpec(
    job_id="digits-keras",
    batch_sizes=[16, 32, 64, 128, 256],
    default_batch_size=64,
    target_metric=0.95,
    max_epochs=50,
)
# Without a GPU, energy is estimated as 65 W times time.
monitor = NvmlMonitor() if torch.cuda.is_available() else EstimateMonitor(watts=65)

images, digits = load_digits(return_X_y=True)
x, x_val, y, y_val = train_test_split(images / 16, digits, random_state=0)


def fit(attempt: Attempt) -> keras.Model:
    """Builds a model and trains it."""
    callback = WattwiseCallback(bso, metric="val_accuracy")
    print(f"Batch size {callback.batch_size}: {bso.trial.reason}")
    keras.utils.set_random_seed(attempt.seed_offset)
    model = keras.Sequential(
        [keras.Input((64,)), keras.layers.Dense(128, activation="relu"), keras.layers.Dense(10, activation="softmax")]
    )
    rate = scaled_learning_rate(0.001, batch_size=callback.batch_size, default_batch_size=64, optimizer="adam")
    model.compile(keras.optimizers.Adam(rate), "sparse_categorical_crossentropy", metrics=["accuracy"])
    model.fit(
        x,
        y,
        batch_size=callback.fit_batch_size(),
        epochs=job.max_epochs,
        validation_data=(x_val, y_val),
        callbacks=[callback],
        verbose=2,
    )
    return model


with BatchSizeOptimizer(server, job, monitor=monitor) as bso:
    fit_attempts(bso, fit)
    print(bso.decision.message)
