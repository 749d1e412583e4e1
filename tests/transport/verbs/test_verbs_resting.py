"""Hosts that rest as relays do, over queue pairs: completions wake them, and nothing else does.

Over soft-RoCE alone: pretended devices do nothing while nobody polls.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.transport.test_resting_hosts import QUIET, RestingHost, pass_along_a_chain
from tests.transport.verbs.conftest import DEVICES, machine_of

pytestmark = [pytest.mark.usefixtures("no_leaks"), pytest.mark.rdma]


@pytest.mark.parametrize("data", ["read", "write", "send"])
def test_no_completion_is_lost_between_hosts_that_take_one_turn_for_each_wake(data: str):
    library = machine_of("soft-RoCE").library
    settings = replace(QUIET, between_hosts="verbs", verbs_data=data)
    hosts = [
        RestingHost(name, replace(settings, rdma_device=device), lambda: library)
        for name, device in zip(("first", "second", "third"), (*DEVICES, DEVICES[0]), strict=True)
    ]
    pass_along_a_chain(hosts, 300)
