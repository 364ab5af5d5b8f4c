"""The logits of attention, one tile at a time: scale · query·key, soft cap, mask."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from surd.errors import SurdError
from surd.measure.softmax.rows import Space

# Tiles of logits: three of them should fit the caches of two cores, and each should outweigh the cost of the calls.
CPU_TILE, ACCELERATOR_TILE = 2**18, 2**24
# Queries and keys of one head in a tile; less is computed in vain along a causal edge if they are few.
CPU_BLOCK, ACCELERATOR_BLOCK = (256, 512), (4096, 4096)


@dataclass(frozen=True, kw_only=True)
class Tile:
    """Some rows: these queries of all heads that share these keys' heads, in these sentences."""

    batch: slice
    heads: slice
    queries: slice


@dataclass(frozen=True, kw_only=True)
class Logits:
    """What all tiles are made from. `group` query heads share a key head."""

    query: Float[Tensor, "batch key_heads group queries d_k"]
    key: Float[Tensor, "batch key_heads keys d_k"]
    scale: float
    cap: float | None
    mask: Tensor | None
    """Any axis of (batch, key_heads, group, queries, keys) may be 1; bool (True = visible) or added."""
    behind: int | None
    """Query t sees keys up to t + `behind`; None: it sees the future too."""

    def rows(self, tile: Tile) -> int:
        """How many rows a tile has."""
        return self.query[tile.batch, tile.heads, :, tile.queries].shape[:4].numel()

    def until(self, tile: Tile) -> int:
        """The first key that no query of the tile may see, because it lies in the future of all."""
        keys = self.key.shape[-2]
        return keys if self.behind is None else min(keys, tile.queries.stop + self.behind)

    def open(self, tile: Tile) -> int:
        """How many of the first keys no query of the tile is kept from, nor any logit of them changed."""
        if self.mask is not None or self.cap is not None:
            return 0
        return self.key.shape[-2] if self.behind is None else tile.queries.start + self.behind + 1

    def heads(self, tile: Tile) -> tuple[Tensor, Tensor]:
        """All scaled queries and keys of the sentences and heads of a tile, both of which become one axis."""
        query = self.query[tile.batch, tile.heads].to(self.key.dtype) * self.scale
        return query.flatten(0, 1), self.key[tile.batch, tile.heads].flatten(0, 1)

    def scaled_query(self, tile: Tile) -> Float[Tensor, "units rows d_k"]:
        """The tile's queries times the scale, so that no pass over the logits is needed for it."""
        query = self.query[tile.batch, tile.heads, :, tile.queries].to(self.key.dtype) * self.scale
        return query.flatten(2, 3).flatten(0, 1)

    def fill(
        self, query: Float[Tensor, "units rows d_k"], tile: Tile, keys: slice, space: Space
    ) -> tuple[
        Float[Tensor, "batch key_heads group queries keys"],
        Bool[Tensor, "#batch #key_heads #group #queries #keys"] | None,
    ]:
        """The logits of `query` (the tile's `scaled_query`) with some keys, and which are hidden: those are -inf."""
        key = self.key[tile.batch, tile.heads, keys].flatten(0, 1)
        units, rows, width = *query.shape[:2], key.shape[1]
        flat = space.tiles(units * rows, width)[0].view(units, rows, width)
        torch.bmm(query, key.transpose(1, 2), out=flat)
        if self.cap is not None:
            flat.div_(self.cap).tanh_().mul_(self.cap)
        sentences, group = tile.batch.stop - tile.batch.start, self.query.shape[2]
        logits = flat.view(sentences, units // sentences, group, rows // group, width)
        hidden = None
        if self.mask is not None:
            places = (tile.batch, tile.heads, slice(None), tile.queries, keys)
            sizes = zip(self.mask.shape, places, strict=True)
            part = self.mask[tuple(slice(None) if size == 1 else place for size, place in sizes)]
            if part.dtype == torch.bool:
                hidden = part.logical_not()
            else:
                logits.add_(part)
                hidden = part == float("-inf")
        if self.behind is not None and keys.stop - 1 > tile.queries.start + self.behind:
            last = torch.arange(tile.queries.start, tile.queries.stop, device=flat.device)[:, None] + self.behind
            future = torch.arange(keys.start, keys.stop, device=flat.device) > last
            hidden = future[None, None, None] if hidden is None else hidden | future
        if hidden is not None:
            logits.masked_fill_(hidden, float("-inf"))
        return logits, hidden


def prepare(
    query: Tensor, key: Tensor, scale: float | None, mask: Tensor | None, causal: bool, cap: float | None
) -> Logits:
    """Checks that the parts fit, and lines up query heads with the key heads that they share."""
    if query.dim() != 4 or key.dim() != 4 or query.shape[0] != key.shape[0] or query.shape[3] != key.shape[3]:
        raise SurdError(
            "query and key: expected (batch, heads, queries, d_k) and (batch, key heads, keys, d_k), "
            f"found {tuple(query.shape)} and {tuple(key.shape)}"
        )
    (batch, heads, queries, d_k), (_, key_heads, keys, _) = query.shape, key.shape
    if key_heads == 0 or heads % key_heads:
        raise SurdError(f"heads: expected a multiple of the {key_heads} key heads, found {heads}")
    if causal and queries > keys:
        raise SurdError(f"causal: expected at least as many keys as queries ({queries}), found {keys}")
    if cap is not None and not 0 < cap < float("inf"):
        raise SurdError(f"cap: expected a number above 0, found {cap}")
    wide = torch.float64 if torch.float64 in (query.dtype, key.dtype) else torch.float32
    return Logits(
        query=query.unflatten(1, (key_heads, heads // key_heads)),
        key=key.to(wide),
        scale=d_k**-0.5 if scale is None else float(scale),
        cap=cap,
        mask=None if mask is None else _by_key_head(mask, (batch, heads, queries, keys), key_heads),
        behind=keys - queries if causal else None,
    )


def _by_key_head(mask: Tensor, shape: tuple[int, int, int, int], key_heads: int) -> Tensor:
    """The mask as a view of five axes; it is never copied, and so never grows."""
    if mask.dtype != torch.bool and not mask.is_floating_point():
        raise SurdError(f"mask: expected bool (True = visible) or numbers to be added, found {mask.dtype}")
    if mask.dim() > 4 or any(
        size not in (1, full) for size, full in zip(reversed(mask.shape), reversed(shape), strict=False)
    ):
        raise SurdError(f"mask: expected a shape that broadcasts to {shape}, found {tuple(mask.shape)}")
    mask = mask[(None,) * (4 - mask.dim())]
    heads = mask.shape[1]
    return mask[:, :, None] if heads == 1 else mask.unflatten(1, (key_heads, heads // key_heads))


def plan(logits: Logits, block: tuple[int, int] | None) -> tuple[int, list[Tile]]:
    """Keys a block, and the tiles: of one key head's queries, or of several heads' where these have few."""
    batch, key_heads, group, queries, _ = logits.query.shape
    on_cpu = logits.key.device.type == "cpu"
    room = CPU_TILE if on_cpu else ACCELERATOR_TILE
    height, width = block or (CPU_BLOCK if on_cpu else ACCELERATOR_BLOCK)
    if height < 1 or width < 1:
        raise SurdError(f"block: expected two numbers of at least 1, found {block}")
    if block is None:
        height //= group
    width = min(width, logits.key.shape[2])
    width, height = max(1, width), max(1, min(height, queries))
    units = max(1, room // (group * height * width))
    return width, [
        Tile(batch=sentences, heads=heads, queries=part)
        for sentences in _parts(batch, max(1, units // key_heads))
        for heads in _parts(key_heads, units)
        for part in _parts(queries, height)
    ]


def _parts(length: int, size: int) -> list[slice]:
    return [slice(start, min(start + size, length)) for start in range(0, length, size)]
