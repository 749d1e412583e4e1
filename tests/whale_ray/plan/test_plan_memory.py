"""Probing free memory, on made-up /proc and /sys/fs/cgroup folders."""

from __future__ import annotations

from pathlib import Path

from whale_ray.plan.memory import FreeMemory, probe_memory

MIB = 1024**2


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="ascii")


def machine(tmp_path: Path, membership: str) -> tuple[Path, Path]:
    proc, cgroup = tmp_path / "proc", tmp_path / "cgroup"
    write(proc / "meminfo", f"MemTotal: 9999999 kB\nMemAvailable:    {1000 * 1024} kB\n")
    write(proc / "self" / "cgroup", membership)
    return proc, cgroup


def free_mib(proc: Path, cgroup: Path, tmp_path: Path) -> float:
    return probe_memory(proc=proc, cgroup=cgroup, shm=tmp_path).memory_free_bytes / MIB


def test_without_a_limit_the_available_memory_counts(tmp_path: Path) -> None:
    proc, cgroup = machine(tmp_path, "0::/\n")
    assert free_mib(proc, cgroup, tmp_path) == 1000
    write(cgroup / "memory.max", "max\n")
    assert free_mib(proc, cgroup, tmp_path) == 1000


def test_a_lower_limit_of_the_control_group_counts(tmp_path: Path) -> None:
    proc, cgroup = machine(tmp_path, "0::/box/job\n")
    write(cgroup / "box" / "job" / "memory.max", str(500 * MIB))
    write(cgroup / "box" / "job" / "memory.current", str(300 * MIB))
    assert free_mib(proc, cgroup, tmp_path) == 200


def test_page_cache_can_be_dropped(tmp_path: Path) -> None:
    proc, cgroup = machine(tmp_path, "0::/\n")
    write(cgroup / "memory.max", str(500 * MIB))
    write(cgroup / "memory.current", str(300 * MIB))
    write(cgroup / "memory.stat", f"anon 1\ninactive_file {100 * MIB}\n")
    assert free_mib(proc, cgroup, tmp_path) == 300


def test_the_limit_of_a_parent_group_binds_too(tmp_path: Path) -> None:
    proc, cgroup = machine(tmp_path, "0::/box/job\n")
    write(cgroup / "box" / "memory.max", str(64 * MIB))
    write(cgroup / "box" / "memory.current", str(0))
    write(cgroup / "box" / "job" / "memory.max", "max")
    assert free_mib(proc, cgroup, tmp_path) == 64


def test_the_older_layout_of_control_groups(tmp_path: Path) -> None:
    proc, cgroup = machine(tmp_path, "3:cpu:/x\n2:memory:/x\n")
    write(cgroup / "memory" / "x" / "memory.limit_in_bytes", str(80 * MIB))
    write(cgroup / "memory" / "x" / "memory.usage_in_bytes", str(30 * MIB))
    assert free_mib(proc, cgroup, tmp_path) == 50


def test_a_group_above_its_limit_has_nothing_left(tmp_path: Path) -> None:
    proc, cgroup = machine(tmp_path, "0::/\n")
    write(cgroup / "memory.max", str(MIB))
    write(cgroup / "memory.current", str(3 * MIB))
    assert free_mib(proc, cgroup, tmp_path) == 0


def test_this_machine() -> None:
    found = probe_memory()
    assert isinstance(found, FreeMemory)
    assert found.memory_free_bytes > 0


def test_no_shm_at_all(tmp_path: Path) -> None:
    proc, cgroup = machine(tmp_path, "")
    none = probe_memory(named_segments=True, proc=proc, cgroup=cgroup, shm=tmp_path / "none")
    assert none.shm_free_bytes == 0


def test_dev_shm_counts_only_for_named_segments(tmp_path: Path) -> None:
    proc, cgroup = machine(tmp_path, "")
    for named in (False, True):
        found = probe_memory(named_segments=named, proc=proc, cgroup=cgroup, shm=tmp_path)
        assert (found.shm_free_bytes is not None) == named
