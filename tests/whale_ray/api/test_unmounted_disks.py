"""A job whose checkpoints are on a disk that is not mounted does not begin anew without them."""

from __future__ import annotations

from pathlib import Path

import pytest

import whale_ray as whale
from whale_ray.api import unmounted_disks
from whale_ray.api.unmounted_disks import unmounted_disk
from whale_ray.configs.errors import InputError


@pytest.fixture
def fstab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a list of disks: one is mounted at `/`, the others are not."""
    listed = tmp_path / "fstab"
    listed.write_text(
        "# <device> <mount point> <type>\n\n"
        "UUID=1 / ext4 defaults 0 1\n"
        "/swapfile none swap sw 0 0\n"
        f"UUID=2 {tmp_path}/my\\040disk ext4 nofail 0 2\n"
    )
    monkeypatch.setattr(unmounted_disks, "_FSTAB", listed)
    return listed


@pytest.mark.parametrize(
    ("folder", "is_there"),
    [("my disk", True), ("my disk/a/b", True), ("my disk2/a", False), ("other", False)],
)
def test_the_disk_of_a_folder(fstab: Path, tmp_path: Path, folder: str, is_there: bool) -> None:
    found = str(tmp_path / "my disk") if is_there else ""
    assert unmounted_disk(str(tmp_path / folder)) == found
    fstab.unlink()
    assert unmounted_disk(str(tmp_path / folder)) == ""


def test_the_latest_checkpoint_is_not_looked_for_beneath_a_disk(
    fstab: Path, tmp_path: Path
) -> None:
    topology = whale.Topology("numbers")
    rows = topology.source(whale.sources.iterable([{"n": 1}]), id="rows")
    rows.sink(whale.sinks.collect(), id="out")
    folder = tmp_path / "my disk" / "state"
    with pytest.raises(InputError, match=r"no disk is mounted at '.*/my disk', as /etc/fstab"):
        whale.run(topology, checkpoints=folder, restore="latest")
    assert not folder.parent.exists()
