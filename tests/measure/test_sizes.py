"""Sizes and gradients at every site of a forward, in its order, against what torch's own hooks say."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from measure import constructions as built
from measure.faults import (
    D_MODEL,
    HEADS,
    HEALTHY,
    VOCABULARY,
    Attention,
    Language,
    Mixing,
    by_argument,
    by_product,
    merge,
    split,
)
from torch import Tensor, nn

from surd.errors import SurdError
from surd.measure.probe import probe
from surd.measure.sites import Reading

CLOSE = 1e-4


def rms(x: Tensor) -> float:
    return x.detach().square().mean().sqrt().item()


def centred(scores: Tensor) -> Tensor:
    return scores - scores.mean(-1, keepdim=True)


def labels(*shape: int) -> Tensor:
    return torch.randint(VOCABULARY, shape, generator=torch.Generator().manual_seed(3))


def by_name(readings: tuple[Reading, ...]) -> dict[str, Reading]:
    named = {reading.site.name: reading for reading in readings}
    assert len(named) == len(readings)
    return named


def summed(logits: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, -2), labels(logits.shape[:-1].numel()), reduction="sum")


# A small model, written out ------------------------------------------------------------------------------------------


class InPlace(Language):
    """Adds the branch to the stream in place."""

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.table(tokens) * self.multiplier
        x += self.attention(self.norm(x))
        return self.head(x)


@pytest.mark.parametrize("kind", [Language, InPlace])
@pytest.mark.parametrize("mixing", [by_product, by_argument])
def test_every_role_is_read_in_the_order_of_the_forward(kind: type[Language], mixing: Mixing) -> None:
    model = kind(Attention(mixing), multiplier=3.0)
    tokens = torch.randint(VOCABULARY, (6, 13))
    readings = probe(model, tokens, summed).readings

    rows = model.table(tokens)
    entering = rows * 3.0
    normed = model.norm(entering)
    inner = model.attention
    query, key, value = (split(project(normed)) for project in (inner.query, inner.key, inner.value))
    scores = query @ key.mT * HEALTHY
    mix = scores.softmax(-1) @ value
    branch = inner.output(merge(mix))
    stream = entering + branch
    logits = model.head(stream)
    expected = {
        "table:token": rows,
        "table:embed": entering,
        "norm:norm": normed,
        "attention:query": query,
        "attention:key": key,
        "attention:score": scores,
        "attention:value": value,
        "attention:mix": mix,
        "attention.output:branch": branch,
        ":stream": stream,
        "head:hidden": stream,
        "head:logits": logits,
    }
    gradients = torch.autograd.grad(summed(logits), list(expected.values()))
    found = by_name(readings)
    assert found.keys() == expected.keys()
    early, late = ("table:token", "table:embed", "norm:norm"), (":stream", "head:hidden", "head:logits")
    assert tuple(found)[:3] == early and tuple(found)[-3:] == late
    for (name, x), gradient in zip(expected.items(), gradients, strict=True):
        x = centred(x) if name == "attention:score" else x
        assert found[name].rms == pytest.approx(rms(x), rel=CLOSE), name
        assert found[name].gradient == pytest.approx(rms(gradient), rel=CLOSE), name


def test_without_a_loss_there_is_no_gradient() -> None:
    assert {reading.gradient for reading in probe(Language(Attention())).readings} == {None}


# Scores --------------------------------------------------------------------------------------------------------------


def hiding(hide: float, fused: str) -> Callable[[Tensor, Tensor, Tensor, float], Tensor]:
    """Causal attention in one of several ways."""

    def mixing(query: Tensor, key: Tensor, value: Tensor, factor: float) -> Tensor:
        later = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool).triu(1)
        if fused == "flag":
            return F.scaled_dot_product_attention(query, key, value, is_causal=True)
        if fused == "mask":
            return F.scaled_dot_product_attention(query, key, value, ~later)
        if fused == "bias":
            return F.scaled_dot_product_attention(query, key, value, torch.zeros(later.shape).masked_fill(later, hide))
        return ((query @ key.mT * factor).masked_fill(later, hide)).softmax(-1) @ value

    return mixing


WAYS = [(-torch.inf, "no"), (-1e4, "no"), (-torch.inf, "flag"), (-torch.inf, "mask"), (-1e9, "bias")]


@pytest.mark.parametrize(("hide", "fused"), WAYS)
def test_scores_are_read_without_hidden_keys_and_without_the_mean_of_their_row(hide: float, fused: str) -> None:
    inner = Attention(hiding(hide, fused))
    model = Language(inner)
    tokens = torch.randint(VOCABULARY, (6, 13))
    found = by_name(probe(model, tokens, summed).readings)["attention:score"]

    entering = model.table(tokens)
    query, key, value = (split(project(model.norm(entering))) for project in (inner.query, inner.key, inner.value))
    scores = query @ key.mT * HEALTHY
    seen = torch.ones(13, 13, dtype=torch.bool).tril()
    mix = scores.masked_fill(~seen, -torch.inf).softmax(-1) @ value
    logits = model.head(entering + inner.output(merge(mix)))
    (gradient,) = torch.autograd.grad(summed(logits), [scores])
    means = (scores * seen).sum(-1, keepdim=True) / seen.sum(-1, keepdim=True)
    assert found.rms == pytest.approx(rms((scores - means)[..., seen]), rel=CLOSE)
    assert found.gradient == pytest.approx(rms(gradient[..., seen]), rel=CLOSE)


def test_a_row_that_sees_no_key_spoils_nothing() -> None:
    def blind(query: Tensor, key: Tensor, value: Tensor, factor: float) -> Tensor:
        seen = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool)
        seen[3] = False
        return F.scaled_dot_product_attention(query, key, value, seen)

    readings = probe(Language(Attention(blind)), None, summed).readings
    assert all(reading.rms == reading.rms and 0 < (reading.gradient or 0) < 1e3 for reading in readings)


def test_keys_that_heads_share_get_the_sum_of_their_gradients() -> None:
    shared = nn.Linear(D_MODEL, D_MODEL // 2)

    def repeated(x: Tensor) -> Tensor:
        return x.repeat_interleave(2, 1)

    class Shared(Attention):
        copy = staticmethod(repeated)

        def forward(self, x: Tensor) -> Tensor:
            key = shared(x).unflatten(-1, (HEADS // 2, -1)).transpose(1, 2)
            return self.output(merge(by_product(split(self.query(x)), self.copy(key), split(self.value(x)), HEALTHY)))

    class Expanded(Shared):
        @staticmethod
        def copy(x: Tensor) -> Tensor:
            return x[:, :, None].expand(-1, -1, 2, -1, -1).reshape(x.shape[0], HEADS, *x.shape[2:])

    tokens, found = torch.randint(VOCABULARY, (6, 13)), []
    for kind in (Shared, Expanded):
        torch.manual_seed(0)
        found.append(by_name(probe(model := Language(kind()), tokens, summed).readings)["attention:key"])
    kept: list[Tensor] = []
    shared.register_full_backward_hook(lambda module, read, out: kept.append(out[0]))
    summed(model(tokens)).backward()
    assert [reading.gradient for reading in found] == pytest.approx([rms(kept[0])] * 2, rel=CLOSE)


# Gradients as training has them --------------------------------------------------------------------------------------


def test_what_only_changes_gradients_counts_in_gradients_and_not_in_scales() -> None:
    class Dampened(Language):
        def forward(self, tokens: Tensor) -> Tensor:
            x = self.norm(built.Dampened.apply(self.table(tokens)) * self.multiplier)
            return self.head(x + self.attention(x))

    trace = probe(Dampened(Attention(), 3.0), None, summed)
    found = by_name(trace.readings)
    assert trace.embeddings[0].multiplier == pytest.approx(3.0, rel=CLOSE)
    assert found["table:token"].gradient == pytest.approx(3.0 / 10 * (found["table:embed"].gradient or 0), rel=CLOSE)


def test_where_training_has_no_gradient_none_is_read() -> None:
    found = by_name(probe(Language(built.WithoutGradient()), None, summed).readings)
    assert found["attention:query"].rms > 0 and found["attention:query"].gradient is None
    assert found["head:hidden"].gradient is not None


def test_a_loss_that_does_not_depend_on_the_model_is_said() -> None:
    trace = probe(Language(Attention()), None, lambda logits: torch.zeros(()))
    assert {reading.gradient for reading in trace.readings} == {None}
    assert any(unseen.what == "gradients" for unseen in trace.unseen)


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (lambda logits: logits, r"returned \(6, 13, 97\); expected a tensor with one real number"),
        (lambda logits: logits.sum().to(torch.complex64), "expected a tensor with one real number"),
        (lambda logits: 3.0, "returned float; expected a tensor"),
        (lambda logits: logits.missing, r"the loss raised AttributeError.*\(6, 13, 97\)"),
    ],
)
def test_a_loss_that_is_none_is_refused(loss: Callable[[Tensor], Tensor], message: str) -> None:
    with pytest.raises(SurdError, match=message):
        probe(Language(Attention()), None, loss)
