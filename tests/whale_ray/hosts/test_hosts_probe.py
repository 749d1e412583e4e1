"""Why a machine cannot make hosts: each lack is named, with its remedy."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from whale_ray.configs.errors import ResourceError
from whale_ray.testing.hosts import NamespaceHosts, capability, probe


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Let every test look anew, and what comes later, too."""
    capability.cache_clear()
    yield
    capability.cache_clear()


def test_the_lack_of_root_rights_is_reported(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert capability().lack == "network namespaces need root, and this is user 1000"
    with pytest.raises(ResourceError, match="no hosts for tests: network namespaces need root"):
        NamespaceHosts(1).__enter__()


@pytest.mark.parametrize(
    ("tool", "package"), [("ip", "iproute2"), ("tc", "iproute2"), ("unshare", "util-linux")]
)
def test_a_missing_tool_is_named_with_its_package(monkeypatch, tool, package):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(probe, "find", lambda name: None if name == tool else f"/usr/bin/{name}")
    assert capability().lack == (
        f"`{tool}` is missing; install {package} (apt-get install {package})"
    )


@pytest.mark.usefixtures("hosts_possible")
def test_a_kernel_without_bridges_says_so(monkeypatch):
    capability.cache_clear()
    failing = list(probe._TRIALS)
    failing[1] = ("bridges", "{ip} link add bridge type no-such-type")
    monkeypatch.setattr(probe, "_TRIALS", failing)
    assert capability().lack.startswith("no bridges: ")
    assert "Unknown device type" in capability().lack


@pytest.mark.usefixtures("hosts_possible")
@pytest.mark.parametrize("works", [False, True])
def test_delays_are_known_apart(monkeypatch, works):
    capability.cache_clear()
    monkeypatch.setattr(
        probe, "_TRIALS", [*probe._TRIALS[:-1], ("netem", "true" if works else "false")]
    )
    assert capability() == probe.Capability("", delays=works)
