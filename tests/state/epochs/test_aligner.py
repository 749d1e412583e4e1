"""The alignment of markers, on streams that are short enough to follow by hand."""

from __future__ import annotations

import pytest

from whale_ray.configs.errors import ProtocolError
from whale_ray.state.epochs.aligner import EpochAligner

SIBLINGS = [(0, 1), (2,)]
"""Producers 0 and 1 share ring 0; producer 2 writes ring 1."""


def test_a_ring_waits_once_all_its_producers_have_written_the_marker():
    aligner = EpochAligner(SIBLINGS)
    aligner.marker(0, 0, 1)
    assert not aligner.waits(0)
    aligner.marker(0, 1, 1)
    assert aligner.waits(0)
    assert not aligner.waits(1)
    assert not aligner.aligned
    aligner.row(1, 2)
    aligner.marker(1, 2, 1)
    assert aligner.aligned
    assert aligner.pass_on() == 1
    assert not aligner.waits(0)
    aligner.row(0, 0)


def test_an_end_counts_as_every_later_marker():
    aligner = EpochAligner(SIBLINGS)
    aligner.end(1, 2)
    assert not aligner.aligned
    aligner.marker(0, 0, 1)
    aligner.end(0, 1)
    assert aligner.aligned
    aligner.pass_on()
    assert aligner.is_open(0, 0)
    aligner.end(0, 0)
    assert not aligner.is_open(0, 0)
    assert not aligner.aligned


def test_the_end_of_a_sibling_completes_the_alignment_of_its_ring():
    aligner = EpochAligner([(0, 1)])
    aligner.marker(0, 0, 3)
    aligner.row(0, 1)
    aligner.end(0, 1)
    assert aligner.aligned
    assert aligner.pass_on() == 3


def test_a_later_marker_ends_the_alignment_of_an_earlier_epoch():
    aligner = EpochAligner([(0,), (1,)])
    aligner.marker(0, 0, 1)
    assert aligner.waits(0)
    aligner.marker(1, 1, 2)
    assert not aligner.waits(0)
    aligner.marker(0, 0, 2)
    assert aligner.pass_on() == 2


def test_markers_of_an_epoch_that_is_over_do_nothing():
    aligner = EpochAligner([(0,), (1,)])
    aligner.marker(0, 0, 1)
    aligner.forget(1)
    assert not aligner.waits(0)
    aligner.marker(1, 1, 1)
    assert not aligner.waits(1)
    assert aligner.epoch is None


def test_forgetting_an_earlier_epoch_leaves_a_later_one_alone():
    aligner = EpochAligner([(0,), (1,)])
    aligner.marker(0, 0, 2)
    aligner.forget(1)
    assert aligner.waits(0)


@pytest.mark.parametrize(
    ("breach", "message"),
    [
        (lambda a: a.row(0, 0), "behind its marker of epoch 1, while producers that share"),
        (lambda a: a.marker(0, 0, 1), "the marker of epoch 1 into ring 0 twice"),
        (lambda a: a.row(1, 2), "rows into ring 1 after its end"),
        (lambda a: a.marker(1, 2, 1), "a marker into ring 1 after its end"),
        (lambda a: a.pass_on(), "epoch 1 is to be passed on before all rings"),
    ],
)
def test_a_producer_that_breaks_the_rules_is_named(breach, message):
    aligner = EpochAligner(SIBLINGS)
    aligner.marker(0, 0, 1)
    aligner.end(1, 2)
    with pytest.raises(ProtocolError, match=message):
        breach(aligner)
