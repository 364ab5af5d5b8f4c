"""Settings read from plain values: what comes back, and that every fault is told with its path."""

from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from surd.errors import Faults, SurdError
from surd.part import Part, members, structure, unstructure


@dataclass(frozen=True, kw_only=True)
class Plain(Part, kind="plain"):
    factor: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Learned(Part, kind="learned"):
    start: int

    def __post_init__(self) -> None:
        if self.start < 0:
            raise SurdError("start: must not be negative")


Scale = Plain | Learned


@dataclass(frozen=True, kw_only=True)
class Open(Part):
    """A family that grows by subclasses."""


@dataclass(frozen=True, kw_only=True)
class Near(Open, kind="near"):
    pass


@dataclass(frozen=True, kw_only=True)
class Far(Open, kind="far"):
    distance: int = 9


class Order(Enum):
    POST = "post"
    PRE = "pre"


@dataclass(frozen=True, kw_only=True)
class Model:
    heads: int = 8
    scale: Scale = Plain()
    order: Order = Order.POST
    place: Open = Near()

    def __post_init__(self) -> None:
        if self.heads == 13:
            raise ValueError("heads: 13 is unlucky")
        if self.heads == 14:
            raise Faults(["heads: too many", "no such combination: 14 and post"])


@dataclass(frozen=True, kw_only=True)
class Tree:
    seed: int
    model: Model = Model()
    sizes: tuple[int, ...] = ()
    pair: tuple[int, str] = (1, "a")
    name: str | None = None
    share: float | int = 0.5
    tying: Literal["none", "all"] = "none"
    maybe: Scale | None = None
    many: tuple[Scale, ...] = ()
    folder: Path = Path(".")
    shown: bool = False
    notes: list[str] = field(default_factory=list)


def faults(mapping: object, path: str = "") -> list[str]:
    with pytest.raises(Faults) as caught:
        structure(Tree, mapping, path)  # type: ignore[arg-type]
    return list(caught.value.lines)


models = st.builds(
    Model,
    heads=st.integers(1, 12),
    scale=st.builds(Plain, factor=st.floats(0, 9)) | st.builds(Learned, start=st.integers(0, 9)),
    order=st.sampled_from(Order),
    place=st.just(Near()) | st.builds(Far, distance=st.integers()),
)
trees = st.builds(
    Tree,
    seed=st.integers(),
    model=models,
    sizes=st.lists(st.integers()).map(tuple),
    name=st.none() | st.text(),
    share=st.integers() | st.floats(allow_nan=False),
    maybe=st.none() | st.just(Plain(factor=2.0)),
    many=st.lists(st.just(Plain()) | st.just(Learned(start=1))).map(tuple),
    shown=st.booleans(),
    notes=st.lists(st.text()),
)


@given(trees)
def test_what_is_written_is_read_back_equal(tree: Tree) -> None:
    read = structure(Tree, unstructure(tree))
    assert read == tree
    assert type(read.share) is type(tree.share), "a share and a number of pairs mean different things"


def test_all_faults_are_told_at_once_with_paths_and_what_was_meant() -> None:
    lines = faults(
        {
            "model": {"heads": "eight", "scal": 1, "scale": {"kind": "lerned"}, "order": "pra", "place": {"kind": "x"}},
            "sizes": [1, "two"],
            "name": 3,
            "share": "half",
            "tying": "al",
            "maybe": {"kind": "learned", "start": "s", "extra": 1},
            "many": [{"kind": "plain"}, {"kind": "plain", "facto": 2}],
            "sed": 1,
        }
    )
    assert sorted(lines) == sorted(
        [
            "seed: missing",
            'model.heads: expected a whole number, found "eight"',
            'model.scal: unknown setting "scal". Did you mean "scale"? There is: heads, scale, order, place.',
            'model.scale.kind: unknown kind "lerned". Did you mean "learned"? There is: plain, learned.',
            'model.order: unknown value "pra". Did you mean "pre"? There is: post, pre.',
            'model.place.kind: unknown kind "x". There is: near, far.',
            'sizes[1]: expected a whole number, found "two"',
            "name: expected text, found 3",
            'share: expected a number, found "half"',
            'tying: unknown value "al". Did you mean "all"? There is: none, all.',
            'maybe.start: expected a whole number, found "s"',
            'maybe.extra: unknown setting "extra". There is: start.',
            'many[1].facto: unknown setting "facto". Did you mean "factor"? There is: factor.',
            'sed: unknown setting "sed". Did you mean "seed"? There is: seed, model, sizes, pair, name, share, tying,'
            " maybe, many, folder, shown, notes.",
        ]
    )


@pytest.mark.parametrize(
    ("mapping", "line"),
    [
        ({"seed": True}, "seed: expected a whole number, found true"),
        ({"seed": 1.0}, "seed: expected a whole number, found 1.0"),
        ({"seed": 1, "model": 3}, "model: expected a table, found 3"),
        ({"seed": 1, "sizes": "12"}, 'sizes: expected a list, found "12"'),
        ({"seed": 1, "pair": [1]}, "pair: expected a list of 2, found 1"),
        ({"seed": 1, "shown": 1}, "shown: expected true or false, found 1"),
        ({"seed": 1, "tying": 0}, 'tying: expected one of "none", "all", found 0'),
        ({"seed": 1, "maybe": 4}, "maybe: expected a table or the name of a kind, found 4"),
        ({"seed": 1, "model": {"scale": {}}}, "model.scale.kind: missing. There is: plain, learned."),
        ({"seed": 1, "model": {"scale": {"kind": "learned", "start": -1}}}, "model.scale.start: must not be negative"),
        ({"seed": 1, "model": {"heads": 13}}, "model.heads: 13 is unlucky"),
        (3, "expected a table, found 3"),
    ],
)
def test_one_fault(mapping: object, line: str) -> None:
    assert faults(mapping) == [line]


def test_a_class_may_refuse_with_several_lines_under_a_path() -> None:
    lines = faults({"seed": 1, "model": {"heads": 14}}, "recipe")
    assert lines == ["recipe.model.heads: too many", "recipe.model: no such combination: 14 and post"]


def test_a_kind_by_itself_stands_for_its_defaults() -> None:
    assert structure(Model, {"scale": "plain", "place": "far"}) == Model(place=Far())


def test_a_family_of_one_needs_no_kind_and_writes_it() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Single:
        scale: Plain = Plain()

    assert structure(Single, {"scale": {"factor": 2}}) == Single(scale=Plain(factor=2.0))
    assert unstructure(Single()) == {"scale": {"kind": "plain", "factor": 1.0}}


def test_members_of_each_way_to_declare_a_family() -> None:
    assert members(Scale) == {"plain": Plain, "learned": Learned}
    assert members(Plain) == {"plain": Plain}
    assert members(Open) == {"near": Near, "far": Far}
