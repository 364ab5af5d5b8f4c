"""Chains: residual sums that follow each other without a norm between, so that one stream runs through all of them."""

from torch.autograd.graph import Node

from surd.measure.sites import Chain, Reading, Role, numbered
from surd.measure.trace.gains import hand_written_norms
from surd.measure.trace.graph import place_after, walk_back
from surd.measure.trace.notes import Notes


def read_chains(notes: Notes) -> list[Chain]:
    """In the order of their first sums. Behind a norm, as after every sum of a post-norm stack, another one begins."""
    sites = numbered([size.site for size in notes.sizes])
    told = [Reading(site=site, rms=size.seen.rms) for site, size in zip(sites, notes.sizes, strict=True)]
    nodes = [size.seen.place.node for size in notes.sizes if size.site.role is Role.STREAM and size.seen.place]
    branches = [one for one in told if one.site.role is Role.BRANCH]
    sums = [one for one in told if one.site.role is Role.STREAM]
    if not len(nodes) == len(sums) == len(branches) == len(notes.residuals):
        return []  # a sum that raised is heard as a branch alone
    streams = {node: place_after(node) for node in nodes}
    numbers = {node: number for number, node in enumerate(nodes)}
    members: dict[Node, list[int]] = {}
    for number, (node, residual) in enumerate(zip(nodes, notes.residuals, strict=True)):
        stops = {**notes.beginnings, **streams}
        stops |= hand_written_norms(place_after(residual.carried), stops)
        met, _ = walk_back([residual.carried], stops)
        before = next(iter(met)) if len(met) == 1 else None
        chain = members.get(before, []) if before is not None else []
        if chain and before is not None and chain[-1] != numbers[before]:
            chain = chain[: chain.index(numbers[before]) + 1]  # two go on from one sum
        chain.append(number)
        members[node] = chain
    chains = {id(chain): chain for chain in members.values()}
    return [
        Chain(sums=tuple(sums[one] for one in chain), branches=tuple(branches[one] for one in chain))
        for chain in chains.values()
    ]
