"""Each alarm is provoked by a real training that has its fault, and no sound training raises any."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from measure.learner import Learner, batches, loss_of
from torch import Tensor, nn

from surd.data.batch import Batch
from surd.measure.calling.building import build_inputs
from surd.measure.watch import watch
from surd.measure.watching.alarms import RULES
from surd.measure.watching.vitals import Alarm, Range, Vitals
from surd.models.seq2seq import Architecture, Seq2Seq
from surd.nn.ragged import Ragged
from surd.nn.tying import Tying
from surd.training.step import train_step

CONFIGS = json.loads((Path(__file__).parents[1] / "architectures.json").read_text())
PUBLIC = ("gpt2", "llama", "bert", "t5", "gemma", "opt", "bloom", "mpt", "gpt_neo", "swin", "marian", "qwen3")


def train(
    model: nn.Module, steps: int, optimizer: torch.optim.Optimizer, every: int
) -> tuple[list[Alarm], list[Vitals]]:
    alarms: list[Alarm] = []
    told = []
    with watch(model, optimizer, every=every, tell=alarms.append) as looking:
        for tokens in batches(steps):
            loss = loss_of(model, tokens)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            told.append(looking.step(loss))
    return alarms, [vitals for vitals in told if vitals is not None]


def adam(model: nn.Module, rate: float) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=rate)


@pytest.mark.parametrize("fused", [True, False])
def test_a_healthy_training_raises_none(fused: bool) -> None:
    model = Learner(fused=fused, dropout=0.1)
    alarms, told = train(model, 200, adam(model, 3e-3), every=10)
    assert not alarms
    assert told[-1].loss is not None and told[-1].loss < 0.1
    assert [vitals.fresh for vitals in told] == [True] + [False] * 20


@pytest.mark.parametrize("tying", Tying)
def test_our_own_training_raises_none(tying: Tying, compiled: None) -> None:
    """Copying words of random letters, with the fused kernels and the sharp attention that it takes."""
    small = {"d_model": 48, "heads": 4, "d_k": 12, "d_ff": 96, "encoder_layers": 1, "decoder_layers": 1}
    model = Seq2Seq(Architecture(**small, dropout=0.05, tying=tying), 20, 20)
    optimizer, random, alarms = adam(model, 5e-3), torch.Generator().manual_seed(1), []
    with watch(model, optimizer, every=10, tell=alarms.append) as looking:
        for _ in range(200):
            words = torch.randint(3, 20, (48, 10), generator=random).tolist()
            source, labels = (Ragged.from_lists([[*word, 2] for word in words]) for _ in range(2))
            target = Ragged.from_lists([[1, *word] for word in words])
            batch = Batch(source=source, target=target, labels=labels.tokens, numbers=tuple(range(48)))
            result = train_step(model, [batch], optimizer, 1.0, 0.0)
            looking.step(result.loss)
    assert not alarms
    assert result.loss < 0.6 * 3.0


@pytest.mark.parametrize("rate", [0.1, 0.3])
def test_a_rate_that_is_too_high_is_heard_from_every_side(rate: float) -> None:
    model = Learner()
    alarms, _ = train(model, 50, adam(model, rate), every=25)
    kinds = {alarm.kind: alarm for alarm in alarms}
    assert set(kinds) == {"update-ratio", "entropy-collapse", "logit-growth", "dead-rows", "stream-growth"}
    assert kinds["update-ratio"].step == 1 and kinds["update-ratio"].value > 1
    assert kinds["logit-growth"].value > 50 and kinds["dead-rows"].value > 0.8
    assert kinds["stream-growth"].value > 100 and kinds["entropy-collapse"].value < 0.02


def test_unscaled_attention_is_heard_before_the_first_update() -> None:
    """d_k = 128 without a factor: no gradient norm shows it, the share of dead rows does."""
    model = Learner(d_k=128, scale=1.0)
    for layer in model.layers:
        for projection in (layer.query, layer.key):
            nn.init.normal_(projection.weight, std=64**-0.5)
    alarms, told = train(model, 1, adam(model, 1e-3), every=1)
    assert {alarm.kind for alarm in alarms} == {"entropy-collapse", "dead-rows"}
    assert all(alarm.step == 1 and "√d_k" in alarm.advice for alarm in alarms)
    assert min(site.dead_rows for site in told[0].attention) > 0.1
    healthy = Learner(d_k=128)
    assert not train(healthy, 1, adam(healthy, 1e-3), every=1)[0]


def test_the_same_sharpness_is_no_fault_in_a_trained_model() -> None:
    model = Learner(d_k=128, scale=1.0)
    nn.init.normal_(model.norm.weight, mean=1.0, std=0.01)  # gains that have been trained
    for layer in model.layers:
        for norm in (layer.attention_norm, layer.feedforward_norm):
            nn.init.normal_(norm.weight, mean=1.0, std=0.01)
    alarms, told = train(model, 1, adam(model, 1e-4), every=1)
    assert not alarms and not told[0].fresh


def test_what_was_trained_with_large_logits_may_keep_them() -> None:
    model = Learner()
    with torch.no_grad():
        for layer in model.layers:
            layer.query.weight *= 60
        model.norm.weight += 0.01 * torch.randn(64)
        for layer in model.layers:
            layer.attention_norm.weight += 0.01 * torch.randn(64)
            layer.feedforward_norm.weight += 0.01 * torch.randn(64)
    alarms, told = train(model, 4, adam(model, 1e-4), every=1)
    assert told[0].attention[0].largest > 50
    assert "logit-growth" not in {alarm.kind for alarm in alarms}


def test_a_stream_that_grows_without_the_rest() -> None:
    """The output matrices of each layer are doubled after every update."""
    model, alarms = Learner(layers=2), []
    optimizer = adam(model, 1e-4)
    looking = watch(model, optimizer, every=1, tell=alarms.append)
    for tokens in batches(12):
        loss = loss_of(model, tokens)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        looking.step(loss)
        with torch.no_grad():
            for layer in model.layers:
                layer.down.weight *= 2
    looking.close()
    assert [alarm.kind for alarm in alarms] == ["stream-growth"]
    assert alarms[0].expected.high == 100 and "Xiong" in alarms[0].expected.source


def test_a_stream_that_grows_in_time_with_its_table() -> None:
    model, alarms = Learner(tied=False), []
    looking = watch(model, every=1, tell=alarms.append)
    for tokens in batches(5):
        loss_of(model, tokens).backward()
        looking.before_update()
        looking.step(1.0)
        with torch.no_grad():
            model.table.weight *= 10
            model.position.weight *= 10
    looking.close()
    assert [alarm.kind for alarm in alarms] == ["stream-growth"]
    assert alarms[0].step == 4 or alarms[0].step == 5
    assert alarms[0].expected.high == 1000


def test_a_table_whose_rate_alone_is_too_high() -> None:
    model = Learner(tied=False)
    rest = [p for name, p in model.named_parameters() if name != "table.weight"]
    groups = [{"params": [model.table.weight], "lr": 1.0}, {"params": rest, "lr": 1e-3}]
    alarms, _ = train(model, 1, torch.optim.AdamW(groups), every=1)
    assert [(alarm.kind, alarm.site, alarm.others) for alarm in alarms] == [("update-ratio", "table.weight", 0)]


def test_a_broken_tie() -> None:
    model = Learner()
    optimizer = adam(model, 1e-3)
    alarms: list[Alarm] = []
    looking = watch(model, optimizer, every=1, tell=alarms.append)
    for step, tokens in enumerate(batches(3)):
        if step == 1:
            model.head.weight = nn.Parameter(model.head.weight.detach().clone())
        loss = loss_of(model, tokens)
        loss.backward()
        optimizer.step()
        looking.step(loss)
    looking.close()
    (alarm,) = alarms
    assert (alarm.kind, alarm.step, alarm.value) == ("broken-tie", 2, 2.0)
    assert alarm.site == "table.weight = head.weight"


def test_a_declared_tie_that_never_was() -> None:
    config = transformers.AutoConfig.for_model("gpt2", **CONFIGS["gpt2"]["config"])
    model = transformers.GPT2LMHeadModel(config)
    model.lm_head.weight = nn.Parameter(model.lm_head.weight.detach().clone())
    alarms, _ = observe_once(model)
    assert [alarm.kind for alarm in alarms] == ["broken-tie"]
    assert alarms[0].site == "transformer.wte.weight = lm_head.weight"


def observe_once(model: nn.Module) -> tuple[list[Alarm], Vitals]:
    """The first update of a model of the library, on random inputs; the loss is any function of its first output."""
    alarms: list[Alarm] = []
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with watch(model.train(), optimizer, tell=alarms.append) as looking:
        out = model(**build_inputs(model))
        loss = next(x for x in out.values() if isinstance(x, Tensor)).float().square().mean()
        loss.backward()
        optimizer.step()
        vitals = looking.step(loss)
    assert vitals is not None
    return alarms, vitals


@pytest.mark.parametrize("name", PUBLIC)
def test_no_false_alarm_at_the_start_of_a_public_architecture(name: str) -> None:
    transformers.logging.set_verbosity_error()
    entry: dict[str, Any] = CONFIGS[name]
    config = transformers.AutoConfig.for_model(name, **entry["config"])
    alarms, vitals = observe_once(getattr(transformers, entry["model"])(config))
    assert not alarms
    assert vitals.fresh and vitals.attention and vitals.stream and vitals.updates
    assert all(site.largest < 7 for site in vitals.attention)


def test_every_rule_names_its_source_and_what_to_do() -> None:
    model = Learner(d_k=128, scale=1.0)
    alarms, _ = train(model, 1, adam(model, 1.0), every=1)
    assert len(alarms) >= 3
    for alarm in alarms:
        assert alarm.expected.source and alarm.advice.endswith(".")
        assert f"step 1: {alarm.kind} at {alarm.site}" in str(alarm) and str(alarm.expected) in str(alarm)
    assert all((type(rule).__doc__ or "").strip() for rule in RULES)


def test_ranges_are_spelt() -> None:
    source = "someone"
    assert str(Range(high=5.0, source=source)) == "at most 5"
    assert str(Range(low=0.7, high=1.0, source=source)) == "0.7 to 1"
    assert str(Range(low=1.0, high=1.0, source=source)) == "1"
    assert str(Range(low=2.0, source=source)) == "at least 2"
    assert str(Range(source=source)) == "a finite number"
