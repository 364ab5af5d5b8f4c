"""Optimisers: how a gradient moves the weights."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from surd.part import Part

if TYPE_CHECKING:  # recipes are read without torch, which takes a second to import
    from torch import nn
    from torch.optim import Optimizer as TorchOptimizer


@dataclass(frozen=True, kw_only=True)
class AdamW(Part, kind="adamw"):
    """Adam with decoupled weight decay. Kingma and Ba 2015; Loshchilov and Hutter 2019; the paper's β and ε.

    With `decay` at zero it is plain Adam, as in the paper.
    """

    beta1: float = 0.9
    """Memory of the mean gradient."""
    beta2: float = 0.98
    """Memory of the mean square: 1 / (1 - beta2) = 50 updates."""
    epsilon: float = 1e-9
    """Keeps rows whose gradient is nearly zero from moving by a whole step."""
    decay: float = 0.0
    """Share of each matrix taken away a step, times the rate; gains and biases are spared."""

    def build(self, model: "nn.Module") -> "TorchOptimizer":
        """The optimiser of all weights that train; its rate is set before every step by the schedule."""
        import torch

        trained = [weight for weight in model.parameters() if weight.requires_grad]
        matrices = [weight for weight in trained if weight.ndim >= 2]
        vectors = [weight for weight in trained if weight.ndim < 2]
        groups = [{"params": matrices, "weight_decay": self.decay}, {"params": vectors, "weight_decay": 0.0}]
        return torch.optim.AdamW(
            [group for group in groups if group["params"]],
            lr=0.0,
            betas=(self.beta1, self.beta2),
            eps=self.epsilon,
            fused=True,
        )


Optimizer = AdamW
