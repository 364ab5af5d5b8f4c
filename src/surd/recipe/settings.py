"""The tree of settings: everything that decides one training, each setting with its unit and meaning beneath it."""

from dataclasses import dataclass, field
from typing import Literal

from surd.data.batch import Batching
from surd.data.corpus import DataSettings
from surd.data.tokenizer import Tokenizers
from surd.decode.decoding import Decoding
from surd.decode.sample import Sampling
from surd.models.architecture import Architecture
from surd.nn.loss import Terms
from surd.optim.optimizer import AdamW, Optimizer
from surd.optim.schedule import InverseRootDecay, Schedule


@dataclass(frozen=True, kw_only=True)
class Training:
    """How the weights are found: how long, how often they are looked at, and how they move."""

    steps: int | None = None
    """Updates after which training ends at the latest; none while minutes are not yet turned into updates."""
    minutes: float | None = None
    """Time budget in minutes: a short calibration turns it into `steps`, so only one of the two can be given."""
    patience: int = 10
    """Evaluations without a better held-out score after which training ends; 0 never ends it early."""
    evaluate_every: int = 500
    """Updates between two looks at the held-out score, each with a checkpoint."""
    accumulation: int = 1
    """Batches whose gradients are added up for one update."""
    clip: float = 1.0
    """Norm to which a longer gradient is cut, for the mean over target tokens; 0 cuts none."""
    average: int = 5
    """Newest evaluated checkpoints whose weights are averaged at the end; 1 averages none."""
    watch_every: int = 100
    """Updates between two looks at the scales of the model as it trains, which change no weight; 0 never looks."""
    keep: int = 2
    """Full checkpoints that stay on disk to go on from."""
    smoothing: float = 0.1
    """Share of each target's probability that is spread evenly over the vocabulary (label smoothing)."""
    terms: Terms = field(default_factory=Terms)
    """What is added to the cross-entropy."""
    precision: Literal["auto", "bf16", "fp32"] = "auto"
    """Number format of the activations, weights staying fp32: `auto` takes the faster, measured once."""
    optimizer: Optimizer = field(default_factory=AdamW)
    """How a gradient moves the weights."""
    schedule: Schedule = field(default_factory=InverseRootDecay)
    """The rate of each update."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Every setting of one training; two equal recipes on equal data, machine and versions give equal weights."""

    task: str
    """What the pairs are (`translation`, `pronunciation`, `transduction`), or `language` for running text: decides how
    the data are read and scored."""
    seed: int = 1
    """Start of every random choice: first weights, order of the data, dropout, held-out lines."""
    data: DataSettings
    """Where the data come from, and which are dropped."""
    tokenizer: Tokenizers = field(default_factory=Tokenizers)
    """How text becomes ids."""
    model: Architecture = field(default_factory=Architecture)
    """The network."""
    batch: Batching = field(default_factory=Batching)
    """How many pairs or windows meet in one batch."""
    training: Training = field(default_factory=Training)
    """How the weights are found."""
    decode: Decoding = field(default_factory=Decoding)
    """How an output is searched for, where the task has sources."""
    sample: Sampling = field(default_factory=Sampling)
    """How a language model goes on with a text."""
