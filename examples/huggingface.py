"""Hugging Face's Trainer: a small vision transformer on scikit-learn's handwritten digits."""

import argparse
import os
import tempfile

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from transformers import Trainer, TrainingArguments, ViTConfig, ViTForImageClassification
from wattwise import (
    Attempt,
    BatchSizeOptimizer,
    EstimateMonitor,
    JobSpec,
    NvmlMonitor,
    fit_attempts,
    scaled_learning_rate,
)
from wattwise.integrations.huggingface import WattwiseCallback

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--server", default=os.environ.get("WATTWISE_SERVER", "localhost:50051"))
server = parser.parse_args().server

job = JobSpec(
    job_id="digits-huggingface",
    batch_sizes=[16, 32, 64, 128],
    default_batch_size=32,
    target_metric=0.9,
    max_epochs=30,
)
# Without a GPU, energy is estimated as 65 W times time.
monitor = NvmlMonitor() if torch.cuda.is_available() else EstimateMonitor(watts=65)

data = load_digits()
images = torch.tensor(data.images[:, None] / 16, dtype=torch.float32)
examples = [{"pixel_values": image, "labels": label} for image, label in zip(images, data.target, strict=True)]
train, validation = train_test_split(examples, random_state=0)
config = ViTConfig(
    image_size=8,
    patch_size=2,
    num_channels=1,
    num_labels=10,
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=4,
)


def fit(attempt: Attempt) -> Trainer:
    """Builds a model and a trainer, and trains."""
    callback = WattwiseCallback(bso, metric="eval_accuracy")
    print(f"Batch size {callback.batch_size}: {bso.trial.reason}")
    arguments = TrainingArguments(
        output_dir=f"{tempfile.gettempdir()}/digits-huggingface",
        **callback.batch_arguments(),
        eval_strategy="epoch",
        num_train_epochs=job.max_epochs,
        learning_rate=scaled_learning_rate(
            0.002, batch_size=callback.batch_size, default_batch_size=32, optimizer="adamw"
        ),
        seed=42 + attempt.seed_offset,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    trainer = Trainer(
        model_init=lambda: ViTForImageClassification(config),
        args=arguments,
        train_dataset=train,
        eval_dataset=validation,
        compute_metrics=lambda output: {"accuracy": (output.predictions.argmax(axis=1) == output.label_ids).mean()},
        callbacks=[callback],
    )
    trainer.train()
    return trainer


with BatchSizeOptimizer(server, job, monitor=monitor) as bso:
    fit_attempts(bso, fit)
    print(bso.decision.message)
