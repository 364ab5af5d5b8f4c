"""Models of Keras as subjects of a check, saved or in memory; on torch, and refused on any other backend."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

os.environ.setdefault("KERAS_BACKEND", "torch")
keras = pytest.importorskip("keras")

from surd.api import check  # noqa: E402, Keras reads its backend when it is imported
from surd.errors import SurdError  # noqa: E402
from surd.interchange import keras as ours  # noqa: E402
from surd.interchange.subject import subject  # noqa: E402
from surd.measure.probe import probe  # noqa: E402

pytestmark = [
    pytest.mark.skipif(keras.backend.backend() != "torch", reason="Keras runs on another backend here"),
    pytest.mark.filterwarnings("ignore"),  # Keras warns of masks and of its own saving
]
WIDTH, HEADS, ROWS = 32, 4, 90


def block(x: object) -> object:
    """The one of Keras' own text classification example: post-norm."""
    layers = keras.layers
    x = layers.LayerNormalization()(x + layers.MultiHeadAttention(HEADS, WIDTH // HEADS)(x, x))
    wide = layers.Dense(4 * WIDTH, activation="relu")(x)
    return layers.LayerNormalization()(x + layers.Dense(WIDTH)(wide))


def classifier(dtype: str = "float32") -> object:
    """Ids come as floats there, where nothing else is said."""
    keras.utils.set_random_seed(0)
    ids = keras.Input((20,), dtype=dtype)
    x = keras.layers.Embedding(ROWS, WIDTH)(ids)
    x = keras.layers.GlobalAveragePooling1D()(block(block(x)))
    return keras.Model(ids, keras.layers.Dense(2)(x))


@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_attention_and_table_are_seen_by_their_names_in_keras(dtype: str) -> None:
    model = classifier(dtype)
    opened = subject(model)
    assert opened.module is not None
    trace = probe(opened.module, opened.inputs)
    first, second = trace.attention
    assert first.name.startswith("multi_head_attention") and first.name != second.name
    assert [first.relative, second.relative] == pytest.approx([1.0, 1.0])
    assert [table.multiplier for table in trace.embeddings] == pytest.approx([1.0])
    names = opened.weights.names()
    assert len(names) == len(set(names)) == len(model.variables)
    assert trace.embeddings[0].table in names


def test_a_saved_model_is_the_live_one(tmp_path: Path) -> None:
    model = classifier()
    model.save(tmp_path / "model.keras")
    saved, live = (subject(one) for one in (tmp_path / "model.keras", model))
    assert sorted(map(str, map(saved.weights.shape, saved.weights.names()))) == sorted(
        map(str, map(live.weights.shape, live.weights.names()))
    )
    assert saved.inputs is not None and saved.module is not None and live.module is not None
    (ids,) = saved.inputs
    assert torch.allclose(saved.module(ids), live.module(ids))


def test_named_inputs_are_given_by_name() -> None:
    source, target = (keras.Input((None,), dtype="int32", name=name) for name in ("source", "target"))
    read, written = keras.layers.Embedding(50, WIDTH)(source), keras.layers.Embedding(60, WIDTH)(target)
    mixed = keras.layers.MultiHeadAttention(HEADS, 8)(written, read)
    model = keras.Model({"source": source, "target": target}, keras.layers.Dense(60)(written + mixed))
    opened = subject(model)
    assert opened.module is not None
    assert [one.cross for one in probe(opened.module, opened.inputs).attention] == [True]


def test_a_layer_that_does_not_tell_its_inputs_asks_for_them() -> None:
    class Own(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.attend = keras.layers.MultiHeadAttention(HEADS, 8)

        def call(self, x: torch.Tensor) -> torch.Tensor:
            return self.attend(x, x)

    with pytest.raises(SurdError, match=r"does not tell what it is called with\..* as --batch"):
        check(Own())
    report = check(Own(), torch.randn(6, 13, WIDTH), select=["attention-scale"])
    assert report.trace is not None and [one.relative for one in report.trace.attention] == pytest.approx([1.0])


def test_a_file_may_not_bring_code(tmp_path: Path) -> None:
    ids = keras.Input((4,))
    keras.Model(ids, keras.layers.Lambda(lambda x: x * 2)(ids)).save(tmp_path / "own.keras")
    with pytest.raises(SurdError, match=r"Keras cannot open it.*package\.module:factory"):
        subject(tmp_path / "own.keras")


def test_another_backend_is_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    other = SimpleNamespace(backend=SimpleNamespace(backend=lambda: "jax"))
    monkeypatch.setattr(ours, "import_module", lambda name: other)
    with pytest.raises(SurdError, match="Keras runs on jax here; check reads Keras on torch: set KERAS_BACKEND=torch"):
        subject(classifier())
    monkeypatch.setattr(ours, "installed", lambda package: None)
    with pytest.raises(SurdError, match="pip install keras"):
        subject(classifier())


@pytest.mark.parametrize("error", [ModuleNotFoundError("No module named 'tensorflow'"), ValueError("no such backend")])
def test_a_backend_that_is_not_there_is_one_message(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(name: str) -> None:
        raise error

    monkeypatch.setattr(ours, "import_module", fails)
    monkeypatch.setenv("KERAS_BACKEND", "tensorflow")
    with pytest.raises(SurdError, match=r"cannot be imported on the backend tensorflow .*set KERAS_BACKEND=torch"):
        check(classifier())
