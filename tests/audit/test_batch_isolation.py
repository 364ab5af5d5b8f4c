"""Which axis is the batch, and which rows are samples: memories, heads in front, graphs in a heap, and rounding."""

import pytest
import torch
from audit.asked import asked, found, silent
from measure.faults import D_MODEL
from torch import Tensor, nn

RULE, VOCABULARY, LAYERS, ROWS, LENGTH, MEMORY = "batch-isolation", 97, 2, 3, 10, 6


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def attended(query: Tensor, read: Tensor) -> Tensor:
    return (query @ read.mT * D_MODEL**-0.5).softmax(-1) @ read


class Recurrent(nn.Module):
    """Each layer also reads what it saw before: memories of (layers, batch, length, width)."""

    def __init__(self, mixes: bool = False):
        super().__init__()
        self.mixes, self.table, self.out = mixes, nn.Embedding(VOCABULARY, D_MODEL), nn.Linear(D_MODEL, VOCABULARY)
        self.layers = nn.ModuleList(nn.Linear(D_MODEL, D_MODEL) for _ in range(LAYERS))

    def forward(self, tokens: Tensor, memories: Tensor) -> Tensor:
        x = self.table(tokens)
        for layer, memory in zip(self.layers, memories, strict=True):
            memory = memory.flip(0) + memory if self.mixes else memory
            x = x + layer(attended(x, torch.cat([memory, x], 1)))
        return self.out(x)


@pytest.mark.parametrize("rows", [LAYERS, ROWS])
def test_memories_of_every_layer(rows):
    inputs = {"tokens": torch.randint(VOCABULARY, (rows, LENGTH))}
    inputs["memories"] = torch.randn(LAYERS, rows, MEMORY, D_MODEL)
    silent(Recurrent(), RULE, inputs=inputs)
    assert found(Recurrent(mixes=True), RULE, inputs=inputs).site == "memories"


class Heads(nn.Module):
    """Several predictions of each token, as many as samples, stacked in front of the batch."""

    def __init__(self, mixes: bool = False):
        super().__init__()
        self.mixes, self.table = mixes, nn.Embedding(VOCABULARY, D_MODEL)
        self.heads = nn.ModuleList(nn.Linear(D_MODEL, VOCABULARY) for _ in range(ROWS))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.table(tokens)
        x = attended(x, x.roll(1, 0) + x if self.mixes else x)
        return torch.stack([head(x) for head in self.heads])


def test_heads_in_front_of_the_batch():
    inputs = (torch.randint(VOCABULARY, (ROWS, LENGTH)),)
    silent(Heads(), RULE, inputs=inputs)
    assert 0.1 < found(Heads(mixes=True), RULE, inputs=inputs).measured < 1


class Heap(nn.Module):
    """The nodes of all graphs in one heap, of which each sees those of its own graph; an output for every graph."""

    def __init__(self, blocks: bool):
        super().__init__()
        self.blocks, self.enter, self.out = blocks, nn.Linear(7, D_MODEL), nn.Linear(D_MODEL, 2)

    def forward(self, nodes: Tensor, graph: Tensor) -> Tensor:
        x = self.enter(nodes)
        scores = x @ x.mT * D_MODEL**-0.5
        if self.blocks:
            scores = scores.masked_fill(graph[:, None] != graph, -torch.inf)
        pooled = torch.zeros(int(graph.max()) + 1, D_MODEL).index_add(0, graph, scores.softmax(-1) @ x)
        return self.out(pooled)


def test_graphs_in_a_heap():
    inputs = {"nodes": torch.randn(12, 7), "graph": torch.tensor([0] * 3 + [1] * 5 + [2] * 4)}
    silent(Heap(blocks=True), RULE, inputs=inputs)
    assert found(Heap(blocks=False), RULE, inputs=inputs).site == "nodes"


def test_rows_that_may_be_no_samples():
    """One set of vectors, one output: nothing says that they are samples."""

    class Pooled(nn.Module):
        def __init__(self):
            super().__init__()
            self.enter, self.out = nn.Linear(7, D_MODEL), nn.Linear(D_MODEL, 2)

        def forward(self, elements: Tensor) -> Tensor:
            x = self.enter(elements)
            return self.out(attended(x, x).mean(0, keepdim=True))

    report = asked(Pooled(), RULE, inputs=(torch.randn(12, 7),))
    assert report.findings == () and "may be no samples" in report.skipped[0].reason


class Shifted(nn.Module):
    """exp(s - m) of a maximum over the whole batch: it cancels, up to rounding."""

    def __init__(self, cancels: bool):
        super().__init__()
        self.cancels, self.table = cancels, nn.Embedding(VOCABULARY, D_MODEL)
        self.table.weight.data[ROWS * LENGTH - 1] *= 2  # the largest score is one of the last row

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.table(tokens)
        scores = x @ x.mT * D_MODEL**-0.5
        weights = (scores - scores.max()).exp()
        return weights / (weights.sum(-1, keepdim=True) if self.cancels else weights.shape[-1]) @ x


def test_rounding_reaches_nobody():
    inputs = (torch.arange(ROWS * LENGTH).view(ROWS, LENGTH),)
    silent(Shifted(cancels=True), RULE, inputs=inputs)
    assert found(Shifted(cancels=False), RULE, inputs=inputs).measured > 1e-3
