"""On what an output depends is read exactly, and what cannot be seen is said."""

import pytest
import torch
import torch.nn.functional as F
from measure import constructions as built
from measure.faults import D_MODEL, HEADS, VOCABULARY, Attention, Language, merge, split
from torch import Tensor, nn

from surd.errors import SurdError
from surd.measure.probe import probe

SCRIPTING = "ignore:.*torch.jit.* is deprecated:DeprecationWarning"


def test_causal_models_see_earlier_tokens_alone() -> None:
    (flow,) = probe(Language(built.Masked())).flows
    assert flow.own and (flow.sees_earlier, flow.sees_itself, flow.sees_later) == (True, True, False)
    assert not flow.sees_other_rows


def test_models_without_a_mask_see_later_ones() -> None:
    (flow,) = probe(Language(Attention())).flows
    assert flow.sees_later and not flow.sees_other_rows


def test_a_batch_axis_in_the_wrong_place_leaks() -> None:
    layer = nn.TransformerEncoderLayer(D_MODEL, HEADS, 64, batch_first=False)
    (flow,) = probe(nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)).flows
    assert flow.sees_other_rows and not flow.sees_earlier


def reasons(model: nn.Module) -> str:
    trace = probe(model)
    assert not trace.attention
    return " ".join(unseen.reason for unseen in trace.unseen)


def test_recurrence_mixes_without_attention() -> None:
    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.inner = nn.Embedding(VOCABULARY, D_MODEL), nn.GRU(D_MODEL, D_MODEL, batch_first=True)

        def forward(self, tokens: Tensor) -> Tensor:
            return self.inner(self.table(tokens))[0]

    assert "positions mix" in reasons(Recurrent())


def test_a_position_wise_model_does_not_mix() -> None:
    assert "do not mix" in reasons(Language(nn.Linear(D_MODEL, D_MODEL)))


def test_a_layer_between_product_and_softmax_is_named() -> None:
    class Bent(Attention):
        """What mixes the heads has two layers: no one number is its factor."""

        def __init__(self):
            super().__init__()
            self.mix = nn.Sequential(nn.Linear(HEADS, 16), nn.GELU(), nn.Linear(16, HEADS))

        def forward(self, x: Tensor) -> Tensor:
            query, key, value = (split(project(x)) for project in (self.query, self.key, self.value))
            scores = self.mix((query @ key.mT * self.factor).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
            return self.output(merge(scores.softmax(-1) @ value))

    assert "a layer stands between it and the softmax" in reasons(Language(Bent()))


def test_additive_scores_are_no_product() -> None:
    class Additive(nn.Module):
        def __init__(self):
            super().__init__()
            self.query, self.key, self.score = (nn.Linear(D_MODEL, size) for size in (D_MODEL, D_MODEL, 1))

        def forward(self, x: Tensor) -> Tensor:
            scores = self.score(torch.tanh(self.query(x)[:, :, None] + self.key(x)[:, None])).squeeze(-1)
            return F.softmax(scores, -1) @ x

    assert "no product of activations" in reasons(Language(Additive()))


def test_models_without_numbers_to_measure_are_refused() -> None:
    with torch.device("meta"):
        meta = nn.Linear(D_MODEL, D_MODEL)
    for model, reason in ((nn.LazyLinear(3), "lazy"), (meta, "meta device")):
        with pytest.raises(SurdError, match=f"weight.*{reason}"):
            probe(model)
    with torch.inference_mode():
        model = nn.Linear(D_MODEL, D_MODEL)
    with pytest.raises(SurdError, match="inference_mode"):
        probe(model)


def test_hybrid_stacks_are_counted() -> None:
    class Block(nn.Module):
        def __init__(self, attends: bool):
            super().__init__()
            self.inner = Attention() if attends else nn.Linear(D_MODEL, D_MODEL)

        def forward(self, x: Tensor) -> Tensor:
            return x + self.inner(x)

    class Stack(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList(Block(attends) for attends in (True, False, True))

        def forward(self, x: Tensor) -> Tensor:
            for block in self.blocks:
                x = block(x)
            return x

    trace = probe(Language(Stack()))
    assert any("2 of 3 blocks" in unseen.reason for unseen in trace.unseen)


@pytest.mark.filterwarnings(SCRIPTING)
def test_scripted_modules_are_named() -> None:
    attention = torch.jit.script(nn.Linear(D_MODEL, D_MODEL))
    trace = probe(Language(attention))
    assert any(unseen.what == "attention" and "scripted" in unseen.reason for unseen in trace.unseen)
