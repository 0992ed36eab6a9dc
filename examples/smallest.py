"""The smallest trainer: scikit-learn's handwritten digits, one epoch after another."""

import os

from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier
from wattwise import BatchSizeOptimizer, EstimateMonitor, JobSpec

job = JobSpec(
    job_id="digits-nightly",
    batch_sizes=[8, 16, 32, 64, 128],
    default_batch_size=128,
    target_metric=0.95,
)
# No GPU here, so energy is estimated as 65 W times time. Without `monitor` all visible NVIDIA GPUs are measured.
bso = BatchSizeOptimizer(os.environ.get("WATTWISE_SERVER", "localhost:50051"), job, monitor=EstimateMonitor(watts=65))

x, y = load_digits(return_X_y=True)
x_train, x_val, y_train, y_val = train_test_split(x / 16, y, random_state=0)
for attempt in bso.attempts():  # each asks the server for a batch size, until one reaches the target
    model = MLPClassifier(batch_size=attempt.batch_size)
    print(f"Batch size {model.batch_size}: {attempt.trial.reason}")
    for _ in attempt.epochs():  # measures each epoch, and ends when the server says so
        model.partial_fit(x_train, y_train, classes=range(10))
        attempt.on_evaluate(model.score(x_val, y_val))  # reports it
print(bso.decision.message)
