"""The sides of the training benchmark: one model each, the same optimiser, loss and clipping, the same kind of step."""

import contextlib
import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from marian import copy_weights, marian
from surd.data.batch import Batch
from surd.models.seq2seq import Seq2Seq
from surd.nn.ragged import Ragged
from surd.optim.optimizer import AdamW
from surd.training.step import train_step

SMOOTHING = 0.1
CLIP = 25.0
IGNORED = -100
"""The label of padding in Hugging Face's convention."""


@dataclass(frozen=True)
class Padded:
    """The same batch as Hugging Face's models take it."""

    source: Tensor
    mask: Tensor
    target: Tensor
    labels: Tensor

    @classmethod
    def of(cls, batch: Batch) -> "Padded":
        source = batch.source.padded()
        target = batch.target.padded()
        labels = torch.full_like(target, IGNORED)
        labels[batch.target.layout.real] = batch.labels
        return cls(source, batch.source.layout.real.long(), target, labels)


class Arm(Protocol):
    """One side: takes a batch in both forms, makes one step, tells the smoothed loss a target token."""

    name: str

    @property
    def model(self) -> nn.Module: ...

    @property
    def optimizer(self) -> torch.optim.Optimizer: ...

    def step(self, batch: Batch, padded: Padded) -> float: ...


def set_rate(arm: Arm, rate: float) -> None:
    """The rate of the arm's next steps."""
    for group in arm.optimizer.param_groups:
        group["lr"] = rate


class Ours:
    """surd's own training step."""

    def __init__(self, start: Seq2Seq, dtype: torch.dtype, optimizer: AdamW) -> None:
        self.name, self.model = named(dtype), copy.deepcopy(start)
        self.model.compute_dtype = dtype
        self.optimizer = optimizer.build(self.model)

    def step(self, batch: Batch, padded: Padded) -> float:
        # Made anew, as in a training: a layout keeps what it has worked out, and no batch is met twice there.
        source, target = (Ragged(side.tokens, side.lengths) for side in (batch.source, batch.target))
        new = Batch(source, target, batch.labels, batch.numbers)
        return train_step(self.model, [new], self.optimizer, clip=CLIP, smoothing=SMOOTHING).loss


def named(dtype: torch.dtype) -> str:
    """What our side is called when it computes in `dtype`."""
    return "ours bf16" if dtype == torch.bfloat16 else "ours fp32"


class HuggingFace:
    """MarianMTModel in a plain loop: forward, cross-entropy over the logits, backward, clip, step."""

    def __init__(
        self, name: str, start: Seq2Seq, longest: int, attention: str, optimizer: AdamW, autocast: bool = False
    ) -> None:
        self.name, self.autocast = name, autocast
        self.model = marian(start.architecture, start.vocabularies[1], longest, attention)
        copy_weights(start, self.model)
        self.model.train()
        self.optimizer = optimizer.build(self.model)

    def step(self, batch: Batch, padded: Padded) -> float:
        with self.precision():
            logits = self.model(
                input_ids=padded.source, attention_mask=padded.mask, decoder_input_ids=padded.target, use_cache=False
            ).logits
            loss = F.cross_entropy(
                logits.flatten(0, 1), padded.labels.flatten(), ignore_index=IGNORED, label_smoothing=SMOOTHING
            )
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), CLIP, foreach=True)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return float(loss.detach())

    @contextlib.contextmanager
    def precision(self) -> Iterator[None]:
        """bf16 where autocast allows it, or nothing."""
        with torch.autocast("cpu", torch.bfloat16) if self.autocast else contextlib.nullcontext():
            yield
