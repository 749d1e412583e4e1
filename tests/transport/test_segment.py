"""Segments: their bytes, their refusals, and what is left when a process ends or is killed."""

from __future__ import annotations

import errno
import fcntl
import os
import pickle
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from whale_ray.configs.errors import ResourceError, SegmentGoneError
from whale_ray.transport.segment import (
    SHM_DIRECTORY,
    Segment,
    SegmentHandle,
    SegmentKind,
    sweep_stale,
)

SHARED = ["memfd", "named"]
NBYTES = 8192


@pytest.mark.parametrize("kind", SHARED)
def test_two_mappings_are_one_memory(kind):
    with closing_all() as opened:
        created = opened(Segment.create(NBYTES, "label", "job", kind))
        attached = opened(Segment.attach(pickle.loads(pickle.dumps(created.handle))))
        assert attached.buffer.shape == created.buffer.shape == (NBYTES,)
        assert attached.address == attached.buffer.ctypes.data != created.address
        created.buffer[200:204] = (1, 2, 3, 4)
        assert attached.buffer[199:205].tolist() == [0, 1, 2, 3, 4, 0]
        attached.words(256, 264)[0] = -2
        assert bytes(created.memory(256, 264)) == b"\xfe" + b"\xff" * 7


@pytest.mark.parametrize("kind", [*SHARED, "private"])
def test_the_first_line(kind):
    with closing_all() as opened:
        segment = opened(Segment.create(NBYTES, "label", "job", kind))
        generation = segment.handle.generation.to_bytes(8, "little")
        expected = b"WHALESEG" + b"\1" + bytes(7) + generation + NBYTES.to_bytes(8, "little")
        assert segment.buffer[:128].tobytes() == expected + bytes(128 - len(expected))
        assert not segment.buffer[128:].any()


def test_generations_differ():
    with closing_all() as opened:
        handles = [opened(Segment.create(NBYTES, "label", "job")).handle for _ in range(20)]
    assert len({handle.generation for handle in handles}) == 20


def test_a_view_outlives_the_segment():
    segment = Segment.create(NBYTES, "label", "job")
    view = segment.buffer[1000:1004]
    view[:] = 9
    segment.close()
    segment.close()
    assert view.tolist() == [9] * 4
    assert segment.buffer.size == 0
    with pytest.raises(ValueError, match="is closed"):
        segment.memory(0, 8)


def test_a_shared_hold_is_independent():
    first = Segment.create(NBYTES, "label", "job", "private")
    second = first.share()
    first.close()
    second.buffer[500] = 4
    assert second.buffer[500] == 4
    second.close()
    with pytest.raises(ValueError, match="is closed"):
        second.share()


def test_a_named_segment_goes_with_its_owner_alone():
    segment = Segment.create(NBYTES, "a label/x", "my job", "named")
    path = SHM_DIRECTORY / f"whale-ray-my_job-{os.getpid()}-a_label_x"
    assert segment.handle.path == str(path)
    Segment.attach(segment.handle).close()
    assert path.stat().st_mode & 0o777 == 0o600
    segment.close()
    assert not path.exists()


@pytest.mark.parametrize("kind", SHARED)
@pytest.mark.parametrize("change", [{"generation": 3}, {"size": NBYTES * 2}])
def test_another_segment_in_its_place_is_refused(kind, change):
    with closing_all() as opened:
        handle = opened(Segment.create(NBYTES, "label", "job", kind)).handle
        with pytest.raises(SegmentGoneError, match="is not the one announced"):
            Segment.attach(replace(handle, **change))


def test_a_reused_descriptor_is_refused_without_opening_it():
    with closing_all() as opened:
        handle = opened(Segment.create(NBYTES, "label", "job")).handle
        reader, writer = os.pipe()
        try:
            with pytest.raises(ResourceError, match="is not the one announced"):
                Segment.attach(replace(handle, fd=reader))
        finally:
            os.close(reader)
            os.close(writer)


def test_a_private_segment_cannot_be_attached():
    with closing_all() as opened:
        handle = opened(Segment.create(NBYTES, "label", "job", "private")).handle
        with pytest.raises(ResourceError, match="is private to process"):
            Segment.attach(handle)


@pytest.mark.parametrize("kind", SHARED)
def test_no_room_is_one_clear_line(kind):
    with pytest.raises(ResourceError) as caught:
        Segment.create(1 << 45, "ring", "job", kind)
    message = str(caught.value)
    assert message.startswith(
        f"no room for segment 'whale-ray-job-{os.getpid()}-ring' of 33554432 MiB: "
    )
    assert message.endswith("are available; free some memory or lower transport.ring_bytes")
    assert "\n" not in message


def test_a_segment_smaller_than_its_header_is_refused():
    with pytest.raises(ValueError, match="100 bytes cannot hold its header"):
        Segment.create(100, "label", "job")


CHILD = """
import os, pickle, sys
from whale_ray.transport.segment import Segment
segment = Segment.create(8192, "label", "sweep-" + sys.argv[2], sys.argv[1])
segment.buffer[4000] = 77
sys.stdout.buffer.write(pickle.dumps(segment.handle))
sys.stdout.buffer.flush()
os.close(1)
sys.stdin.read()
"""


def start_owner(kind: str, job: str) -> tuple[subprocess.Popen[bytes], SegmentHandle]:
    """Start a process that owns a segment until it is ended; return it and the handle."""
    process = subprocess.Popen(
        [sys.executable, "-c", CHILD, kind, job], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    with process.stdout as stream:
        handle = pickle.loads(stream.read())
    return process, handle


def kill(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGKILL)
    process.communicate()


@pytest.mark.parametrize("kind", SHARED)
def test_a_killed_owner_leaves_attached_memory_intact(kind, segments_alone: None):
    process, handle = start_owner(kind, f"killed{os.getpid()}")
    segment = Segment.attach(handle)
    kill(process)
    assert segment.buffer[4000] == 77
    segment.close()
    if kind == "memfd":
        with pytest.raises(SegmentGoneError, match="has closed it or has ended"):
            Segment.attach(handle)
    sweep_stale()


def test_the_memory_of_a_zombie_process_counts_as_gone(monkeypatch):
    """Only root may look into the folder of such a process: another user is refused."""
    process, handle = start_owner("memfd", f"unburied{os.getpid()}")

    def refuse(path):
        raise PermissionError(13, "Permission denied", path)

    with monkeypatch.context() as as_another_user:
        as_another_user.setattr(os, "readlink", refuse)
        with pytest.raises(ResourceError, match="must run as the same user"):
            Segment.attach(handle)
        process.send_signal(signal.SIGKILL)
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # it stays a zombie
        with pytest.raises(SegmentGoneError, match="has closed it or has ended"):
            Segment.attach(handle)
    process.communicate()
    with pytest.raises(SegmentGoneError, match="has closed it or has ended"):
        Segment.attach(handle)


def test_the_sweep_removes_segments_of_dead_owners_only(segments_alone: None):
    job = f"{os.getpid()}"
    living, living_handle = start_owner("named", job)
    dead, dead_handle = start_owner("named", job)
    kill(dead)
    assert Path(dead_handle.path).exists()
    swept = sweep_stale()
    assert dead_handle.path in swept
    assert living_handle.path not in swept
    assert not Path(dead_handle.path).exists()
    assert Path(living_handle.path).exists()
    living.communicate()
    assert living_handle.path in sweep_stale(), "ended without closing"


def test_attaching_does_not_register_anything():
    """Python 3.11's resource tracker would unlink the segment when an attacher ends."""
    code = (
        "import pickle, sys\n"
        "from whale_ray.transport.segment import Segment\n"
        "Segment.attach(pickle.loads(sys.stdin.buffer.read())).buffer[300] = 5\n"
        "from multiprocessing import resource_tracker\n"
        "assert resource_tracker._resource_tracker._fd is None\n"
    )
    with closing_all() as opened:
        segment = opened(Segment.create(NBYTES, "label", "job", "named"))
        subprocess.run([sys.executable, "-c", code], input=pickle.dumps(segment.handle), check=True)
        assert segment.buffer[300] == 5
        assert Path(segment.handle.path).exists()
        again = opened(Segment.attach(segment.handle))
        assert np.array_equal(again.buffer, segment.buffer)


def closing_all():
    """Return a context whose value closes, at its end, every segment it was called with."""
    import contextlib

    @contextlib.contextmanager
    def manage():
        with contextlib.ExitStack() as stack:

            def opened(segment: Segment) -> Segment:
                stack.callback(segment.close)
                return segment

            yield opened

    return manage()


def test_a_segment_made_anew_while_it_is_swept_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, segments_alone: None
) -> None:
    """Its owner gives it up and makes it again between the sweep's opening and its lock."""
    job = f"anew-{os.getpid()}"
    segments = [Segment.create(4096, "ring", job, "named")]
    lock = fcntl.flock

    def make_anew_first(fd: int, operation: int) -> None:
        if operation & fcntl.LOCK_NB and len(segments) == 1:
            segments[0].close()
            segments.append(Segment.create(4096, "ring", job, "named"))
        lock(fd, operation)

    monkeypatch.setattr(fcntl, "flock", make_anew_first)
    assert segments[0].handle.path not in sweep_stale()
    Segment.attach(segments[1].handle).close()
    segments[1].close()
    assert not Path(segments[1].handle.path).exists()


@pytest.mark.parametrize(("kind", "other"), [("memfd", "named"), ("named", "memfd")])
def test_where_a_kind_is_not_allowed_the_other_one_is_named(
    monkeypatch: pytest.MonkeyPatch, kind: SegmentKind, other: str
) -> None:
    def refuse(*_: object) -> int:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    for call in ("memfd_create", "open"):
        monkeypatch.setattr(os, call, refuse)
    remedy = rf"is refused here \(Operation not permitted\); set transport.segment_kind={other}$"
    with pytest.raises(ResourceError, match=remedy):
        Segment.create(NBYTES, "label", "job", kind)
