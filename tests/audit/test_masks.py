"""Masks that hide nothing, hide the wrong side, or do not fit their type, and the numbers they leave."""

import json
import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
import transformers
from audit.asked import asked, found, silent
from measure.faults import D_MODEL, HEADS, HEALTHY, Attention, Language, merge, split
from torch import Tensor, nn

from surd.audit.declared import Declared, Stated
from surd.audit.finding import Severity

LENGTH, PADS = 13, 4
ABOVE = 0.5
"""The mean of (n - 1 - t) / n over the queries t = 0 … n - 2 that have a future."""


@pytest.fixture(autouse=True)
def seeded() -> None:
    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)


def later(x: Tensor) -> Tensor:
    return torch.ones(x.shape[-2], x.shape[-1], dtype=torch.bool).triu(1)


def filled(scores: Tensor, hidden: Tensor, fill: float) -> Tensor:
    return scores.masked_fill(hidden, fill)


def chosen(scores: Tensor, hidden: Tensor, fill: float) -> Tensor:
    return torch.where(hidden, torch.tensor(fill), scores)


def summed(scores: Tensor, hidden: Tensor, fill: float) -> Tensor:
    return scores + hidden * fill


def blended(scores: Tensor, hidden: Tensor, fill: float) -> Tensor:
    """As GPT-2 was released."""
    keep = (~hidden).float()
    return scores * keep + fill * (1 - keep)


WAYS = pytest.mark.parametrize("way", [filled, chosen, summed, blended])


class Masked(Attention):
    """Small queries, so that all scores are nearly 0; where `hides` says so, a score is hidden with `fill`."""

    def __init__(self, way=filled, fill=-torch.inf, hides=later, shift=0.0):
        super().__init__()
        self.way, self.fill, self.hides, self.shift = way, fill, hides, shift
        with torch.no_grad():
            self.query.weight.mul_(1e-3)
            self.query.bias.zero_()

    def forward(self, x: Tensor, hidden: Tensor | None = None) -> Tensor:
        q, k, v = (split(project(x)) for project in (self.query, self.key, self.value))
        scores = q @ k.mT * HEALTHY + self.shift
        scores = self.way(scores, self.hides(scores) if hidden is None else hidden, self.fill)
        return self.output(merge(scores.softmax(-1) @ v))


@WAYS
@pytest.mark.parametrize("fill", [1e-9, -1e-12])
def test_a_fill_that_hides_nothing(way, fill):
    finding = found(Language(Masked(way, fill)), "mask-leak")
    assert finding.severity is Severity.FAULT and finding.site == "attention:score"
    assert finding.measured == pytest.approx(ABOVE, rel=0.05)


@WAYS
def test_it_lets_the_future_in(way):
    report = asked(Language(Masked(way, 1e-9)), "mask-leak", "causality")
    assert [one.rule for one in report.failing] == ["mask-leak"]
    assert [one.rule for one in report.failing[0].consequences] == ["causality"]
    assert 0 < report.failing[0].consequences[0].measured < 1


@WAYS
@pytest.mark.parametrize("rule", ["mask-leak", "mask-fill", "causality"])
def test_a_fill_that_hides(way, rule):
    silent(Language(Masked(way, -1e9)), rule)


class Padded(nn.Module):
    """An encoder that is told of padding, by 1 at real tokens, or True at padding."""

    def __init__(self, fill: float, marks_pads: bool):
        super().__init__()
        self.table, self.attention = nn.Embedding(97, D_MODEL), Masked(fill=fill)
        self.marks_pads, self.norm = marks_pads, nn.LayerNorm(D_MODEL)

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        x = self.table(tokens)
        if mask is None:
            mask = torch.zeros_like(tokens) if self.marks_pads else torch.ones_like(tokens)
        hidden = mask.bool() if self.marks_pads else mask == 0
        return x + self.attention(self.norm(x), hidden[:, None, None, :])


class FromTokens(nn.Module):
    """Padding is known by its id."""

    def __init__(self, fill: float):
        super().__init__()
        self.table, self.attention = nn.Embedding(97, D_MODEL, padding_idx=0), Masked(fill=fill)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.table(tokens)
        return x + self.attention(x, (tokens == 0)[:, None, None, :])


class WithAnAxisOfOne(FromTokens):
    """Ids are (batch, length, features), and there is one feature."""

    def forward(self, tokens: Tensor) -> Tensor:
        return super().forward(tokens[..., 0])


def test_ids_with_an_axis_of_one():
    tokens = (torch.randint(1, 97, (6, LENGTH, 1)),)
    silent(WithAnAxisOfOne(-1e9), "mask-leak", inputs=tokens)
    assert found(WithAnAxisOfOne(1e-9), "mask-leak", inputs=tokens).measured == pytest.approx(PADS / LENGTH, rel=0.05)


PADDED = [lambda fill: Padded(fill, False), lambda fill: Padded(fill, True), FromTokens]


@pytest.mark.parametrize("make", PADDED)
def test_padding_that_is_seen(make):
    assert found(make(1e-9), "mask-leak").measured == pytest.approx(PADS / LENGTH, rel=0.05)
    silent(make(-1e9), "mask-leak")
    silent(make(-1e9), "causality")


class Towers(nn.Module):
    """torch's encoder and decoder, each told of padding by an argument of its own, or only the encoder."""

    def __init__(self, towers: int) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(97, D_MODEL), nn.Embedding(97, D_MODEL)
        self.both = nn.Transformer(D_MODEL, HEADS, 1, 1, 2 * D_MODEL, dropout=0.0, batch_first=True)
        self.head = nn.Linear(D_MODEL, 97)
        self.told = {"src_key_padding_mask": True, "memory_key_padding_mask": towers > 1}

    def run(self, source: Tensor, target: Tensor, **masks: Tensor | None) -> Tensor:
        told = {name: masks.get(name) for name, on in self.told.items() if on}
        causal = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        return self.head(self.both(self.source(source), self.target(target), tgt_mask=causal, **told))


class Apart(Towers):
    def forward(self, source, target, src_key_padding_mask=None, memory_key_padding_mask=None):
        masks = {"src_key_padding_mask": src_key_padding_mask, "memory_key_padding_mask": memory_key_padding_mask}
        return self.run(source, target, **masks)


class Together(Towers):
    def forward(self, source, target, source_padding=None):
        return self.run(source, target, src_key_padding_mask=source_padding, memory_key_padding_mask=source_padding)


@pytest.mark.parametrize("style", [Apart, Together])
def test_each_tower_is_told_of_padding(style):
    silent(style(2), "mask-leak")
    silent(nn.Transformer(D_MODEL, HEADS, 1, 1, 2 * D_MODEL, batch_first=True), "mask-leak")
    finding = found(style(1), "mask-leak")
    assert finding.sites == ("both.decoder.layers.0.multihead_attn:score",)
    assert finding.measured == pytest.approx(PADS / LENGTH, rel=0.2)


class Tiled(nn.Module):
    """Heads stand before the batch; the mask of each row is repeated instead of the whole batch tiled."""

    def __init__(self, right: bool):
        super().__init__()
        self.right, self.table, self.parts = right, nn.Embedding(97, D_MODEL), Attention()

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        x = self.table(tokens)
        q, k, v = (torch.cat(p(x).chunk(HEADS, -1)) for p in (self.parts.query, self.parts.key, self.parts.value))
        scores = q @ k.mT * HEALTHY
        if mask is not None:
            all_heads = mask.repeat(HEADS, 1) if self.right else mask.repeat_interleave(HEADS, 0)
            scores = scores.masked_fill(all_heads[:, None, :] == 0, -1e9)
        return x + self.parts.output(torch.cat((scores.softmax(-1) @ v).chunk(HEADS), -1))


def test_masks_of_other_samples():
    finding = found(Tiled(False), "mask-leak")
    assert finding.quantity.startswith("relative change of samples without padding") and finding.measured > 1e-4
    silent(Tiled(True), "mask-leak")


@pytest.mark.parametrize("many", [False, True])
def test_samples_beside_each_other_in_a_batch_that_is_given_with_its_masks(many):
    """Padding of other samples, a triangle and padding in one mask: nothing passes from one sample to another."""

    class Given(Padded):
        def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
            x = self.table(tokens)
            return x + self.attention(self.norm(x), ~mask[:, None])

    tokens, real = torch.randint(97, (4, LENGTH)), torch.ones(4, 1, LENGTH, dtype=torch.bool)
    real[1, :, -5:], real[2, :, -2:] = False, False
    mask = real & torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril() if many else real
    silent(Given(-1e9, False), "mask-leak", inputs=(tokens, mask))
    beside = asked(Tiled(False), "mask-leak", inputs={"tokens": tokens, "mask": real[:, 0].long()})
    assert [one.rule for one in beside.failing] == ["mask-leak"]


class Weak(nn.Module):
    """What is 0 in the mask is to be hidden by a number that is added, without one not at all."""

    def __init__(self, lowest: float | None) -> None:
        super().__init__()
        self.lowest, self.table, self.parts = lowest, nn.Embedding(97, D_MODEL), Masked(lambda s, hidden, fill: s)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        x, parts = self.table(input_ids), self.parts
        q, k, v = (split(project(x)) for project in (parts.query, parts.key, parts.value))
        scores = torch.einsum("nhqd,nhkd->nhqk", q, k) * HEALTHY
        if attention_mask is not None and self.lowest is not None:
            scores = scores + (1.0 - attention_mask.unsqueeze(1).unsqueeze(1).to(scores.dtype)) * self.lowest
        return x + parts.output(merge(torch.einsum("nhqk,nhkd->nhqd", scores.softmax(-1), v)))


def test_a_mask_that_is_taken_and_not_used():
    finding = found(Weak(None), "mask-leak")
    assert finding.measured == pytest.approx(PADS / LENGTH, rel=0.05) and "changes nothing" in finding.message


@pytest.mark.parametrize("lowest", [-1.0, -3.0])
def test_a_mask_that_lowers_too_little(lowest):
    kept = PADS * math.exp(lowest)
    assert found(Weak(lowest), "mask-leak").measured == pytest.approx(kept / (LENGTH - PADS + kept), rel=0.05)
    silent(Weak(-1e4), "mask-leak")


class ByIds(Towers):
    """Padding is known by its id; the decoder is told of it again, or is not."""

    def __init__(self, towers: int) -> None:
        super().__init__(towers)
        self.source = nn.Embedding(97, D_MODEL, padding_idx=3)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        pads = source == 3
        return self.run(source, target, src_key_padding_mask=pads, memory_key_padding_mask=pads)


def test_a_decoder_that_is_not_told_of_ids_of_padding():
    source, target = torch.randint(4, 97, (3, 10)), torch.randint(4, 97, (3, 7))
    source[2, -3:] = 3
    silent(ByIds(2), "mask-leak", inputs=(source, target))
    finding = found(ByIds(1), "mask-leak", inputs=(source, target))
    assert finding.site == "both.decoder.layers.0.multihead_attn:score"
    assert finding.measured == pytest.approx(3 / 10, rel=0.2)


def over(scores: Tensor) -> Tensor:
    return later(scores).mT


def wide(scores: Tensor) -> Tensor:
    return torch.ones(scores.shape[-2:], dtype=torch.bool).triu(2)


@pytest.mark.parametrize("hides, told", [(over, "turned over"), (wide, "too wide")])
def test_triangles_that_are_drawn_wrong(hides, told):
    finding = found(Language(Masked(hides=hides)), "causality")
    assert finding.measured > 0 and finding.expected == 0 and told in finding.message


class Kernel(Attention):
    def __init__(self, visible: Tensor | None, causal: bool = False):
        super().__init__()
        self.visible, self.causal = visible, causal

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (split(project(x)) for project in (self.query, self.key, self.value))
        mix = F.scaled_dot_product_attention(q, k, v, attn_mask=self.visible, is_causal=self.causal)
        return self.output(merge(mix))


class Torch(nn.Module):
    def __init__(self, hidden: Tensor):
        super().__init__()
        self.hidden, self.attention = hidden, nn.MultiheadAttention(D_MODEL, HEADS, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x, x, x, attn_mask=self.hidden, need_weights=False)[0]


def test_inverted_for_the_kernel_and_for_torch():
    triangle = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
    for model in (Kernel(triangle.mT), Torch(triangle.tril(-1))):
        assert "turned over" in found(Language(model), "causality").message
    for model in (Kernel(triangle), Kernel(None, causal=True), Torch(~triangle)):
        silent(Language(model), "causality")


def test_no_mask_where_the_loss_asks_for_the_next_token():
    tokens = torch.randint(97, (6, LENGTH))

    def loss(logits: Tensor) -> Tensor:
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())

    model = Language(Attention())
    assert "next" in found(model, "causality", inputs=(tokens,), loss=loss).source
    stated = Declared(causal=Stated(True, "config.is_decoder"))
    assert found(model, "causality", declared=stated).source == "config.is_decoder"
    unknown = silent(model, "causality")  # nobody says that it is causal: a masked language model looks like this
    assert "nothing says" in unknown.skipped[0].reason
    silent(model, "causality", inputs=(tokens,), loss=lambda x: F.cross_entropy(x.flatten(0, 1), tokens.flatten()))


def test_a_decoder_of_another_sequence_without_a_mask():
    model = Translating()
    inputs = (torch.randint(97, (6, 11)), torch.randint(97, (6, LENGTH)))
    finding = found(model, "causality", inputs=inputs)
    assert (finding.severity, finding.site) == (Severity.WARNING, "own:score")
    assert finding.measured > 0.01 and finding.expected == 0
    model.own = Masked()
    silent(model, "causality", inputs=inputs)


class Translating(nn.Module):
    """An encoder and a decoder of one layer each."""

    def __init__(self):
        super().__init__()
        self.source, self.target = nn.Embedding(97, D_MODEL), nn.Embedding(97, D_MODEL)
        self.reads, self.own, self.asks = Attention(), Attention(), nn.Linear(D_MODEL, D_MODEL)
        self.head = nn.Linear(D_MODEL, 97)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        memory, x = self.reads(self.source(source)), self.target(target)
        x = x + self.own(x)
        x = x + F.scaled_dot_product_attention(self.asks(x), memory, memory)
        return self.head(x)


def test_one_layer_without_its_mask():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = Masked(), Attention()

        def forward(self, x: Tensor) -> Tensor:
            return x + self.second(x + self.first(x))

    finding = found(Language(Two()), "causality")
    assert finding.site == "attention.second:score"


def test_a_causal_mask_that_one_layer_lacks_is_no_leak_of_padding():
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.head = nn.Embedding(97, D_MODEL), nn.Linear(D_MODEL, 97)
            self.first, self.second = Masked(fill=-1e9), Attention()

        def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
            x = self.table(input_ids)
            hidden = later(x.new_zeros(input_ids.shape[1], input_ids.shape[1]))
            if attention_mask is not None:
                hidden = hidden | (attention_mask == 0)[:, None, None, :]
            x = x + self.first(x, hidden)
            return self.head(x + self.second(x))

    report = asked(Both(), "causality", "mask-leak")
    assert [one.rule for one in report.failing] == ["causality"] and not report.failing[0].consequences


def test_a_decoder_with_an_encoders_mask():
    sizes = {"hidden_size": 48, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 96}
    stated = Declared(causal=Stated(True, "BertLMHeadModel"))
    for decoder in (True, False):
        config = transformers.BertConfig(vocab_size=97, is_decoder=decoder, **sizes)
        model = transformers.BertLMHeadModel(config)
        report = asked(model, "causality", declared=stated)
        assert [one.measured > 0 for one in report.failing] == ([] if decoder else [True])


def test_scores_below_the_fill():
    """As in a head of Pythia: real scores near -110000, hidden ones at -100000."""
    finding = found(Language(Masked(fill=-1e5, shift=-1.1e5)), "mask-fill")
    assert finding.severity is Severity.FAULT
    assert finding.measured == pytest.approx(-1e4, rel=0.01) and finding.low == 30
    report = asked(Language(Masked(fill=-1e5, shift=-1.1e5)), "mask-fill", "mask-leak", "causality")
    assert [one.rule for one in report.failing] == ["mask-fill"]


def test_a_gap_that_is_small_only():
    """Hidden keys get e^-20 each: measured, and below what fp32 resolves."""
    finding = found(Language(Masked(fill=-40.0, shift=-20.0)), "mask-fill")
    assert finding.severity is Severity.WARNING and finding.measured == pytest.approx(20, rel=0.01)


def by_sum(scores: Tensor, hidden: Tensor, fill: float) -> Tensor:
    lowest = torch.finfo(scores.dtype).min
    far = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(9)
    return scores + (hidden.to(scores.dtype) * lowest + far.to(scores.dtype) * lowest)


def test_two_lowest_masks_added():
    cells = sum(range(LENGTH - 9 + 1))
    finding = found(Language(Masked(by_sum)), "mask-fill")
    assert finding.measured == cells and finding.expected == 0
    silent(Language(Masked(lambda scores, hidden, fill: filled(scores, hidden, -1e30))), "mask-fill")


def test_the_lowest_added_to_scores_of_half_precision():
    """-65504 - 40 is beyond what fp16 holds."""
    model = Language(Masked(lambda s, hidden, _: s + hidden.to(s.dtype) * torch.finfo(s.dtype).min, shift=-40.0)).half()
    assert found(model, "mask-fill").measured == 6 * HEADS * LENGTH * (LENGTH - 1) // 2


def test_a_constant_that_half_precision_cannot_hold():
    """Heard only with padding: 1 · -1e5 is -inf in fp16, and so is the fp32 number made half."""

    class Cast(Weak):
        def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
            x, parts = self.table(input_ids), self.parts
            mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
            q, k, v = (split(project(x)) for project in (parts.query, parts.key, parts.value))
            added = ((1.0 - mask[:, None, None, :].float()) * self.lowest).to(q.dtype)
            return x + parts.output(merge(((q @ k.mT) * HEALTHY + added).softmax(-1) @ v))

    for model in (Weak(-1e5), Cast(-1e5)):
        finding = found(model.half(), "mask-fill")
        assert finding.measured == pytest.approx(1e5) and finding.expected == 65504
    silent(Weak(-1e4).half(), "mask-fill")


def test_a_fill_that_half_precision_cannot_hold():
    finding = found(Language(Masked(fill=-1e8)).half(), "mask-fill")
    assert finding.measured == 1e8 and finding.expected == 65504
    stated = Declared(dtype=Stated("float16", "config.torch_dtype"))
    assert found(Language(Masked(fill=-1e8)), "mask-fill", declared=stated).measured == 1e8
    silent(Language(Masked(fill=-1e4)), "mask-fill", declared=stated)
    silent(Language(Masked(fill=torch.finfo(torch.float32).min)), "mask-fill", declared=stated)


@pytest.mark.parametrize("bias", ["distance", "window"])
@pytest.mark.parametrize("rule", ["mask-leak", "mask-fill", "causality"])
def test_biases_and_windows_are_no_leak(bias, rule):
    places = torch.arange(LENGTH)
    distance = (places[:, None] - places).abs()

    def way(scores: Tensor, hidden: Tensor, fill: float) -> Tensor:
        return scores - 0.3 * distance if bias == "distance" else scores.masked_fill(distance > 3, -torch.inf)

    assert asked(Language(Masked(way)), rule).findings == ()


@pytest.mark.parametrize("name", ["gpt2", "bert", "t5", "gemma2", "gpt_neo", "bloom"])
def test_public_models_are_silent(name):
    model = small(name)
    for rule in ("mask-leak", "mask-fill", "causality"):
        silent(model, rule)


def small(name: str) -> nn.Module:
    entry = json.loads((Path(__file__).parents[1] / "measure/architectures.json").read_text())[name]
    return getattr(transformers, entry["model"])(transformers.AutoConfig.for_model(name, **entry["config"]))


def test_a_mask_of_sound_is_none_of_the_decoders_tokens():
    """The source is sound, (batch, samples): what its mask says is not said of the tokens that are written."""
    sizes = {"hidden_size": 48, "intermediate_size": 64, "vocab_size": 131, "decoder_start_token_id": 2}
    report = asked(transformers.MoonshineModel(transformers.MoonshineConfig(**sizes)), "mask-leak")
    assert report.findings == (), str(report)


def test_a_loss_before_the_logits_is_no_output_of_a_row():
    class Labelled(Language):
        def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, labels: Tensor | None = None):
            logits = super().forward(input_ids)
            return {"loss": F.cross_entropy(logits.flatten(0, 1), labels.flatten()), "logits": logits}

    tokens = torch.randint(97, (6, LENGTH))
    report = asked(Labelled(Masked()), "mask-leak", "causality", inputs={"input_ids": tokens, "labels": tokens.clone()})
    assert "causality" in report.passed
