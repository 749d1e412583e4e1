"""Links over queue pairs: whatever holds for those over sockets, and what only verbs can do wrong.

The tests of links over sockets run again over verbs: the fixture `hosts` is another one.
"""

from __future__ import annotations

import os

import pytest

from tests.transport.links import STREAM, Hosts, Source
from tests.transport.test_tcp_endpoint import (  # noqa: F401  (collected here once more)
    star,
    test_a_chain_forwards_what_it_has_not_published,
    test_a_child_may_ask_before_there_is_anything_to_offer,
    test_a_child_that_cannot_be_served_loses_its_link,
    test_a_child_that_leaves_blocks_nothing,
    test_a_host_at_rest_has_nothing_due_now,
    test_a_ring_overwritten_by_its_own_host_is_an_error_there,
    test_a_slow_end_of_a_chain_blocks_the_source,
    test_a_slow_reader_for_long_is_back_pressure_and_nothing_else,
    test_a_stream_reaches_every_child_whole,
    test_an_unread_stream_blocks_no_other,
    test_closing_is_final_and_announced,
    test_control_messages_go_both_ways_once_and_in_order,
    test_control_messages_that_are_not_taken_block_the_sender,
    test_frames_larger_than_a_message_go_out_in_pieces,
    test_two_hosts_may_be_each_others_parents,
    test_when_all_children_have_left_the_producer_learns_it,
)
from tests.transport.test_tcp_moves import (  # noqa: F401  (collected here once more)
    test_a_child_that_wants_released_bytes_is_named_and_keeps_its_link,
    test_a_host_that_comes_back_elsewhere_is_dialled_there_at_once,
    test_a_new_parent_may_have_no_link_yet_and_not_have_admitted,
    test_control_messages_pass_while_links_come_and_go,
    test_moves_at_any_time_lose_and_double_nothing,
    test_two_hosts_are_parents_of_each_other_and_swap,
    test_undial_needs_all_streams_to_have_moved,
)
from tests.transport.test_tcp_reconnection import (  # noqa: F401  (collected here once more)
    test_a_child_that_dials_anew_replaces_its_former_link,
    test_a_host_that_is_not_there_yet_is_dialled_again_and_again,
    test_a_peer_that_was_rejected_loses_its_link_and_comes_again,
    test_a_relay_in_the_middle_that_loses_both_links,
    test_control_messages_survive_cuts,
)
from tests.transport.verbs.conftest import DEVICES, Machine
from tests.transport.verbs.test_verbs_queue_pair import connect, side_of
from whale_ray.transport.links.link import LinkBrokenError
from whale_ray.transport.tcp.endpoint import TcpEndpoint


def at_rest(hosts: Hosts) -> tuple[TcpEndpoint, TcpEndpoint]:
    """Link a parent and a child, and let both do what there is to do; return them."""
    star(hosts, "child")
    hosts.until(lambda: hosts.up("child"))
    while hosts.poll(20):
        pass
    return hosts.endpoints["parent"], hosts.endpoints["child"]


def test_a_completion_wakes_a_sleeping_host(hosts: Hosts):
    parent, child = at_rest(hosts)
    child.sockets.ready()
    assert parent.send_control("child", b"wake up").name == "SENT"
    for _ in range(100):
        parent.poll()
    child.sockets.wait(60_000_000_000)
    (descriptor,) = (bell.completions_fd for bell in child._descriptors.bells)
    assert descriptor in dict(child.sockets.ready())
    hosts.until(lambda: child.receive_control() == ("parent", b"wake up"))


def test_what_comes_while_a_host_gets_ready_to_sleep_is_unfinished(hosts: Hosts):
    parent, child = at_rest(hosts)
    assert not child.unfinished
    (connection,) = child._links.values()
    arm = connection._pair.arm

    def late() -> None:
        parent.send_control("child", b"good night")
        for _ in range(100):
            parent.poll()
        arm()

    connection._pair.arm, connection._armed = late, False
    assert not child.arm(0)
    assert child.unfinished, "it must be acknowledged before anybody sleeps"


def test_many_small_messages_are_read_and_none_is_lost(hosts: Hosts):
    """More than may be READ at a time, from rings that wrap."""
    star(hosts, "child")
    sources = [Source(300, lambda _n: 3000) for _ in range(6)]
    targets = [
        hosts.stream(source, "parent", ["child"], STREAM + number)[0]
        for number, source in enumerate(sources)
    ]
    for source in sources:
        source.step()  # all of a ring is there before anybody asks
    steps = [one.step for one in (*sources, *targets)]
    hosts.until(lambda: all(target.over for target in targets), *steps)
    assert [target.received for target in targets] == [source.all for source in sources]


def test_a_job_that_has_ended_leaves_no_descriptor_open_and_no_key_of_use(machine: Machine):
    before = os.listdir("/proc/self/fd")
    hosts = machine.hosts()
    star(hosts, "child")
    source = Source(60, lambda _n: 3000)
    (target,) = hosts.stream(source, "parent", ["child"])
    hosts.until(lambda: len(target.received) > 20, source.step, target.step)
    (regions,) = hosts.endpoints["parent"]._carriers._devices.values()
    key, address = next(
        (region.rkey, region.address)
        for tap, region in regions._found.values()
        if tap is source.tap
    )
    hosts.until(lambda: target.over, source.step, target.step)
    hosts.close()
    assert os.listdir("/proc/self/fd") == before
    near, far = connect(*(side_of(machine, name) for name in reversed(DEVICES)))
    near.post(near.device.library.READ, 64, far, remote=address, rkey=key)
    with pytest.raises(LinkBrokenError, match="access refused by the peer"):
        near.settle()
    near.close()
    far.close()
