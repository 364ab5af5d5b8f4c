"""The ledger: predicted beside measured at every site, of our own models and of anybody's."""

from pathlib import Path

import pytest
import torch
from torch import nn

import surd
from surd.measure.ledger import Side, ledger
from surd.models.architecture import Architecture
from surd.models.language import Language
from surd.models.seq2seq import Seq2Seq
from surd.nn.norm import NormOrder
from surd.nn.tying import Tying

SHAPE = {"d_model": 128, "heads": 4, "d_k": 32, "d_ff": 256, "encoder_layers": 2, "decoder_layers": 2}


def translator(**changes: object) -> Seq2Seq:
    torch.manual_seed(0)
    return Seq2Seq(Architecture(**{**SHAPE, **changes}), 1000, 1000)


def language(**changes: object) -> Language:
    torch.manual_seed(0)
    return Language(Architecture(**{**SHAPE, "tying": Tying.OUTPUT, **changes}), 1000)


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("build", [translator, language])
@pytest.mark.parametrize("order", NormOrder)
def test_every_site_that_is_predicted_is_measured(build, order: NormOrder) -> None:
    found = ledger(build(norm_order=order))
    assert len(found.entries) > 20
    for entry in found.entries:
        for side in (entry.forward, entry.backward):
            assert side.predicted is not None and side.measured is not None, entry
        assert 0.7 < entry.forward.ratio < 1.4, entry
        assert 0.5 < entry.backward.ratio < 2, entry
        if entry.forward.exact:
            assert abs(entry.forward.ratio - 1) < 0.05, entry
    assert not found.unseen


@pytest.mark.usefixtures("compiled")
def test_one_wrong_scale_stands_out() -> None:
    model = translator(tying=Tying.NONE)
    with torch.no_grad():
        model.target.table.mul_(3)
    found = ledger(model)
    assert found["target:token"].forward.ratio == pytest.approx(3, rel=0.05)
    assert {"target:token", "target:embed"} <= {entry.site for entry in found.off}
    assert not found["source:embed"].forward.off


@pytest.mark.usefixtures("compiled")
def test_a_table_is_printed_and_shown_in_a_notebook() -> None:
    found = ledger(language())
    lines = str(found).splitlines()
    assert lines[0].split() == ["site", "forward", "measured", "ratio", "backward", "measured", "ratio"]
    assert len(lines) == len(found.entries) + 1
    assert len({len(line) for line in lines}) == 1
    assert "≈" in str(found)
    html = found._repr_html_()
    assert html.count("<tr>") == len(lines)
    assert "text:embed" in html
    assert found.summary().startswith("rms embed ")


def test_a_foreign_model_is_measured_without_predictions() -> None:
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    model = nn.Sequential(nn.Embedding(50, 16), layer, nn.Linear(16, 50))
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    found = ledger(model, torch.randint(50, (4, 7)))
    assert any(entry.site.endswith(":score") for entry in found.entries)
    assert all(entry.forward.predicted is None and entry.forward.ratio is None for entry in found.entries)
    assert any(entry.backward.measured for entry in found.entries)
    assert "–" in str(found)
    assert all(torch.equal(before[name], weight) for name, weight in model.state_dict().items())
    assert all(weight.grad is None for weight in model.parameters())


def test_a_ratio_needs_both() -> None:
    assert Side(predicted=2.0, measured=3.0, exact=True).ratio == 1.5
    assert Side(predicted=2.0, measured=3.0, exact=True).off
    assert not Side(predicted=2.0, measured=2.2, exact=False).off
    assert Side(predicted=None, measured=3.0, exact=False).ratio is None
    assert Side(predicted=2.0, measured=None, exact=False).cells() == ("≈2", "–", "–")


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(surd.SurdError, match="run"):
        surd.ledger(tmp_path)
