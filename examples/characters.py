"""A language model of characters, trained in iterations as large models are, on sentences that the script makes up.

Nothing here counts passes over a dataset: the schedule and the evaluations are in steps. An epoch of Wattwise is a
fixed number of examples, so that it is the same work for every batch size.
"""

import argparse
import math
import os
import random

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from wattwise import BatchSizeOptimizer, EstimateMonitor, JobSpec, NvmlMonitor, scaled_learning_rate, scaled_steps

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--server", default=os.environ.get("WATTWISE_SERVER", "localhost:50051"))
server = parser.parse_args().server

# Tuned for this batch size.
DEFAULT_BATCH_SIZE = 32
LEARNING_RATE = 0.003
WARM_UP_STEPS = 40
MAX_STEPS = 640
# Between two evaluations. All batch sizes divide it, so that no epoch is rounded.
EXAMPLES_PER_EPOCH = 2048
# Characters that the model sees.
CONTEXT = 32

job = JobSpec(
    job_id="characters-sentences",
    batch_sizes=[16, 32, 64, 128],
    default_batch_size=DEFAULT_BATCH_SIZE,
    # The loss per character, in nats: lower is better.
    target_metric=0.25,
    higher_is_better=False,
    # The maximum of steps, as a number of evaluations.
    max_epochs=MAX_STEPS * DEFAULT_BATCH_SIZE // EXAMPLES_PER_EPOCH,
)
# Without a GPU, energy is estimated as 65 W times time.
monitor = NvmlMonitor() if torch.cuda.is_available() else EstimateMonitor(watts=65)
device = "cuda" if torch.cuda.is_available() else "cpu"

chance = random.Random(0)  # noqa: S311 - no secret
words = (["ada", "grace", "alan", "kurt"], ["counts", "paints", "lifts"], ["stones.", "stars.", "old clocks."])
text = "".join(f"{chance.choice(choices)} " for _ in range(4000) for choices in words)
alphabet = sorted(set(text))
characters = torch.tensor([alphabet.index(character) for character in text], device=device)
training, validation = characters[: -len(text) // 10], characters[-len(text) // 10 :]


class Model(nn.Module):
    """A transformer that predicts the next character."""

    def __init__(self) -> None:
        super().__init__()
        width = 48
        self.tokens = nn.Embedding(len(alphabet), width)
        self.places = nn.Parameter(torch.zeros(CONTEXT, width))
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, len(alphabet))
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(CONTEXT))

    def loss(self, text: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
        """Returns the loss per character of the windows that begin at `starts`."""
        windows = text[starts[:, None] + torch.arange(CONTEXT + 1, device=device)]
        hidden = self.layers(self.tokens(windows[:, :-1]) + self.places, mask=self.mask, is_causal=True)
        return cross_entropy(self.head(hidden).flatten(0, 1), windows[:, 1:].flatten())


def evaluate(model: Model) -> torch.Tensor:
    """Returns the loss on the validation text."""
    with torch.no_grad():
        return model.loss(validation, torch.arange(0, len(validation) - CONTEXT, CONTEXT, device=device))


with BatchSizeOptimizer(server, job, monitor=monitor) as bso:
    for attempt in bso.attempts():
        print(f"Batch size {attempt.batch_size}: {attempt.trial.reason}")
        torch.manual_seed(attempt.seed_offset)
        size, default = attempt.batch_size, DEFAULT_BATCH_SIZE
        rate = scaled_learning_rate(LEARNING_RATE, batch_size=size, default_batch_size=default, optimizer="adamw")
        warm_up = scaled_steps(WARM_UP_STEPS, batch_size=size, default_batch_size=default)
        max_steps = scaled_steps(MAX_STEPS, batch_size=size, default_batch_size=default)

        def factor(step: int, warm_up: int = warm_up, max_steps: int = max_steps) -> float:
            """Rises linearly, then falls along a cosine to a tenth."""
            if step < warm_up:
                return (step + 1) / warm_up
            done = min(1.0, (step - warm_up) / max(1, max_steps - warm_up))
            return 0.55 + 0.45 * math.cos(math.pi * done)

        model = Model().to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
        for epoch in attempt.epochs():
            for _ in range(attempt.steps(EXAMPLES_PER_EPOCH)):
                starts = torch.randint(len(training) - CONTEXT, (size,), device=device)
                optimizer.zero_grad()
                model.loss(training, starts).backward()
                optimizer.step()
                schedule.step()
            loss = evaluate(model)
            print(f"{epoch * EXAMPLES_PER_EPOCH} examples, {schedule.last_epoch} steps: loss {loss:.3f}")
            attempt.on_evaluate(loss)

    print(bso.decision.message)
