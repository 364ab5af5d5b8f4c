"""Which public architectures tie their output to their embedding, and which multiply it?"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from surd.lab.experiment import Experiment, Findings, installed
from surd.lab.figure import Axis, Rows, Series
from surd.lab.finding import Claim, Comparison, Table, at_least, mean, near, not_measured, number
from surd.lab.installed import defaults, hugging_face
from surd.lab.verdict import Side
from surd.seed import derive, generator

WIDTH, HEADS, TOKENS = 256, 4, 128
MISSING = "transformers is not installed"


def _decoder(config: Any) -> dict[str, Any]:
    sizes = {"hidden_size": WIDTH, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": HEADS}
    return sizes | ({"num_key_value_heads": HEADS} if hasattr(config, "num_key_value_heads") else {})
