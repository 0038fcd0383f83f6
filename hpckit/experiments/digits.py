"""Digits: a small CNN learns handwritten digits, data-parallel, in seconds.

Shows what a training function looks like on real images; independent of how it is launched. The
1797 images of 8x8 pixels come with scikit-learn (the test set of Alpaydin and Kaynak, "Optical
Recognition of Handwritten Digits", UCI, 1998): nothing is downloaded.

Every batch depends only on the seed and the step, so a run with the same number of ranks is
reproducible and can continue from any step.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812  # as in torch's own documentation
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from hpckit import Run
from hpckit.errors import ConfigError
from hpckit.values import dataclass

TEST_IMAGES = 360
"""A fifth of all images."""


def train(config: Any, run: Run) -> None:
    """Train on this rank's share of every batch; log the loss, and the test accuracy at the end.

    Reads `epochs`, `batch_size` (of all ranks together), `lr`, `weight_decay`, `width` and `log_every`
    (steps) from the configuration. Raises ConfigError if the batch cannot be split evenly.
    """
    torch.use_deterministic_algorithms(mode=True)
    share = samples_per_rank(config.batch_size, run.world_size)
    training, test = load_digit_sets(config.seed, run.device)
    steps_per_epoch = len(training.labels) // config.batch_size
    steps = config.epochs * steps_per_epoch

    model = DistributedDataParallel(build_digit_classifier(config.width).to(run.device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.lr, weight_decay=config.weight_decay)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, config.lr, total_steps=steps)
    run.state(model=model, optimizer=optimizer, schedule=schedule)

    for step in run.steps(steps):
        epoch, batch = divmod(step, steps_per_epoch)
        order = seeded_permutation(len(training.labels), config.seed + epoch)
        first = batch * config.batch_size + run.rank * share
        images, labels = training.select_images(order[first : first + share])
        loss = F.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # untyped in torch
        optimizer.step()
        schedule.step()
        if step % config.log_every == 0 or step == steps - 1:
            (loss_sum,) = sum_over_ranks(loss, device=run.device)
            run.log(step=step, epoch=epoch, loss=loss_sum / run.world_size)

    run.log(step=steps, test_accuracy=measure_accuracy(model, test, run))


@dataclass(frozen=True, slots=True, kw_only=True)
class Digits:
    """Images, float [n, 1, 8, 8] in 0..1, and their labels, int [n]."""

    images: Tensor
    labels: Tensor

    def select_images(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Return the images and labels with these indices."""
        here = indices.to(self.labels.device)
        return self.images[here], self.labels[here]


def load_digit_sets(seed: int, device: torch.device) -> tuple[Digits, Digits]:
    """Return training and test set: disjoint, chosen by the seed, the same on every rank."""
    pixels, labels = load_digits(return_X_y=True)
    everything = Digits(
        images=(torch.from_numpy(pixels).float() / 16.0).view(-1, 1, 8, 8).to(device),
        labels=torch.from_numpy(labels).long().to(device),
    )
    order = seeded_permutation(len(labels), seed)
    parts = (everything.select_images(part) for part in (order[TEST_IMAGES:], order[:TEST_IMAGES]))
    training, test = (Digits(images=images, labels=labels) for images, labels in parts)
    return training, test


def seeded_permutation(length: int, seed: int) -> Tensor:
    """Return the numbers below `length` in an order that depends only on the seed."""
    return torch.randperm(length, generator=torch.Generator().manual_seed(seed))


def build_digit_classifier(width: int) -> nn.Module:
    """Return a CNN from [n, 1, 8, 8] images to [n, 10] logits with `width` channels at first."""
    return nn.Sequential(
        nn.Conv2d(1, width, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.Conv2d(width, 2 * width, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(2 * width, 2 * width, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(2 * width * 4 * 4, 10),
    )


@torch.no_grad()
def measure_accuracy(model: nn.Module, test: Digits, run: Run) -> float:
    """Return the share of test images classified correctly; each rank evaluates its own part."""
    model.eval()
    mine = slice(run.rank, None, run.world_size)
    images, labels = test.images[mine], test.labels[mine]
    right = (model(images).argmax(dim=1) == labels).sum()
    right_sum, image_sum = sum_over_ranks(right, len(labels), device=run.device)
    return right_sum / image_sum


def samples_per_rank(batch_size: int, world_size: int) -> int:
    """Return the number of samples of a global batch for each rank; raises ConfigError."""
    if batch_size < 1 or batch_size % world_size:
        raise ConfigError(
            f"batch_size={batch_size} cannot be divided evenly among {world_size} ranks",
            hint=f"batch_size is for all ranks together: choose a multiple of {world_size}.",
        )
    return batch_size // world_size


def sum_over_ranks(*values: float | torch.Tensor, device: torch.device) -> list[float]:
    """Return the sum of each value over all ranks; every rank must call it."""
    sums = torch.stack([torch.as_tensor(value).detach().double().to(device) for value in values])
    dist.all_reduce(sums)
    return [float(value) for value in sums.tolist()]
