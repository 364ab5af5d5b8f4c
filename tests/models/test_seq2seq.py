"""The whole model: the loss it sums, the dtypes it computes in, and how it compiles."""

import math

import pytest
import torch
import torch.nn.functional as F
from parity.small import pairs, sentences, small_model

from surd.models.seq2seq import Architecture, Seq2Seq
from surd.nn.norm import NormOrder
from surd.nn.tying import Tying


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_loss_sums_over_real_target_tokens(smoothing: float) -> None:
    model = small_model(output_bias=True)
    source, target, labels = pairs(sentences(), sentences((2, 6, 3, 5)))
    sums = model.loss(source, target, labels, smoothing)
    logits = model.logits(model(source, target))
    assert sums.tokens == len(labels) == 2 + 6 + 3 + 5 + 4
    assert sums.loss.item() == pytest.approx(
        F.cross_entropy(logits, labels, label_smoothing=smoothing, reduction="sum").item(), abs=1e-10
    )
    assert sums.nll.item() == pytest.approx(F.cross_entropy(logits, labels, reduction="sum").item(), abs=1e-10)


def test_every_weight_gets_a_gradient() -> None:
    for tying in Tying:
        model = small_model(tying=tying, output_bias=True, norm_order=NormOrder.PRE)
        model.loss(*pairs(sentences(), sentences()), smoothing=0.1).loss.backward()
        for name, weight in model.named_parameters():
            assert weight.grad is not None and weight.grad.abs().max() > 0, name


def test_heads_need_not_fill_the_width() -> None:
    model = small_model(heads=3, d_k=5)
    source, target, labels = pairs(sentences(), sentences())
    model.loss(source, target, labels).loss.backward()
    assert model.encoder.layers[0].attention.query_key_value.weight.shape == (3 * 15, 32)


@pytest.mark.parametrize("order", list(NormOrder))
def test_bf16_activations_keep_fp32_weights(order: NormOrder) -> None:
    model = small_model(torch.float32, norm_order=order)
    batch = pairs(sentences(), sentences())
    exact = model.loss(*batch, smoothing=0.1)
    exact.loss.backward()
    gradients = {name: weight.grad.clone() for name, weight in model.named_parameters()}
    model.zero_grad()
    model.compute_dtype = torch.bfloat16
    assert model(*batch[:2]).dtype == torch.bfloat16
    rough = model.loss(*batch, smoothing=0.1)
    rough.loss.backward()
    assert rough.loss.item() == pytest.approx(exact.loss.item(), rel=0.02)
    for weight in model.parameters():
        assert weight.grad.dtype == torch.float32
    every = torch.cat([gradient.flatten() for gradient in gradients.values()])
    found = torch.cat([weight.grad.flatten() for weight in model.parameters()])
    assert F.cosine_similarity(every, found, dim=0) > 0.99


def test_dropout_acts_in_training_only() -> None:
    model = small_model(dropout=0.3, attention_dropout=0.2)
    source, target, _ = pairs(sentences(), sentences())
    model.eval()
    assert torch.equal(model(source, target), model(source, target))
    model.train()
    assert not torch.equal(model(source, target), model(source, target))


def test_attention_dropout_alone_has_an_effect() -> None:
    model = small_model(attention_dropout=0.2)
    source, target, _ = pairs(sentences(), sentences())
    assert not torch.equal(model(source, target), model(source, target))
    assert torch.equal(model.eval()(source, target), model(source, target))


def test_parameter_counts_by_hand() -> None:
    """The paper's base model: 63 million numbers with a joint vocabulary of 37,000."""
    d, f, v = 512, 2048, 37_000
    attention, feedforward, norm = 4 * (d * d + d), 2 * d * f + d + f, 2 * d
    layers = 6 * (attention + feedforward + 2 * norm) + 6 * (2 * attention + feedforward + 3 * norm)
    with torch.device("meta"):
        unique, saved = _unfilled(v).parameter_counts()
    assert (unique, saved) == (layers + v * d, 2 * v * d)


def _unfilled(vocabulary: int) -> Seq2Seq:
    return Seq2Seq(Architecture(), vocabulary, vocabulary)


# The compiler traces through the cache around the table of waves, as is wanted: the table becomes part of the graph.
@pytest.mark.filterwarnings("ignore:Dynamo detected a call to a `functools.lru_cache`:UserWarning")
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # the compiler does, not we
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")  # it looks, not we
@pytest.mark.usefixtures("compiled")
def test_compiled_equals_eager_and_keeps_the_tie() -> None:
    """Forward and backward; one small post-norm model, since compiling is what takes the time."""
    torch.set_num_threads(1)
    model = small_model(torch.float32, tying=Tying.ALL, encoder_layers=1, decoder_layers=1)
    source, target, labels = pairs(sentences(), sentences())
    eager = model(source, target)
    model.loss(source, target, labels).loss.backward()
    gradient = model.target.table.grad.clone()
    model.zero_grad()

    compiled = torch.compile(model)
    found = compiled(source, target)
    assert (found - eager).abs().max() <= 1e-5
    F.cross_entropy(model.logits(found), labels, reduction="sum").backward()
    assert (model.target.table.grad - gradient).abs().max() <= 1e-4 * gradient.abs().max()
    model.verify_ties()
    assert len(list(compiled.parameters())) == len(list(model.parameters()))
    with torch.no_grad():
        model.target.table.mul_(0.5)  # the compiled model reads the same Parameter
    assert (compiled(source, target) - model(source, target)).abs().max() <= 1e-5


def test_an_untrained_model_is_close_to_guessing() -> None:
    sizes = {"d_model": 64, "heads": 4, "d_k": 16, "d_ff": 128, "encoder_layers": 2, "decoder_layers": 2}
    model = Seq2Seq(Architecture(**sizes), 500, 500).eval()
    source, target, labels = pairs(*[[torch.randint(4, 500, (9,)).tolist() for _ in range(60)] for _ in range(2)])
    with torch.no_grad():
        sums = model.loss(source, target, labels)
    assert sums.nll.item() / sums.tokens == pytest.approx(math.log(500), abs=0.9)
