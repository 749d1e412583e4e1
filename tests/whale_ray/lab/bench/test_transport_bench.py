"""The transport suite runs and makes its comparisons; the figures are not tested."""

from __future__ import annotations

import os
import signal
from collections import Counter

import numpy as np
import pytest

from whale_ray.cli.main import main
from whale_ray.lab.bench import matrix, sweeps, transport, verbs
from whale_ray.lab.bench.fan_out import ROWS_PER_SLICE, fan_out_rows, slice_batch
from whale_ray.lab.bench.processes import run_together
from whale_ray.lab.bench.ring_loops import sum_frame
from whale_ray.lab.bench.ring_pair import RingPair
from whale_ray.transport.wire import codec

TINY = transport.Effort(
    repetitions=1,
    scale=0.001,
    matrix=matrix.MatrixEffort((64,), (1,), 1, 1_000_000, 1),
    sweeps=sweeps.SweepEffort((256 << 10,), (1.0,), 1, 1000),
    verbs=verbs.VerbsEffort((4096,), 1, 1_000_000, (8,), 3, 8),
)


def test_roles_run_at_once_and_are_timed_apart():
    together = run_together([lambda: lambda: 1, lambda: os.getpid])
    first, second = together.timings
    assert first.result == 1
    assert second.result not in {0, os.getpid()}
    assert together.wall_ns >= max(t.end_ns - t.start_ns for t in together.timings) > 0
    assert together.cores > 0


def test_a_failing_role_is_reported_with_its_traceback():
    def fail() -> None:
        raise ZeroDivisionError

    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        run_together([lambda: signal.pause, lambda: fail])


def test_a_role_that_dies_ends_the_measurement():
    with pytest.raises(RuntimeError, match="a process of the benchmark died"):
        run_together([lambda: signal.pause, lambda: lambda: os.kill(os.getpid(), signal.SIGKILL)])


def test_every_byte_is_read():
    frame = np.random.default_rng(1).integers(0, 256, 801, np.uint8)
    assert sum_frame(frame) == int(frame[:800].view(np.int64).sum())


def test_tuples_have_100_bytes():
    batch = slice_batch()
    payload = codec.message_size(batch) - codec.message_size(batch.slice(0, 0))
    assert ROWS_PER_SLICE * 100 <= payload < ROWS_PER_SLICE * 100 + 64
    assert payload <= 256 * 1024


def test_all_readers_receive_all_frames():
    count = 50
    with RingPair(readers=3, ring_bytes=1 << 16) as pair:

        def encode(buffer: np.ndarray) -> int:
            buffer[:] = 7
            return buffer.size

        readers = [pair.receiver(len, count, reader) for reader in range(3)]
        run_together([pair.sender(lambda _number: (8000, encode), count), *readers])
        assert pair.producer.segment.words(256, 264)[0] >= count * 8064


@pytest.mark.smoke
def test_small_messages():
    rows = transport.small_rows(TINY)
    assert [row.parameters["how"] for row in rows] == [
        "compiled loop",
        "one Python call each",
        "channel: put, get, release",
        "multiprocessing.Pipe",
        "pyzmq PAIR ipc",
    ]
    assert rows[0].ratio == pytest.approx(rows[4].value / rows[0].value)


def test_fan_out_compares_with_the_same_number_of_readers():
    rows = fan_out_rows(1, 0.001, readers=(1, 2))
    ways = {(row.parameters["how"], row.parameters["readers"]): row.value for row in rows[:10]}
    ring = [row for row in rows if row.name == "fan-out" and row.parameters["how"] == "ring"]
    for row in ring:
        against = ways[row.against, row.parameters["readers"]]
        assert row.ratio == pytest.approx(row.value / against)
    assert [row.aim is not None for row in ring] == [False, False, True, True]
    assert [row.name for row in rows[10:]] == ["source's CPU per tuple"] * 4


@pytest.mark.long
def test_the_whole_suite(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(transport, "QUICK", TINY)
    report = transport.run(quick=True)
    assert report.command == "whale-ray bench transport --quick"
    assert Counter(row.name for row in report.rows if row.aim is not None) == {
        "small message, one way": 2,
        "small messages, batched": 1,
        "slices": 2,
        "fan-out": 2,
        "source's CPU per tuple": 1,
        "256 KiB over loopback TCP": 2,
        "Python side of a slice": 2,
    }


def test_one_part(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(transport, "QUICK", TINY)
    report = transport.run(quick=True, only="wtl")
    assert report.command == "whale-ray bench transport --quick --only wtl"
    assert {row.name for row in report.rows} == {"WTL sweep: latency p50"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["transport", "--only", "matrx"],
            "suite 'transport' has no part 'matrx' (did you mean matrix?); there are small, "
            "batched, slices, fan-out, wake-up, tcp, matrix, mms, wtl",
        ),
        (["ride-hailing", "--only", "x"], "suite 'ride-hailing' has no part 'x'; it has none"),
    ],
)
def test_unknown_parts(words: list[str], message: str, capsys: pytest.CaptureFixture[str]):
    assert main(["bench", *words]) == 2
    assert message in capsys.readouterr().err
