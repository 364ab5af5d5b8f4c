"""Why multiply embeddings by √d_model: what does the factor do beside a sinusoidal position signal?"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from surd.interchange.installed import TABLES
from surd.lab.experiment import Experiment, Findings
from surd.lab.figure import Axis, Figure, Lines, Rows, curves, marks
from surd.lab.finding import Claim, Comparison, Table, at_least, at_most, near, not_measured, number
from surd.lab.samples import Sizes, Statistics, average, each, mean, rms
from surd.lab.starts import KERAS, KERAS_ROOT, PAPER, STARTS, TORCH, TORCH_ROOT
from surd.nn.position import Sinusoidal, angles
from surd.seed import derive, generator

ROOT_HALF = math.sqrt(0.5)
Found = dict[str, list[Statistics]]
"""For each start, the statistics of each seed."""


@dataclass(frozen=True, kw_only=True)
class EmbeddingAndPosition(Experiment):
    """Adds sinusoidal positions to six tables, and takes the share of the token in the sum."""

    prediction: ClassVar[str] = (
        "Sinusoidal positions have rms √½ at every position and width. Beside them a token has the rms of its table "
        "times the factor; its share of the sum's variance is s² / (s² + ½). So √d_model is right for a table of "
        "N(0, 1/√d), drowns positions beside one of N(0, 1), and rescues one of fixed small range near d = 600 only."
    )
    sources: ClassVar[tuple[str, ...]] = (
        "Vaswani et al. 2017 (arXiv 1706.03762): the factor in section 3.4, without a reason; positions in 3.5.",
        "sin² + cos² = 1 for each pair of features, so the mean square of a row is ½.",
        "For independent tokens of rms s at one position: mean cosine ½ / (½ + s²).",
    )

    d_model: int = 512
    """Width for the comparison of tables."""
    widths: tuple[int, ...] = (64, 128, 256, 512, 1024, 2048)
    """Widths for the growth of the ratio."""
    lengths: tuple[int, ...] = (16, 50, 128, 512, 2048)
    """Positions that there are, for the part of the signal that all share."""
    tokens: int = 64
    """Tokens, and positions beside them."""
    noise: float = 0.1
    """Rms of the noise under which tokens and positions are read."""

    def measure(self, seeds: Sequence[int]) -> Findings:
        found = {name: [self._sums(name, seed) for seed in seeds] for name in STARTS}
        ratios = {
            name: {width: [self._ratio(name, width, seed) for seed in seeds] for width in self.widths}
            for name in (KERAS_ROOT, PAPER)
        }
        return Findings(
            comparisons=(*self._positions(), *self._tokens(found), *self._growth(ratios), *self._installed(seeds)),
            claims=(*self._of_tables(seeds), *self._of_factors(found)),
            figures=tuple(self._figures(found, ratios)),
            tables=(self._table(found),),
            notes=(
                "Tokens and positions are read by the nearest class mean after a layer norm and noise. A better "
                "reader, which takes the other signal away first, finds more: a share is not a limit.",
            ),
            versions={table.package: table.version for table in TABLES.values() if table.version},
        )

    def _ratio(self, name: str, d_model: int, seed: int) -> float:
        return rms(STARTS[name].rows(self.tokens, d_model, generator(seed, self.name, name, d_model))) / ROOT_HALF

    def _sums(self, name: str, seed: int) -> Statistics:
        """Every token at every position: sizes, shares, likeness, and how well each is read under noise."""
        draw = generator(seed, self.name, "sums", name)
        token = STARTS[name].rows(self.tokens, self.d_model, draw)
        both = token[:, None] + signal(self.tokens, self.d_model)
        seen = F.layer_norm(both, [self.d_model])
        noisy = seen + self.noise * torch.randn(seen.shape, generator=draw)
        size = rms(token)
        return {
            "rms": size,
            "ratio": size / ROOT_HALF,
            "share": size**2 / (size**2 + 0.5),
            "cosine": F.cosine_similarity(both[:-1], both[1:], dim=-1).mean().item(),
            "token": nearest_share(noisy, seen.mean(1), 0),
            "position": nearest_share(noisy, seen.mean(0), 1),
        }

    def _positions(self) -> Iterator[Comparison]:
        sizes = [signal(max(self.lengths), width).square().mean(-1).sqrt() for width in self.widths]
        furthest = max((size - ROOT_HALF).abs().max().item() for size in sizes)
        name = "largest distance of a position's rms from √½, any position and width"
        yield near(name, [furthest], 0.0, 1e-6, "sin² + cos² = 1 for each pair")
        for length in self.lengths:
            share, name = (
                1 - 2 * informative(length, self.d_model) ** 2,
                f"share that {length} positions have in common",
            )
            yield near(name, [share], common(length, self.d_model), 0.001, "energy of the mean: Dirichlet's kernel")

    def _tokens(self, found: Found) -> Iterator[Comparison]:
        for name, runs in found.items():
            size = STARTS[name].size(self.d_model)
            share, cosine = size**2 / (size**2 + 0.5), 0.5 / (0.5 + size**2)
            ratio, source = size / ROOT_HALF, "s² / (s² + ½)"
            yield near(f"token over position, {name}", each(runs, "ratio"), ratio, ratio / 20, "s / √½")
            yield near(f"share of the token, {name}", each(runs, "share"), share, 0.05 * share * (1 - share), source)
            yield near(
                f"cosine of two tokens at one position, {name}", each(runs, "cosine"), cosine, 0.02, "½ / (½ + s²)"
            )

    def _growth(self, ratios: Mapping[str, Mapping[int, list[float]]]) -> Iterator[Comparison]:
        source = "0.0408 √d for a fixed range, √2 for N(0, 1/√d)"
        for name, by_width in ratios.items():
            for width, values in by_width.items():
                law = STARTS[name].size(width) / ROOT_HALF
                yield near(f"token over position, {name}, d_model = {width}", values, law, law / 20, source)

    def _installed(self, seeds: Sequence[int]) -> Iterator[Comparison]:
        for name, std, law in (
            ("keras.layers.Embedding", 0.05 / math.sqrt(3), "U(±0.05) has 0.05 / √3"),
            ("torch.nn.Embedding", 1.0, "N(0, 1)"),
        ):
            table, quantity = TABLES[name], f"std of {name}"
            if table.version is None:
                yield not_measured(quantity, std, std / 50, law, f"{table.package} is not installed")
            else:
                tables = [table.build(512, self.d_model, derive(seed, self.name, name)) for seed in seeds]
                yield near(quantity, [one.std().item() for one in tables], std, std / 50, law)

    def _of_tables(self, seeds: Sequence[int]) -> Iterator[Claim]:
        tables = [STARTS[KERAS].rows(512, self.d_model, generator(seed, self.name, "table")) for seed in seeds]
        variances, sizes = [table.var().item() for table in tables], [table.abs().mean().item() for table in tables]
        large = (signal(128, self.d_model).abs() > 0.5).double().mean().item()
        yield Claim(
            text="Embeddings start in a range of about unit variance, so their values lie close to zero.",
            heard="a common explanation, of the default of Keras",
            comparisons=(near(f"variance of {KERAS}", variances, 1.0, 0.5, "unit variance"),),
            answer=(
                f"{KERAS} has variance {mean(variances):.2e}. Unit variance is what PyTorch's nn.Embedding starts with."
            ),
        )
        yield Claim(
            text="The values of a fresh embedding are about 0.01 to 0.05 in size.",
            heard="a common explanation, of the default of Keras",
            comparisons=(near(f"mean magnitude of {KERAS}", sizes, 0.03, 0.02, "0.01 to 0.05"),),
            answer=f"It is {mean(sizes):.4f} there, 0.05 / 2; a table of N(0, 1) has 0.8.",
        )
        yield Claim(
            text="The values of sinusoidal positions lie at 0.5 to 1 in size.",
            heard="a common explanation",
            comparisons=(at_least("share of the entries beyond ±0.5", [large], 0.9, "nearly all of them"),),
            answer=(
                f"{large:.0%} of the first 128 positions' entries do; the rms of a position is √½ exactly. Much of it "
                "is the same for all positions, so what tells them apart is smaller still."
            ),
        )

    def _of_factors(self, found: Found) -> Iterator[Claim]:
        keras, scaled, torch_scaled = found[KERAS], found[KERAS_ROOT], found[TORCH_ROOT]
        plain = each(found[TORCH], "share")
        yield Claim(
            text="Without the factor the positions drown the tokens.",
            heard="a common explanation",
            comparisons=(
                at_most(f"share of the token, {KERAS}", each(keras, "share"), 0.1, "drowned: under a tenth"),
                at_most(f"share of the token, {TORCH}", plain, 0.1, "the same, for torch's table"),
            ),
            answer=(
                f"It depends on the table: with {KERAS} the token has {average(keras, 'share'):.2%} of the "
                f"variance, with {TORCH} {mean(plain):.1%} without any factor."
            ),
        )
        yield Claim(
            text="With the factor √512 tokens and positions are of one size.",
            heard="a common explanation",
            comparisons=(near(f"token over position, {KERAS_ROOT}", each(scaled, "ratio"), 1.0, 0.25, "of one size"),),
            answer=(
                f"The ratio is {average(scaled, 'ratio'):.3f} for a table of {KERAS} at d_model = {self.d_model}; it "
                "grows as √d, so this range is right near d = 600 alone. N(0, 1/√d) has √2 at every width."
            ),
        )
        yield Claim(
            text="Embeddings have to be multiplied by √d_model.",
            heard="Vaswani et al. 2017, section 3.4, taken as a rule",
            comparisons=(
                at_least(
                    f"share of the position, {TORCH_ROOT}",
                    [1 - share for share in each(torch_scaled, "share")],
                    0.1,
                    "a right factor leaves the position a tenth of the variance at least",
                ),
            ),
            answer=(
                f"Only with a table of N(0, 1/√d). With PyTorch's N(0, 1) the token becomes "
                f"{number(average(torch_scaled, 'ratio'))} times as large as the position, which keeps "
                f"{1 - average(torch_scaled, 'share'):.2%} of the variance and is read in "
                f"{average(torch_scaled, 'position'):.0%} of cases, the token in {average(torch_scaled, 'token'):.0%}. "
                "The rule is a token of rms about 1, not a factor."
            ),
        )

    def _figures(self, found: Found, ratios: Mapping[str, Sizes]) -> Iterator[Figure]:
        names = tuple(STARTS)
        expected = {name: start.size(self.d_model) / ROOT_HALF for name, start in STARTS.items()}
        yield Rows(
            title=f"Token over position in the sum, d_model = {self.d_model}",
            names=names,
            x=Axis(label="ratio of rms", log=True),
            series=marks("ratio", names, {name: each(runs, "ratio") for name, runs in found.items()}, expected),
        )
        yield Lines(
            title="Token over position by the width of the model",
            x=Axis(label="d_model", log=True),
            y=Axis(label="ratio of rms", log=True),
            series=curves(ratios, {name: lambda d, name=name: STARTS[name].size(d) / ROOT_HALF for name in ratios}),
        )
        yield Lines(
            title="Much of a position is the same for all positions",
            x=Axis(label="positions", log=True),
            y=Axis(label="rms of what differs"),
            series=curves(
                {
                    f"d = {width}": {length: [informative(length, width)] for length in self.lengths}
                    for width in (128, self.d_model)
                },
                {
                    f"d = {width}": lambda length, width=width: math.sqrt((1 - common(int(length), width)) / 2)
                    for width in (128, self.d_model)
                },
            ),
        )

    def _table(self, found: Found) -> Table:
        cells = {
            "rms": "token rms",
            "ratio": "over position",
            "share": "token's share",
            "cosine": "cosine of two tokens",
            "token": "token read",
            "position": "position read",
        }
        return Table(
            caption=f"d_model = {self.d_model}, {self.tokens} tokens at {self.tokens} positions, mean over seeds",
            columns=("table", *cells.values()),
            rows=tuple((name, *(number(average(runs, cell)) for cell in cells)) for name, runs in found.items()),
        )


def signal(length: int, d_model: int) -> Tensor:
    """The first rows of the sinusoidal signal."""
    return Sinusoidal()(length, d_model, torch.float32, torch.device("cpu"))


def informative(length: int, d_model: int) -> float:
    """The rms of what is left of the signal when its mean over all positions is taken away."""
    rows = signal(length, d_model)
    return rms(rows - rows.mean(0))


def common(length: int, d_model: int) -> float:
    """The energy of the mean over positions, over that of a position: the mean of (sin(Tω/2) / (T sin(ω/2)))²."""
    half = angles(2, d_model, 10_000.0)[1] / 2
    return ((length * half).sin() / (length * half.sin())).square().mean().item()


def nearest_share(seen: Tensor, classes: Tensor, axis: int) -> float:
    """How often the nearest class mean is the right one, for (tokens, positions, d_model) and classes along `axis`."""
    nearest = (classes.square().sum(-1) - 2 * seen @ classes.T).argmin(-1)
    right = torch.arange(len(classes))
    return (nearest == (right[:, None] if axis == 0 else right)).double().mean().item()
