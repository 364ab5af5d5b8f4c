"""Inputs are built for whatever a forward takes, or it is said what to pass."""

import pytest
import torch
import torch.nn.functional as F
from measure.faults import D_MODEL, VOCABULARY, Attention, Language
from torch import Tensor, nn

from surd.errors import SurdError
from surd.measure.calling.building import build_inputs


class Patches(nn.Module):
    """An image cut by views, and read by a linear layer."""

    def __init__(self, channels: int = 3, patch: int = 4, across: int = 3):
        super().__init__()
        self.patch, self.entry = patch, nn.Linear(channels * patch * patch, D_MODEL)
        self.places = nn.Parameter(torch.randn(1, across * across + 1, D_MODEL))
        self.leading, self.attention = nn.Parameter(torch.zeros(1, 1, D_MODEL)), Attention()

    def forward(self, img: Tensor) -> Tensor:
        patches = F.unfold(img, self.patch, stride=self.patch).mT
        x = torch.cat([self.leading.expand(len(img), -1, -1), self.entry(patches)], 1) + self.places
        return self.attention(x)[:, 0]


@pytest.mark.parametrize("channels", [1, 3])
def test_pixels_for_patches_that_a_linear_layer_reads(channels: int) -> None:
    assert build_inputs(Patches(channels))["img"].shape == (2, channels, 12, 12)


def test_arguments_that_are_masks_are_left_out() -> None:
    class Masked(Language):
        def forward(self, tokens: Tensor, mask: Tensor | None) -> Tensor:
            assert mask is None
            return super().forward(tokens)

    built = build_inputs(Masked(Attention()))
    assert built["mask"] is None and int(built["tokens"].max()) < VOCABULARY


def test_of_several_bare_matrices_the_one_that_the_ids_fit_is_found() -> None:
    class Bare(nn.Module):
        def __init__(self):
            super().__init__()
            sizes = {"table": 97, "inner": 400}
            self.parts = nn.ParameterDict({name: torch.randn(rows, D_MODEL) for name, rows in sizes.items()})

        def forward(self, tokens: Tensor) -> Tensor:
            return self.parts["table"][tokens] @ self.parts["inner"].T

    model = Bare()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    assert int(build_inputs(model)["tokens"].max()) < 97
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_what_cannot_be_built_is_told_with_the_arguments() -> None:
    class Strange(nn.Module):
        def forward(self, first, second, third, fourth):
            return first

    with pytest.raises(SurdError, match=r"no way to fill first, second, third, fourth"):
        build_inputs(Strange())
