"""Why multiply embeddings by √d_model: what does the factor do beside a sinusoidal position signal?"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from surd.lab.experiment import Experiment, Findings
from surd.lab.figure import Axis, Lines, Rows, Series, beside
from surd.lab.finding import Claim, Comparison, Table, at_least, at_most, mean, near, number
from surd.lab.starts import TABLES, Start
from surd.nn.position import sinusoids
from surd.seed import generator

ROOT_HALF = math.sqrt(0.5)
Found = dict[str, list[dict[str, float]]]
"""For each table, the statistics of each seed."""


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
        found = {name: [self._sums(table, seed) for seed in seeds] for name, table in TABLES.items()}
        ratios = {
            name: {
                width: [
                    rms(TABLES[name].rows(self.tokens, width, generator(seed, name, width))) / ROOT_HALF
                    for seed in seeds
                ]
                for width in self.widths
            }
            for name in ("U(±0.05) · √d", "N(0, 1/√d) · √d")
        }
        return Findings(
            comparisons=(*self._positions(), *self._tokens(found), *self._growth(ratios)),
            claims=self._claims(found, seeds),
            figures=(self._shares(found), self._ratios(ratios), self._informative()),
            tables=(self._table(found), self._shared_table()),
            notes=(
                "Tokens and positions are read by the nearest class mean after a layer norm and noise. A better "
                "reader, which takes the other signal away first, finds more: a share is not a limit.",
            ),
        )

    def _ratio(self, start: Start, d_model: int, seed: int) -> float:
        draw = generator(seed, self.name, start.uniform, d_model)
        return rms(start.rows(self.tokens, d_model, draw)) / ROOT_HALF

    def _sums(self, start: Start, seed: int) -> dict[str, float]:
        """Every token at every position: sizes, shares, likeness, and how well each is read under noise."""
        draw = generator(seed, self.name, "sums", start.size(512), start.uniform)
        token = start.rows(self.tokens, self.d_model, draw)[:, None]
        position = signal(self.tokens, self.d_model)[None]
        both = token + position
        unlike = F.cosine_similarity(both[:-1], both[1:], dim=-1).mean().item()
        square = rms(token) ** 2
        seen = F.layer_norm(both, [self.d_model])
        noisy = seen + self.noise * torch.randn(seen.shape, generator=draw)
        return {
            "rms": math.sqrt(square),
            "ratio": math.sqrt(square) / ROOT_HALF,
            "share": square / (square + 0.5),
            "cosine": unlike,
            "token": nearest_share(noisy, seen.mean(1, keepdim=True), 0),
            "position": nearest_share(noisy, seen.mean(0, keepdim=True), 1),
        }

    def _positions(self) -> list[Comparison]:
        sizes = [
            signal(max(self.lengths), width).square().mean(-1).sqrt() for width in (min(self.widths), max(self.widths))
        ]
        furthest = max((size - ROOT_HALF).abs().max().item() for size in sizes)
        large = (signal(self.lengths[2], self.d_model).abs() > 0.5).double().mean().item()
        exact = "sin² + cos² = 1 for each pair"
        return [
            near("largest distance of a position's rms from √½, any position and width", [furthest], 0.0, 1e-6, exact),
            near("share of the signal's entries beyond ±0.5", [large], 0.615, 0.035, "between 58 and 65 %: not all"),
        ]

    def _tokens(self, found: Found) -> list[Comparison]:
        comparisons = []
        for name, runs in found.items():
            size = TABLES[name].size(self.d_model)
            share, cosine = size**2 / (size**2 + 0.5), 0.5 / (0.5 + size**2)
            shares, cosines = [run["share"] for run in runs], [run["cosine"] for run in runs]
            comparisons += [
                near(
                    f"token over position, {name}",
                    [r["ratio"] for r in runs],
                    size / ROOT_HALF,
                    size / 20,
                    "s / √½",
                ),
                near(f"share of the token, {name}", shares, share, 0.01 * share + 0.002, "s² / (s² + ½)"),
                near(f"cosine of two tokens at one position, {name}", cosines, cosine, 0.02, "½ / (½ + s²)"),
            ]
        return comparisons

    def _growth(self, ratios: dict[str, dict[int, list[float]]]) -> list[Comparison]:
        return [
            near(
                f"token over position at d_model = {width}, {name}",
                values,
                TABLES[name].size(width) / ROOT_HALF,
                TABLES[name].size(width) / 20,
                "0.0408 √d for a fixed range, √2 for N(0, 1/√d)",
            )
            for name, by_width in ratios.items()
            for width, values in by_width.items()
        ]

    def _claims(self, found: Found, seeds: Sequence[int]) -> tuple[Claim, ...]:
        def values(name: str, what: str) -> list[float]:
            return [run[what] for run in found[name]]

        keras, scaled, torch_scaled = "U(±0.05)", "U(±0.05) · √d", "N(0, 1) · √d"
        entries = [TABLES[keras].table(512, self.d_model, generator(seed, self.name, keras)) for seed in seeds]
        variances, magnitudes = (
            [table.var().item() for table in entries],
            [table.abs().mean().item() for table in entries],
        )
        return (
            Claim(
                text="Embeddings start in a range of about unit variance, so their values lie close to zero.",
                heard="a common explanation, of the default of Keras",
                comparisons=(near("variance of U(±0.05)", variances, 1.0, 0.5, "unit variance"),),
                answer=(
                    f"U(±0.05) has variance {mean(variances):.2e} and mean magnitude "
                    f"{mean(magnitudes):.3f}. Unit variance is what PyTorch's nn.Embedding starts with."
                ),
            ),
            Claim(
                text="Without the factor the positions drown the tokens.",
                heard="a common explanation",
                comparisons=(
                    at_most(f"share of the token, {keras}", values(keras, "share"), 0.1, "drowned: under a tenth"),
                    at_most(
                        "share of the token, N(0, 1)", values("N(0, 1)", "share"), 0.1, "the same, for torch's table"
                    ),
                ),
                answer=(
                    f"It depends on the table: with {keras} the token has {mean(values(keras, 'share')):.2%} of the "
                    f"variance, with N(0, 1) {mean(values('N(0, 1)', 'share')):.1%} without any factor."
                ),
            ),
            Claim(
                text="With the factor √512 tokens and positions are of one size.",
                heard="a common explanation",
                comparisons=(
                    near(f"token over position, {scaled}", values(scaled, "ratio"), 1.0, 0.25, "of one size"),
                ),
                answer=(
                    f"The ratio is {mean(values(scaled, 'ratio')):.3f} for a table of {keras} at d_model = "
                    f"{self.d_model}; it grows as √d, so this range is right near d = 600 alone. N(0, 1/√d) has √2 at "
                    "every width."
                ),
            ),
            Claim(
                text="Embeddings have to be multiplied by √d_model.",
                heard="Vaswani et al. 2017, section 3.4, taken as a rule",
                comparisons=(
                    at_least(
                        f"share of the position, {torch_scaled}",
                        [1 - share for share in values(torch_scaled, "share")],
                        0.1,
                        "a right factor leaves the position a tenth of the variance at least",
                    ),
                ),
                answer=(
                    f"Only with a table of N(0, 1/√d). With PyTorch's N(0, 1) the token becomes "
                    f"{number(mean(values(torch_scaled, 'ratio')))} times as large as the position, which keeps "
                    f"{1 - mean(values(torch_scaled, 'share')):.2%} of the variance and is read in "
                    f"{mean(values(torch_scaled, 'position')):.0%} of cases, the token in "
                    f"{mean(values(torch_scaled, 'token')):.0%}. The rule is a token of rms about 1, not a factor."
                ),
            ),
        )

    def _shares(self, found: Found) -> Rows:
        places = tuple(map(float, range(len(TABLES))))
        sizes = [table.size(self.d_model) for table in TABLES.values()]
        return Rows(
            title=f"Token over position in the sum, d_model = {self.d_model}",
            names=tuple(TABLES),
            x=Axis(label="ratio of rms", log=True),
            series=beside(
                "measured",
                places,
                [mean(run["ratio"] for run in runs) for runs in found.values()],
                [size / ROOT_HALF for size in sizes],
                0,
            ),
        )

    def _ratios(self, ratios: dict[str, dict[int, list[float]]]) -> Lines:
        return Lines(
            title="Token over position by the width of the model",
            x=Axis(label="d_model", log=True),
            y=Axis(label="ratio of rms", log=True),
            series=tuple(
                series
                for color, (name, by_width) in enumerate(ratios.items())
                for series in beside(
                    name,
                    self.widths,
                    map(mean, by_width.values()),
                    [TABLES[name].size(width) / ROOT_HALF for width in self.widths],
                    color,
                )
            ),
        )

    def _informative(self) -> Lines:
        places = tuple(map(float, self.lengths))
        parts = [informative(length, self.d_model) for length in self.lengths]
        return Lines(
            title="Most of a position is the same for all positions",
            x=Axis(label="positions", log=True),
            y=Axis(label="rms"),
            series=(
                Series(name="the whole signal", x=places, y=(ROOT_HALF,) * len(places), color=0),
                Series(name="what differs between positions", x=places, y=tuple(parts), color=1),
            ),
        )

    def _table(self, found: Found) -> Table:
        cells = ("rms", "ratio", "share", "cosine", "token", "position")
        return Table(
            caption=f"d_model = {self.d_model}, {self.tokens} tokens at {self.tokens} positions, mean over seeds",
            columns=(
                "table",
                "token rms",
                "over position",
                "token's share",
                "cosine of two tokens",
                "token read",
                "position read",
            ),
            rows=tuple(
                (name, *(number(mean(run[cell] for run in runs)) for cell in cells)) for name, runs in found.items()
            ),
        )

    def _shared_table(self) -> Table:
        rows = []
        for length in self.lengths:
            part = informative(length, self.d_model)
            rows.append((str(length), f"{1 - 2 * part**2:.2f}", f"{part:.3f}"))
        return Table(
            caption=f"The position signal of width {self.d_model}: its mean over all positions, and what differs",
            columns=("positions", "share of the mean in the energy", "rms of what differs"),
            rows=tuple(rows),
        )


def signal(length: int, d_model: int) -> Tensor:
    """The first rows of the sinusoidal signal."""
    return sinusoids(length, d_model, "interleaved", torch.float32, torch.device("cpu"))


def informative(length: int, d_model: int) -> float:
    """The rms of what is left of the signal when its mean over all positions is taken away."""
    rows = signal(length, d_model)
    return rms(rows - rows.mean(0))


def nearest_share(seen: Tensor, means: Tensor, axis: int) -> float:
    """How often the nearest class mean is the right one, for (tokens, positions, d_model) and classes along `axis`."""
    classes = means.flatten(0, 1)
    distances = classes.square().sum(-1) - 2 * seen @ classes.T
    right = torch.arange(seen.shape[axis])
    right = right[:, None] if axis == 0 else right[None]
    return (distances.argmin(-1) == right).double().mean().item()


def rms(x: Tensor) -> float:
    """The root of the mean square."""
    return x.double().square().mean().sqrt().item()
