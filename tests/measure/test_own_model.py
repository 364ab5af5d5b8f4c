"""Every site of our own model is read, where it predicts one, and agrees with what hooks of torch say."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from surd.measure.probe import probe
from surd.measure.sites import Role
from surd.models.architecture import Architecture
from surd.models.language import Language
from surd.models.seq2seq import Seq2Seq
from surd.nn.norm import NormOrder, RMSNorm
from surd.nn.position import Rotary
from surd.nn.ragged import Ragged
from surd.nn.scale import Learned
from surd.nn.score import Additive
from surd.nn.tying import Tying

VOCABULARY, LENGTH, CLOSE = 97, 10, 1e-4


def rms(x: Tensor) -> float:
    return x.detach().square().mean().sqrt().item()


def own(**changes: object) -> tuple[Seq2Seq, tuple[Ragged, Ragged], Callable[[Tensor], Tensor]]:
    small = Architecture(d_model=32, heads=4, d_k=8, d_ff=64, encoder_layers=1, decoder_layers=1)
    model = Seq2Seq(replace(small, **changes), VOCABULARY, VOCABULARY)
    source, target = (Ragged(torch.randint(4, VOCABULARY, (3 * LENGTH,)), (LENGTH,) * 3) for _ in range(2))
    labels = torch.randint(4, VOCABULARY, (3 * LENGTH,))
    return model, (source, target), lambda hidden: F.cross_entropy(model.logits(hidden), labels, reduction="sum")


VARIANTS = {
    "post": {},
    "pre": {"norm_order": NormOrder.PRE},
    "shared keys": {"key_value_heads": 2},
    "cap": {"cap": 5.0},
    "query-key norm": {"query_key_norm": RMSNorm()},
    "rotary": {"position": Rotary()},
    "learned scale": {"scale": Learned()},
}
INNER = {Role.QUERY, Role.KEY, Role.VALUE, Role.SCORE, Role.MIX, Role.BRANCH, Role.STREAM, Role.NORM}
OUTER = {
    "source": {Role.TOKEN, Role.EMBED},
    "target": {Role.TOKEN, Role.EMBED},
    "projection": {Role.HIDDEN, Role.LOGITS},
}


@pytest.mark.parametrize("name", VARIANTS)
def test_every_site_that_our_model_predicts_is_read_in_encoder_and_decoder(name: str) -> None:
    model, pair, loss = own(**VARIANTS[name])
    trace = probe(model, pair, loss)
    assert [a.relative for a in trace.attention] == pytest.approx([1.0] * 3, rel=CLOSE)
    assert [a.cross for a in trace.attention] == [False, False, True]
    assert [e.multiplier for e in trace.embeddings] == pytest.approx([32**0.5] * 2, rel=CLOSE)
    assert trace.head is not None and trace.head.multiplier == pytest.approx(1.0, rel=CLOSE)
    assert [tie.same_parameter for tie in trace.ties] == [True] * 3

    readings = {f"{reading.site.path}:{reading.site.role}": reading for reading in trace.readings}
    assert readings.keys() == model.expect(LENGTH, LENGTH).keys()
    assert all(reading.gradient for reading in readings.values())
    for part, roles in ({"encoder": INNER, "decoder": INNER} | OUTER).items():
        assert {reading.site.role for site, reading in readings.items() if site.startswith(part)} == roles


def test_additive_scores_are_read_and_their_queries_and_keys_are_not() -> None:
    model, pair, loss = own(score=Additive())
    trace = probe(model, pair, loss)
    readings = {f"{reading.site.path}:{reading.site.role}": reading for reading in trace.readings}
    predicted = model.expect(LENGTH, LENGTH).keys()
    assert readings.keys() == {site for site in predicted if not site.endswith((":query", ":key"))}
    assert not trace.attention and any("no product of activations" in unseen.reason for unseen in trace.unseen)


def test_a_decoder_alone_is_read_too() -> None:
    small = Architecture(d_model=32, heads=4, d_k=8, d_ff=64, decoder_layers=2, tying=Tying.OUTPUT)
    model = Language(small, VOCABULARY)
    tokens = Ragged(torch.randint(4, VOCABULARY, (3 * LENGTH,)), (LENGTH,) * 3)
    labels = torch.randint(4, VOCABULARY, (3 * LENGTH,))
    trace = probe(model, (tokens,), lambda hidden: F.cross_entropy(model.logits(hidden), labels))
    assert {f"{reading.site.path}:{reading.site.role}" for reading in trace.readings} == model.expect(LENGTH).keys()


@pytest.mark.parametrize("order", list(NormOrder))
def test_streams_and_norms_of_our_model_agree_with_hooks(order: NormOrder) -> None:
    model, pair, loss = own(norm_order=order, dropout=0.0, input_gradient=0.5)
    found = {reading.site.name: reading for reading in probe(model, pair, loss).readings}
    kept: dict[str, Tensor] = {}

    def keep(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Tensor, ...], out: Tensor) -> None:
            kept[name] = args[0] if order is NormOrder.POST and name.endswith("stream") else out
            kept[name].retain_grad()

        return hook

    for path, module in model.named_modules():
        if path.endswith("norm") and not isinstance(module, nn.Identity):
            module.register_forward_hook(keep(f"{path}:norm"))
        if path.endswith("_residual"):  # post-norm, the stream is what its norm reads
            (module.norm if order is NormOrder.POST else module).register_forward_hook(keep(f"{path}:stream"))
    loss(model(*pair)).backward()
    assert kept.keys() == {name for name in found if name.endswith((":norm", ":stream"))}
    for name, x in kept.items():
        assert x.grad is not None
        assert found[name].rms == pytest.approx(rms(x), rel=CLOSE), name
        assert found[name].gradient == pytest.approx(rms(x.grad), rel=CLOSE), name
