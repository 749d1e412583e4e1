"""Owners: which instance owns each virtual node."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from whale_ray.configs.errors import InputError
from whale_ray.state.owners import Owners


@pytest.mark.parametrize(("nodes", "instances"), [(1, 1), (1024, 1), (1024, 480), (64, 7), (8, 8)])
def test_instances_own_contiguous_ranges(nodes: int, instances: int) -> None:
    owners = Owners.even(nodes, instances)
    assert owners.of(np.arange(nodes)).tolist() == [n * instances // nodes for n in range(nodes)]
    ranges = [owners.nodes_of(number).tolist() for number in range(instances)]
    assert [node for one in ranges for node in one] == list(range(nodes))
    sizes = [len(owned) for owned in ranges]
    assert max(sizes) - min(sizes) <= 1


def test_any_table_is_looked_up() -> None:
    owners = Owners(np.array([2, 0, 2, 1], np.uint16))
    assert owners.virtual_nodes == 4
    assert owners.of(np.array([[3, 0], [1, 1]])).tolist() == [[1, 2], [0, 0]]
    assert owners.nodes_of(2, 1).tolist() == [0, 2, 3]
    assert owners.nodes_of(9).tolist() == []


def test_owners_are_values() -> None:
    owners = Owners.even(16, 3)
    copied = pickle.loads(pickle.dumps(owners))
    assert copied == owners and hash(copied) == hash(owners)
    assert owners != Owners.even(16, 4)
    with pytest.raises(ValueError, match="read-only"):
        copied.instances[0] = 1


@pytest.mark.parametrize(("instances", "enough"), [(5, 8), (8, 8), (9, 16)])
def test_too_many_instances_are_refused(instances: int, enough: int) -> None:
    with pytest.raises(InputError) as caught:
        Owners.even(4, instances)
    assert str(caught.value) == (
        f"{instances} instances cannot share 4 virtual nodes: set runtime.virtual_nodes to"
        f" {enough} or more"
    )
