"""Attention factors: what really stands between the projections of queries and keys and the softmax."""

from dataclasses import dataclass, replace
from itertools import takewhile

from torch.autograd.graph import Node

from surd.measure.reading.talking import mixers, slope_behind
from surd.measure.reading.widths import Term, absorbed, content_parts, with_positions
from surd.measure.sites import Attention, Role, Site, Unseen, numbered
from surd.measure.trace.calls import Fused, Product, Seen, Size, Softmax
from surd.measure.trace.gains import Gain, gain, hand_written_norms
from surd.measure.trace.graph import walk_back
from surd.measure.trace.heads import by_head, of_heads, read_softmax
from surd.measure.trace.notes import Notes

NO_GRAPH = "no gradient leads back from here: only the kernel's own argument is known"
NO_BEGINNING = "no projection, norm or embedding was found behind query and key"
ONE_KEY = "no row sees two keys: its softmax is 1 whatever the factor"
OPAQUE = "the kernel does not answer like softmax(c · q · k)"


def read_attention(notes: Notes) -> tuple[list[Attention], list[Size], list[Unseen]]:
    """Every attention of the forward, in order; its parts; and every softmax that could not be looked at."""
    found: list[_Found] = []
    unseen = []
    read: set[Node] = set()
    for call in notes.attention:
        if isinstance(call, Fused):
            found.append(_fused(notes, call))
        elif call.scores.place is None:
            unseen.append(Unseen(what=f"{call.where.path}:{Role.SCORE}", reason=NO_GRAPH))
        elif products := products_behind(notes, call):
            # The scores of a layer before may be added, as a bias that was attended by already.
            own = [product for product in products if product.place.node not in read] or products
            found.append(_softmax(notes, call, [*own, *(one for one in products if one not in own)], len(own)))
            read |= {product.place.node for product in products}
        elif call.mixed:  # additive scores: no factor stands in them
            site = Site(path=call.where.path, role=Role.SCORE, file=call.where.file, line=call.where.line)
            found.append(_Found(None, site, _mixing(call)))
    paths = _told_apart(found)
    sites = numbered([replace(one.site, path=path) for one, path in zip(found, paths, strict=True)])
    named = [replace(x.attention, site=site) for x, site in zip(found, sites, strict=True) if x.attention is not None]
    sizes = [
        Size(site=replace(site, role=role), seen=seen)
        for site, one in zip(sites, found, strict=True)
        for role, seen in one.parts
    ]
    unseen += [Unseen(what=a.name, reason=a.reason) for a in named if a.reason is not None]
    return named, sizes, unseen


@dataclass(frozen=True)
class _Found:
    attention: Attention | None
    site: Site
    parts: list[tuple[Role, Seen]]
    beneath: str = ""
    """The module that holds the projections of query and key."""


def _fused(notes: Notes, call: Fused) -> _Found:
    query, key = _gain(notes, call.query), _gain(notes, call.key)
    reason = OPAQUE if call.scale is None else _no_gain(call.query, query) or _no_gain(call.key, key)
    if reason is None and call.key.shape[-2] < 2 and call.backend == "sdpa":
        reason = ONE_KEY
    whole = (
        None if reason or query is None or key is None or call.scale is None else query.value * key.value * call.scale
    )
    heads = call.query.shape[-3] if len(call.query.shape) == 4 and call.backend == "sdpa" else None
    attention = Attention(
        site=_site(notes, call, call.query, call.key),
        backend=call.backend,
        d_k=call.query.shape[-1],
        heads=heads,
        factor=whole,
        reason=reason,
        slope=call.scale,
        query_gain=query.value if query else None,
        key_gain=key.value if key else None,
        qk_norm=_normed(notes, query, key),
        cap=None,
        terms=() if whole is None else (whole,),
        softmax_over_keys=True,
        by_head=() if reason or call.scale is None else by_head(heads, query, key, None, call.scale),
        softmax=None if call.rows is None else of_heads(call.rows, heads),
        reads=_reads(notes, query, key),
    )
    parts = [(Role.QUERY, call.query), (Role.KEY, call.key), (Role.VALUE, call.value)]
    parts += [(role, seen) for role, seen in ((Role.SCORE, call.scores), (Role.MIX, call.mix)) if seen is not None]
    return _Found(attention, attention.site, parts, _beneath(notes, query, key))


def _softmax(notes: Notes, call: Softmax, products: list[Product], fresh: int) -> _Found:
    """The first products, `fresh` ones, were read by no softmax before."""
    terms, caps, summed = [], [], []
    query = key = steepest = None
    reason = raw = None
    whole = False
    for product in products:
        sides = _gain(notes, product.left), _gain(notes, product.right)
        steep, talks = slope_behind(notes, call, product)
        if product is products[0]:
            query, key = sides
            reason = _no_gain(product.left, query) or _no_gain(product.right, key) or (None if steep else ONE_KEY)
            raw = steep.value * product.alpha if steep else None
            steepest = replace(steep, pulled=product.returned(steep.pulled)) if steep and not talks else None
            whole = talks or product.stride is None
        if steep and sides[0] and sides[1]:
            terms.append(steep.value * product.alpha * sides[0].value * sides[1].value)
            caps.append(steep.cap)
            if product in products[:fresh]:
                of_content = all(behind(notes, x) & notes.content for x in (product.left, product.right))
                wider = absorbed(notes, sides[0], sides[1])
                width = product.d_k - (wider or 0)
                summed.append(Term(width, wider is not None, terms[-1], steep.vector != 0, of_content))
    content = products[0]
    cut = content_parts(summed) if summed and not reason else []
    carries = any(one.absorbed for one in cut)
    heads = _heads(notes, content)
    attention = Attention(
        site=_site(notes, call, content.left, content.right),
        backend="softmax",
        d_k=sum(one.width for one in cut) or content.d_k,
        with_terms=with_positions(summed, cut),
        absorbed=carries,
        heads=heads,
        factor=None if reason else terms[0],
        reason=reason,
        slope=raw,
        query_gain=query.value if query else None,
        key_gain=key.value if key else None,
        qk_norm=not carries and _normed(notes, query, key),
        cap=caps[0] if caps else None,
        terms=tuple(terms),
        softmax_over_keys=call.axis == call.values.dim() - 1,
        by_head=() if reason or whole else by_head(heads, query, key, steepest, content.alpha, len(content.shape)),
        softmax=read_softmax(call.values, heads, call.axis),
        reads=_reads(notes, query, key),
    )
    parts = [(Role.QUERY, content.left), (Role.KEY, content.right), *_mixing(call)]
    return _Found(attention, attention.site, parts, _beneath(notes, query, key))


def _mixing(call: Softmax) -> list[tuple[Role, Seen]]:
    """What a softmax reads, what it weighs first, and what comes of that."""
    first = call.mixed[0] if call.mixed else ()
    return [(Role.SCORE, call.scores), *zip((Role.VALUE, Role.MIX), first, strict=False)]


def sides(notes: Notes, call: Fused | Softmax) -> tuple[Seen, Seen] | None:
    """Query and key of an attention; None for a softmax over something else."""
    if isinstance(call, Fused):
        return call.query, call.key
    products = products_behind(notes, call)
    return (products[0].left, products[0].right) if products else None


def behind(notes: Notes, operand: Seen) -> frozenset[Node]:
    """The looked-up rows and inputs from which an operand comes."""
    return frozenset() if operand.place is None else notes.origins.of(operand.place.node)


def products_behind(notes: Notes, call: Softmax) -> list[Product]:
    """The products of activations that are summed into a softmax's input; the content's own first.

    None for a router, a pooling or additive scores: these read a projection.
    """
    if call.scores.place is None:
        return []
    stops = {node: product.place for node, product in notes.products.items()}
    mixing = mixers(notes)
    stops |= {node: projection.place for node, projection in notes.projections.items() if node not in mixing}
    met, _ = walk_back([call.scores.place.node], {**stops, **notes.origins.places})
    products = [notes.products[node] for node in met if node in notes.products]
    return sorted(products, key=lambda p: not all(behind(notes, x) & notes.content for x in (p.left, p.right)))


def _gain(notes: Notes, operand: Seen) -> Gain | None:
    """Over the nearest projection, or over the norm that comes after it."""
    if operand.place is None:
        return None
    stops = notes.beginnings
    return gain(operand.place, {**stops, **hand_written_norms(operand.place, stops)})


def _reads(notes: Notes, query: Gain | None, key: Gain | None) -> tuple[float, float] | None:
    """How large the inputs of both projections are: a factor may stand before them."""
    sizes = [
        notes.projections[gained.stops[0]].read.rms
        for gained in (query, key)
        if gained is not None and len(gained.stops) == 1 and gained.stops[0] in notes.projections
    ]
    return (sizes[0], sizes[1]) if len(sizes) == 2 else None


def _no_gain(operand: Seen, found: Gain | None) -> str | None:
    if operand.place is None:
        return NO_GRAPH
    return NO_BEGINNING if found is None else None


def _normed(notes: Notes, *gains: Gain | None) -> bool:
    """Whether a gain begins at a norm: at one that is named, or at one that is no named beginning at all."""
    named = notes.beginnings
    stops = [stop for found in gains if found is not None for stop in found.stops]
    return any(stop in notes.norms or (stop not in named and stop.name().startswith(("Mul", "Div"))) for stop in stops)


def _site(notes: Notes, call: Fused | Softmax, query: Seen, key: Seen) -> Site:
    """Cross attention: the keys come from other tokens or inputs than the queries."""
    where, content = call.where, notes.content
    cross = behind(notes, query) & content != behind(notes, key) & content
    return Site(path=where.path, role=Role.SCORE, cross=cross, file=where.file, line=where.line)


def _beneath(notes: Notes, *gains: Gain | None) -> str:
    """The innermost module that holds all the projections from which the gains were measured."""
    stops = [stop for found in gains if found is not None for stop in found.stops if stop in notes.projections]
    paths = [notes.projections[stop].where.path.split(".") for stop in stops]
    shared = [level[0] for level in takewhile(lambda level: len(set(level)) == 1, zip(*paths, strict=False))]
    return ".".join(shared[:-1] if shared in paths else shared)


def _told_apart(found: list[_Found]) -> list[str]:
    """Blocks that their parent runs have no name of their own: they get that of the module they project with."""
    beneath: dict[str, set[str]] = {}
    for one in found:
        beneath.setdefault(one.site.path, set()).add(one.beneath)
    paths = [one.site.path for one in found]
    return [one.beneath if len(beneath[path] - {""}) > 1 else path for one, path in zip(found, paths, strict=True)]


def _heads(notes: Notes, product: Product) -> int | None:
    """The second axis of four, or what the first of three holds beside the rows; None for windows and chunks."""
    tokens = [lookup.ids.shape[lookup.turned] for lookup in notes.lookups if lookup.token and lookup.ids.dim() > 1]
    rows = [*tokens, *(notes.origins.places[node].shape[0] for node in notes.inputs)]
    if not rows or len(product.shape) not in (3, 4):
        return None
    first, second = product.shape[:2]
    if len(product.shape) == 4:
        return second if first == rows[0] else None
    return first // rows[0] if first % rows[0] == 0 else None
