"""Talking heads: learned layers between products and softmax that mix the scores of one pair of places over the heads.

Shazeer et al. 2020 (arXiv 2003.02436). What they hold is learned; the factor is what stands before and behind them.
"""

from dataclasses import replace

from torch.autograd.graph import Node

from surd.measure.trace.calls import Product, Projection, Softmax
from surd.measure.trace.gains import Slope, gain, slope
from surd.measure.trace.graph import walk_back
from surd.measure.trace.notes import Notes


def mixers(notes: Notes) -> dict[Node, tuple[Projection, list[Product]]]:
    """Every layer that reads scores, whatever the order of their axes, and sums over heads alone; and what it reads."""
    stops = {node: product.place for node, product in notes.products.items()}
    stops |= {node: projection.place for node, projection in notes.projections.items()} | notes.origins.places
    found = {}
    for node, projection in notes.projections.items():
        read = projection.read
        if read.place is None or len(read.shape) != 4 or projection.fan_in not in read.shape:
            continue
        met, _ = walk_back([read.place.node], stops)
        products = [notes.products[one] for one in met if one in notes.products]
        if met and len(products) == len(met) and all(_has_heads(one, projection) for one in products):
            found[node] = projection, products
    return found


def _has_heads(product: Product, projection: Projection) -> bool:
    alike = sorted(product.shape) == sorted(projection.read.shape)
    return alike and not product.mixes and product.shape[1] == projection.fan_in


def slope_behind(notes: Notes, call: Softmax, product: Product) -> tuple[Slope | None, bool]:
    """From a product to the softmax, without what mixes the heads; and whether something does."""
    place = call.scores.place
    assert place is not None, "the product lies behind it"
    between = {node: layer for node, (layer, products) in mixers(notes).items() if product in products}
    stops = {node: layer.place for node, layer in between.items()} | {product.place.node: product.place}
    met, _ = walk_back([place.node], stops)
    mixer = next((between[node] for node in met if node in between), None)
    if mixer is None or product.place.node in met:
        return slope(place, product.place, call.values, call.axis), False
    assert mixer.read.place is not None, "products lie behind it"
    before = gain(mixer.read.place, {product.place.node: product.place})
    behind = slope(place, mixer.place, call.values, call.axis)
    if before is None or behind is None:
        return None, True
    return replace(behind, value=behind.value * before.value), True
