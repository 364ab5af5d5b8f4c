"""Random streams: the same for the same names, in every process, and unlike each other."""

import random

import numpy
import torch

from surd.seed import derive, generator, seed_all


def test_a_stream_depends_on_the_seed_and_on_every_name() -> None:
    names = [(1,), (2,), (1, "order"), (1, "order", 0), (1, "order", 1), (1, "order0"), (1, "or", "der")]
    assert len({derive(*name) for name in names}) == len(names)
    assert all(0 <= derive(*name) < 2**63 for name in names)


def test_a_stream_never_changes_between_versions() -> None:
    # A run that is resumed after an update must see its data in the same order.
    assert derive(1, "order", 0) == 445740416922298889


def test_equal_generators_draw_equal_numbers() -> None:
    assert torch.equal(torch.rand(4, generator=generator(3, "a")), torch.rand(4, generator=generator(3, "a")))


def test_all_global_streams_are_seeded() -> None:
    draws = []
    for _ in range(2):
        seed_all(7)
        draws.append((random.random(), numpy.random.random(), torch.rand(1).item()))
    assert draws[0] == draws[1]
