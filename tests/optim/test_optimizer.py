"""The optimiser: plain Adam without decay, decay on matrices only."""

import torch
from torch import nn

from surd.optim.optimizer import AdamW


def test_without_decay_it_is_adam() -> None:
    torch.manual_seed(0)
    ours, theirs = nn.Linear(5, 3), nn.Linear(5, 3)
    theirs.load_state_dict(ours.state_dict())
    settings = AdamW()
    optimizers = [
        settings.build(ours),
        torch.optim.Adam(theirs.parameters(), betas=(settings.beta1, settings.beta2), eps=settings.epsilon),
    ]
    x = torch.randn(7, 5)
    for step in range(1, 6):
        for model, optimizer in zip((ours, theirs), optimizers, strict=True):
            for group in optimizer.param_groups:
                group["lr"] = 0.01 * step
            optimizer.zero_grad()
            model(x).square().sum().backward()
            optimizer.step()
    torch.testing.assert_close(ours.weight, theirs.weight)
    torch.testing.assert_close(ours.bias, theirs.bias)


def test_decay_shrinks_matrices_and_spares_gains_and_biases() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    optimizer = AdamW(decay=0.5).build(model)
    for group in optimizer.param_groups:
        group["lr"] = 0.1
    for weight in model.parameters():
        weight.grad = torch.zeros_like(weight)
    optimizer.step()
    for name, weight in model.named_parameters():
        torch.testing.assert_close(weight, before[name] * (0.95 if weight.ndim == 2 else 1.0))
