"""Sites: the named places where a scale can be read, and the records of what was read there."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from torch import Tensor

from surd.measure.use import Use


class Role(StrEnum):
    """What stands at a place; a closed list."""

    TOKEN = "token"
    """Looked-up rows of a table."""
    EMBED = "embed"
    """What enters the first block, or the norm before it."""
    QUERY = "query"
    """Left operand of the score product."""
    KEY = "key"
    """Right operand of the score product."""
    VALUE = "value"
    """What the weights mix."""
    SCORE = "score"
    """Input of the softmax."""
    WEIGHT = "weight"
    """Output of the softmax."""
    MIX = "mix"
    """The mixed values, before the output projection."""
    BRANCH = "branch"
    """What a sub-layer adds to the residual stream."""
    STREAM = "stream"
    """The residual stream after an addition."""
    NORM = "norm"
    """Output of a norm."""
    HIDDEN = "hidden"
    """Input of the head."""
    LOGITS = "logits"
    """What the model returns."""


@dataclass(frozen=True, kw_only=True)
class Site:
    """A place with a name: the module at work, the role, and the number of the call."""

    path: str
    """Path of the innermost module that was running."""
    role: Role
    cross: bool = False
    """Keys come from another embedding than queries."""
    call: int = 1
    """Counts the calls of a module that runs more than once."""
    file: str = ""
    line: int = 0

    @property
    def name(self) -> str:
        """`path:role#call`, the call only from the second on."""
        return f"{self.path}:{'cross ' if self.cross else ''}{self.role}" + (f"#{self.call}" if self.call > 1 else "")


def numbered(sites: Sequence[Site]) -> list[Site]:
    """Tells sites of the same path and role apart by the number of the call, in their order."""
    counts: Counter[tuple[str, Role, bool]] = Counter()
    told_apart = []
    for site in sites:
        key = (site.path, site.role, site.cross)
        counts[key] += 1
        told_apart.append(
            Site(path=site.path, role=site.role, cross=site.cross, call=counts[key], file=site.file, line=site.line)
        )
    return told_apart


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How large the numbers at a site are: root mean squares over all entries.

    Scores of hidden keys do not count; of the others, it is the deviations from the mean of their row that do, because
    a softmax feels nothing else.
    """

    site: Site
    rms: float
    gradient: float | None = None
    """Of the loss's gradient there; None without a loss, and where no gradient can be seen."""


@dataclass(frozen=True, kw_only=True)
class HeadReadings:
    """What the softmax of each head does, over rows that see at least eight keys; NaN where a head has none."""

    keys: int
    """The most that a row sees."""
    entropy: tuple[float, ...]
    """Over ln n, n the keys that a row sees, mean over rows: 1 for uniform rows, 0 for one-hot ones."""
    dead: tuple[float, ...]
    """Share of rows whose softmax has a Jacobian norm below 0.01."""
    std: tuple[float, ...]
    """Standard deviation of the logits within a row, mean over rows."""
    largest: tuple[float, ...]
    """Largest logit of a row, in absolute value, of the worst row: what hides keys is low, and so does not count."""
    shared: tuple[float, ...]
    """Mean weight of the one key that most of the head's rows favour, as an attention sink is."""
    distance: tuple[float, ...]
    """Mean weight at the one distance from query to key that most rows favour: that to the token before, for one."""


@dataclass(frozen=True, kw_only=True)
class Attention:
    """One attention: the factor that was really applied between the projections and the softmax."""

    site: Site
    """The site of its scores."""
    backend: str
    """`sdpa`, `softmax`, or the name of a kernel that was asked from outside."""
    d_k: int
    """Size of the index over which query and key are multiplied; all parts of it, where products are summed."""
    heads: int | None
    """None where the heads cannot be told from the batch."""
    factor: float | None
    """c of softmax(c · q · k); None where `reason` says why it could not be read."""
    reason: str | None
    """Why there is no factor."""
    slope: float | None
    """The kernel's own share of the factor: its argument, or what stands between product and softmax."""
    query_gain: float | None
    """The share between the query's projection (or norm) and the product."""
    key_gain: float | None
    """The same of the key."""
    qk_norm: bool
    """Query or key is normalised; the gains then begin behind the norm."""
    cap: float | None
    """c of a soft cap c · tanh(x / c) on the scores."""
    terms: tuple[float, ...]
    """The factor of every product that enters the scores, the content's own first; empty where unknown."""
    softmax_over_keys: bool
    """False when the softmax runs over another axis than the last."""
    with_terms: int | None = None
    """The same with the products of positions that are summed to it at one factor; None where there are none."""
    absorbed: bool = False
    """The queries carry the matrix of a head's keys; `d_k` is then the width of these, not that of the product."""
    by_head: tuple[float, ...] = ()
    """The factor of each head; empty where heads cannot be told apart."""
    softmax: HeadReadings | None = None
    """What the softmax of each head does; None where its scores are not known."""
    reads: tuple[float, float] | None = None
    """Root mean squares of what the projections of query and key read; None unless each is one projection."""

    @property
    def name(self) -> str:
        """The name of its site."""
        return self.site.name

    @property
    def cross(self) -> bool:
        """Keys come from another embedding than queries."""
        return self.site.cross

    @property
    def judged(self) -> bool:
        """Whether the factor could be read."""
        return self.factor is not None

    @property
    def usual(self) -> tuple[float, ...]:
        """1/√d_k; and over the sum of all terms, for these are as good as one product of so many entries."""
        return tuple(width**-0.5 for width in (self.d_k, self.with_terms) if width is not None)

    @property
    def relative(self) -> float | None:
        """c · √d_k: 1 is the scale of Vaswani et al. 2017, √d_k none at all, 1/√d_k the scale applied twice."""
        return None if self.factor is None else self.factor * self.d_k**0.5


@dataclass(frozen=True, kw_only=True)
class Embedding:
    """One look-up of tokens: by what its rows are multiplied before they enter the model."""

    site: Site
    table: str
    """Name of the parameter."""
    rows: int
    width: int
    multiplier: float | None
    """None where no candidate was a plain multiple of the rows."""
    r_squared: float
    """Share of the candidate that the multiple explains, of the best candidate seen."""
    table_std: float
    """Standard deviation of the table's entries."""
    signal_ratio: float | None
    """rms of the scaled rows over that of all that is added to them; None where nothing is."""
    token_rms: float | None = None
    """rms of the scaled rows."""
    even: bool = False
    """Whether what is added has the same length at every position, as sinusoids have."""
    token_share: float | None = None
    """Share of what differs between tokens in the mean square of what the first product reads; None if unknown."""
    place_share: float | None = None
    """Share of what differs between positions."""
    dtype: str = ""
    """Of what enters, where that is wider than the table and nobody has cast it."""
    blank: str = ""
    """Name of the positions that are added, where all that is added of them is zero."""
    still: str = ""
    """Name of a table of positions from which every place gets the same row."""
    ids: Tensor | None = field(default=None, compare=False, repr=False)
    """Those that were looked up."""


@dataclass(frozen=True, kw_only=True)
class Head:
    """The output side: from the last module's output over the pre-softmax projection to the logits."""

    site: Site
    weight: str
    """Name of the projection's matrix."""
    width: int
    """Size of the hidden states that it reads."""
    input_gain: float
    """From the nearest module output to the projection."""
    output_gain: float
    """From the projection to the returned logits."""
    cap: float | None
    """c of a soft cap on the logits."""

    @property
    def multiplier(self) -> float:
        """Both gains together."""
        return self.input_gain * self.output_gain


@dataclass(frozen=True, kw_only=True)
class Tie:
    """A pair of matrices that ran, and three facts about them."""

    first: str
    second: str
    same_parameter: bool
    same_storage: bool
    """The same numbers in memory, perhaps as two parameters."""
    equal_values: bool


@dataclass(frozen=True, kw_only=True)
class Flow:
    """What one output position of the first row depends on, seen at one source; exact zeros, no tolerance."""

    source: str
    """The table, or the input."""
    sees_earlier: bool
    sees_itself: bool
    sees_later: bool
    sees_other_rows: bool
    """Another sequence of the batch reaches this one."""
    own: bool
    """The output stands at this source's positions; to other sources "earlier" and "later" mean nothing."""


@dataclass(frozen=True, kw_only=True)
class Bare:
    """A layer that reads the stream without a norm."""

    path: str
    file: str
    line: int
    rms: float
    """Of what it reads."""
    usual: float
    """Of what the layers behind norms read, their median."""


@dataclass(frozen=True, kw_only=True)
class Chain:
    """Residual sums of one stream, which no norm interrupts."""

    sums: tuple[Reading, ...]
    """The stream after each of them, in order."""
    branches: tuple[Reading, ...]
    """What each of them adds."""


@dataclass(frozen=True, kw_only=True)
class Unseen:
    """Something that could not be looked at, and why."""

    what: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Trace:
    """What one probe saw."""

    attention: tuple[Attention, ...]
    embeddings: tuple[Embedding, ...]
    positions: str | None
    """`added`, `rotary`, `bias` (on the scores) or `none`; None where it could not be told."""
    head: Head | None
    ties: tuple[Tie, ...]
    flows: tuple[Flow, ...]
    readings: tuple[Reading, ...]
    """In the order of the forward."""
    unseen: tuple[Unseen, ...]
    features: tuple[Embedding, ...] = ()
    """What is made of inputs that are numbers before it enters the first block: rows are a layer's outputs here."""
    bare: tuple[Bare, ...] = ()
    """Layers that read the stream itself, where others read norms of it."""
    chains: tuple[Chain, ...] = ()
    """Streams, from sum to sum."""
    uses: tuple[Use, ...] = ()
    """Which part each weight plays, in the order of the forward."""
