"""Residual streams: those that grow with every layer, and stacks whose readers get the stream as it is."""

from math import sqrt

import pytest
import torch
import transformers
from audit.asked import asked, found, silent
from audit.languages import Flat, Modules
from torch import Tensor, nn

from surd.api import check
from surd.audit.finding import Severity
from surd.audit.specimen import encoder, language_model

RULE, WIDTH, DEPTH = "residual-growth", 64, 6
TOKENS = (torch.randint(4, 500, (6, 13), generator=torch.Generator().manual_seed(2)),)


@pytest.fixture(autouse=True)
def seeded() -> None:
    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)


class Layers(nn.Module):
    """Branches of one matrix each: (1 + g²) times the variance a layer, where no norm stands before them."""

    def __init__(self, gain: float, norm: type[nn.Module]) -> None:
        super().__init__()
        self.table = nn.Embedding(500, WIDTH)
        self.norms = nn.ModuleList(norm(WIDTH) for _ in range(DEPTH))
        self.mix = nn.MultiheadAttention(WIDTH, 4, batch_first=True)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(DEPTH))
        self.last, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 500)
        for layer in self.layers:
            nn.init.orthogonal_(layer.weight, gain=gain)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.table(tokens)
        y = self.last(x)
        x = x + self.mix(y, y, y, need_weights=False)[0]
        for norm, layer in zip(self.norms, self.layers, strict=True):
            x = x + layer(norm(x))
        return self.head(self.last(x))


class FlatLayers(Flat):
    """The same, by products of raw matrices; branches are added times one."""

    def __init__(self, gain: float, normed: bool) -> None:
        super().__init__()
        self.normed = normed
        self.stack = nn.ParameterList(nn.init.orthogonal_(torch.empty(WIDTH, WIDTH), gain=gain) for _ in range(DEPTH))

    def readout(self, h: Tensor) -> Tensor:
        for matrix in self.stack:
            read = torch.nn.functional.rms_norm(h, (WIDTH,), eps=1e-6) if self.normed else h
            h = read @ matrix + 1.0 * h
        return super().readout(torch.nn.functional.rms_norm(h, (WIDTH,), eps=1e-6))


GAIN = 2.0


@pytest.mark.parametrize("model", [lambda: Layers(GAIN, nn.Identity), lambda: FlatLayers(GAIN, normed=False)])
def test_every_layer_multiplies(model) -> None:
    finding = found(model(), RULE, inputs=TOKENS)
    assert finding.severity is Severity.WARNING
    sums = int(finding.message.split(" over ")[1].split(" sums")[0])
    assert sums in (DEPTH, DEPTH + 1)
    assert finding.measured == pytest.approx(sqrt(1 + GAIN**2) ** (DEPTH if sums > DEPTH else DEPTH - 1), rel=0.15)


@pytest.mark.parametrize(
    "model", [lambda: Layers(GAIN, nn.LayerNorm), lambda: FlatLayers(GAIN, normed=True), Modules, Flat, language_model]
)
def test_behind_norms_it_grows_like_a_root(model) -> None:
    silent(model(), RULE, inputs=TOKENS)


def test_beside_a_small_table_growth_is_a_note() -> None:
    """Gemma's: branches of one size soon outgrow rows of 0.02, and every reader has its norm."""
    model = Layers(1.0, nn.LayerNorm)
    nn.init.normal_(model.table.weight, std=0.001)
    nn.init.zeros_(model.mix.out_proj.weight)
    report = silent(model, RULE, inputs=TOKENS)
    assert [one.severity for one in report.findings] == [Severity.NOTE]


class Head(nn.Module):
    """A post-norm block as courses write it: the second sum is of another stream than the first."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.mix = nn.Embedding(500, WIDTH), nn.MultiheadAttention(WIDTH, 4, batch_first=True)
        self.one, self.two, self.feed = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)
        self.last = nn.Linear(WIDTH, 2)
        nn.init.uniform_(self.table.weight, -0.05, 0.05)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.table(tokens)
        x = self.one(x + self.mix(x, x, x, need_weights=False)[0])
        x = self.two(x + self.feed(x))
        return self.last(x.mean(1))


@pytest.mark.parametrize("model", [Head, encoder])
def test_post_norm_does_not_grow(model) -> None:
    assert silent(model(), RULE, inputs=TOKENS).findings == ()


class Untied(Modules):
    """Without a last norm, the head reads the sum of all layers."""

    def hidden(self, tokens: Tensor) -> Tensor:
        kept, self.norm = self.norm, nn.Identity()
        try:
            return super().hidden(tokens)
        finally:
            self.norm = kept


def test_a_pre_norm_stack_ends_in_a_norm() -> None:
    model = Untied()
    nn.init.normal_(model.table.weight, std=3.0)
    finding = found(model, RULE, inputs=TOKENS)
    assert (finding.severity, finding.site) == (Severity.WARNING, "head")
    assert finding.measured == pytest.approx(3.0, rel=0.05)
    silent(Modules(), RULE, inputs=TOKENS)


def test_hugging_face() -> None:
    sizes = {"n_embd": 48, "n_layer": 4, "n_head": 4, "vocab_size": 300, "n_positions": 32}
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes))
    assert check(model, select=[RULE]).failing == ()
    for block in model.transformer.h:
        block.ln_1, block.ln_2 = nn.Identity(), nn.Identity()
        for matrix in (block.attn.c_attn, block.attn.c_proj, block.mlp.c_fc, block.mlp.c_proj):
            nn.init.normal_(matrix.weight, std=3 / sqrt(matrix.weight.shape[0]))
    (finding,) = check(model, select=[RULE]).failing
    assert finding.severity is Severity.WARNING


def test_batch_norms_behind_layers_are_no_norms_of_the_stream() -> None:
    """LeViT's layers end in batch norms, and its last ones read the stream of a stage as it is."""
    sizes = {"image_size": 64, "hidden_sizes": [32, 48, 64], "num_attention_heads": [2, 3, 4], "depths": [1, 1, 1]}
    config = transformers.LevitConfig(**sizes, key_dim=[8, 8, 8])
    assert check(transformers.LevitForImageClassification(config), select=[RULE]).failing == ()


def test_trained_models_are_skipped() -> None:
    report = asked(Layers(GAIN, nn.Identity), RULE, inputs=TOKENS, trained=True)
    assert report.findings == () and [one.rule for one in report.skipped] == [RULE]


def test_a_head_that_reads_a_small_stream_is_a_note() -> None:
    """AlphaFold's masked-MSA head; what starts small behind the stack is learnt."""
    model = Untied()
    nn.init.normal_(model.table.weight, std=0.1)
    assert [one.severity for one in silent(model, RULE, inputs=TOKENS).findings] == [Severity.NOTE]


def test_gains_that_are_wrong_explain_what_is_large_beside_them() -> None:
    model = Untied()
    nn.init.normal_(model.table.weight, std=1.0)
    for norm in (part for part in model.modules() if isinstance(part, nn.LayerNorm)):
        nn.init.normal_(norm.weight, std=0.02)
    (finding,) = check(model, *TOKENS, select=[RULE, "norm-gain-convention"]).failing
    assert finding.rule == "norm-gain-convention"


def test_logits_of_a_stream_that_explodes_follow_from_it() -> None:
    class Attending(Layers):
        def forward(self, tokens: Tensor) -> Tensor:
            x = self.table(tokens)
            for layer in self.layers:
                x = x + layer(x)
                x = x + 0.1 * self.mix(x, x, x, need_weights=False)[0]
            return self.head(self.last(x))

    report = check(Attending(12.0, nn.Identity), *TOKENS, select=[RULE, "attention-logit-max"])
    assert [one.rule for one in report.failing] == [RULE]
    assert [one.rule for one in report.failing[0].consequences] == ["attention-logit-max"]


class Convolved(nn.Module):
    """A stack of convolutions, whose norms stand behind them, and a pre-norm stack that goes on with it."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv1d(8, WIDTH, 3, padding=1)
        self.convolutions = nn.ModuleList(nn.Conv1d(WIDTH, WIDTH, 3, padding=1) for _ in range(2))
        self.batch_norms = nn.ModuleList(nn.BatchNorm1d(WIDTH) for _ in range(2))
        layers = [nn.TransformerEncoderLayer(WIDTH, 4, 96, 0.0, batch_first=True, norm_first=True) for _ in range(3)]
        self.encoder, self.head = nn.Sequential(*layers, nn.LayerNorm(WIDTH)), nn.Linear(WIDTH, 5)

    def forward(self, signal: Tensor) -> Tensor:
        x = 5 * self.first(signal)
        for convolution, norm in zip(self.convolutions, self.batch_norms, strict=True):
            x = x + norm(convolution(x))
        return self.head(self.encoder(x.mT).mean(1))


def test_convolutions_before_the_stack_are_not_held_against_it() -> None:
    assert silent(Convolved(), RULE, inputs=(torch.randn(3, 8, 20),)).findings == ()
