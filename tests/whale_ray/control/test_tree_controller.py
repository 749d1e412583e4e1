"""The controller of a job's trees, with vertices that answer at once: stories."""

from __future__ import annotations

from collections import deque

import pytest

from whale_ray.configs.errors import UsageError
from whale_ray.configs.settings import MulticastSettings
from whale_ray.control.tree_controller import (
    TICK_NS,
    Orders,
    TreeController,
)
from whale_ray.multicast.switch_messages import AddressedMessage, Message, Starved
from whale_ray.multicast.switch_vertex import SwitchVertex
from whale_ray.multicast.tree_messages import StreamLoad
from whale_ray.multicast.tree_state import (
    Goal,
    check_goal,
)
from whale_ray.multicast.trees import (
    Route,
    Tree,
)
from whale_ray.plan.hosts import (
    assign_hosts,
)
from whale_ray.plan.streams import RingSpec, StreamPlan

HOSTS = 8
MS = 1_000_000
SLICE, CAPACITY = 1000, 1_000_000


class World:
    """A stream of host 0 to seven others; bytes flow to all at once, and messages are answered."""

    def __init__(self, route: Route = "non-blocking", degree: int = 0) -> None:
        self.plan = StreamPlan(
            HOSTS,
            (RingSpec(0, 0, 0, tuple(range(HOSTS)), CAPACITY),),
            assign_hosts(HOSTS, HOSTS, route, degree=degree),
        )
        self.settings = MulticastSettings(out_degree=degree)
        self.now = 0
        self.controller = TreeController(self.plan, self.settings, self.now)
        self.vertices = {host: SwitchVertex.of(host, self.tree) for host in range(HOSTS)}
        self.failed: set[int] = set()
        self.head = 0

    @property
    def tree(self) -> Tree:
        return self.controller.trees[0]

    def carry_out(self, orders: Orders) -> None:
        waiting: deque[tuple[int, Message]] = deque(maxlen=1000)

        def say(host: int, said: list[AddressedMessage]) -> None:
            for one in said:
                waiting.append((-1 if one.to is None else int(one.to), one.message))

        def order(orders: Orders) -> None:
            for host, order in orders:
                waiting.extend((host, message) for _, message in order.messages)

        order(orders)
        while waiting:
            to, message = waiting.popleft()
            if to == -1:
                order(self.controller.answered(0, message, self.now))
            elif to not in self.failed:
                vertex = self.vertices[to]
                say(to, vertex.receive(message))

    def flow(self, rate: float = 100.0, send_s: float = 1e-5, queue: int = 0) -> None:
        """Let 50 ms pass at `rate` slices a second; the source's relay tells its load."""
        self.now += 50 * MS
        arrived = int(rate * 0.05) * SLICE
        self.head += arrived
        said: list[AddressedMessage] = []
        for host, vertex in self.vertices.items():
            if host == 0:
                vertex.produce(self.head - vertex.received)
            elif host not in self.failed:
                said += vertex.arrived(self.head)
        for vertex in self.vertices.values():
            for child in vertex.serves:
                vertex.child_read(child, self.vertices[int(child)].received)
            vertex.held_from = max(vertex.held_from, vertex.floor)  # as the ring's tail
        for one in said:
            if one.to is None:
                self.carry_out(self.controller.answered(0, one.message, self.now))
            else:
                for answer in self.vertices[int(one.to)].receive(one.message):
                    if answer.to is not None:
                        for last in self.vertices[int(answer.to)].receive(answer.message):
                            if last.to is None:
                                self.carry_out(self.controller.answered(0, last.message, self.now))
        load = StreamLoad(
            0, 0, self.now, self.head, 50 * MS, arrived, queue * SLICE, SLICE, send_s, CAPACITY
        )
        self.carry_out(self.controller.loaded(load, self.now))
        self.carry_out(self.controller.turn(self.now))


def test_an_idle_tree_stays_as_it_is() -> None:
    world = World()
    for _ in range(40):
        world.flow()
    assert world.controller.switches == ()
    assert world.tree.degree == 3


@pytest.mark.parametrize(
    ("goal", "degree"),
    [
        (Goal("star"), 7),
        (Goal("chain"), 1),
        (Goal("binomial"), 3),
        (Goal("non-blocking", 2), 2),
    ],
)
def test_the_shape_that_is_wanted_is_reached_and_kept(goal: Goal, degree: int) -> None:
    world = World("non-blocking", 1)
    world.flow()
    world.controller.set_goal(goal)
    for _ in range(20):
        world.flow()
    assert world.tree.degree == degree
    assert len(world.controller.switches) == (goal.route != "chain")
    assert all(one.ended_ns and not one.aborted for one in world.controller.switches)
    assert {one.why for one in world.controller.switches} <= {"reshape"}


def test_no_wider_tree_is_wanted_than_the_fastest_once_a_star_is_left_to_the_load() -> None:
    world = World("star")
    world.flow()
    world.controller.set_goal(Goal("non-blocking"))
    for _ in range(20):
        world.flow()
    load = world.controller.loads[0]
    assert world.tree.degree == load.wanted_degree == 3


def test_a_queue_before_slow_children_narrows_the_tree_and_a_low_rate_widens_it() -> None:
    world = World()
    for queue in (0, 100, 400, 950, 950, 950):
        world.flow(rate=4000, send_s=1.2e-4, queue=queue)
    assert world.tree.degree == 2
    assert [one.why for one in world.controller.switches] == ["scale-down"]
    for _ in range(60):
        world.flow(rate=500, send_s=1.2e-4)
    assert world.tree.degree == 3
    assert [one.why for one in world.controller.switches] == ["scale-down", "scale-up"]


def test_a_load_that_no_degree_sustains_is_reported() -> None:
    world = World()
    for _ in range(20):
        world.flow(rate=20_000, send_s=1e-4, queue=950)
    assert world.tree.degree == 1
    assert world.controller.throttled[0] == pytest.approx(1e4, rel=0.01)


def test_the_tree_is_repaired_around_a_dead_relay_which_then_returns() -> None:
    world = World("star")
    world.controller.set_goal(Goal("non-blocking", 2))
    for _ in range(10):
        world.flow()
    parent = next(int(v) for v in world.tree.joined if world.tree.children[v])
    world.failed.add(parent)
    world.carry_out(world.controller.lost(parent, world.now))
    for _ in range(10):
        world.flow()
    assert parent not in world.tree.vertices
    record = world.controller.states[0].record
    received = world.vertices[parent].received
    world.vertices[parent] = SwitchVertex(
        parent, 0, None, epoch=record.last_epoch, received=received
    )
    world.failed.clear()
    world.carry_out(world.controller.back(parent, world.now))
    for _ in range(10):
        world.flow()
    assert set(world.tree.vertices) == set(range(HOSTS))
    assert world.vertices[parent].received == world.head
    switches = world.controller.switches
    assert [one.why for one in switches] == ["reshape", "repair", "return"]
    # Each switch begins with the tree that the one before it left; the last one is in force.
    assert [one.before for one in switches[1:]] == [one.after for one in switches[:-1]]
    assert switches[-1].after == world.tree
    assert parent not in switches[1].after.vertices


def test_hosts_are_called_by_their_names() -> None:
    world = World()
    world.flow()
    world.failed.add(3)
    world.controller.set_goal(Goal("star", 0))
    world.flow()
    world.carry_out(world.controller.lost(3, world.now))
    (switch,) = (one for one in world.controller.switches if one.aborted)
    assert switch.aborted == "host-3 has failed"
    world.carry_out(world.controller.answered(0, Starved(1, 0, 0, 3, 40, 5000), world.now))
    assert world.controller.failure == (
        "host-3 needs the stream from byte 40 on, but host-0 holds it from byte 5,000 on only"
    )


def test_nothing_is_begun_while_the_source_has_no_relay() -> None:
    world = World()
    world.flow()
    world.carry_out(world.controller.lost(0, world.now))
    world.controller.set_goal(Goal("star"))
    world.carry_out(world.controller.turn(world.now + TICK_NS))
    assert world.controller.switches == ()
    record = world.controller.states[0].record
    world.vertices[0] = SwitchVertex.root_from(record, 0, world.head, world.head)
    world.carry_out(world.controller.back(0, world.now))
    for _ in range(5):
        world.flow()
    assert world.tree.degree == 7


def test_a_successor_goes_on_with_what_was_written_down() -> None:
    world = World()
    world.controller.set_goal(Goal("non-blocking", 1))
    world.flow()
    states = world.controller.states
    assert states[0].goal == Goal("non-blocking", 1)
    world.controller = TreeController(world.plan, world.settings, world.now, 2, states)
    for _ in range(10):
        world.flow()
    assert world.tree.degree == 1


def test_two_hosts_have_no_tree_to_keep() -> None:
    plan = StreamPlan(2, (RingSpec(0, 0, 0, (0, 1), CAPACITY),), assign_hosts(2, 2, "star"))
    controller = TreeController(plan, MulticastSettings(), 0)
    controller.set_goal(Goal("chain"))
    assert controller.turn(TICK_NS) == []
    assert controller.trees == {}


def test_impossible_goals_are_refused_in_one_line() -> None:
    with pytest.raises(UsageError) as caught:
        check_goal(Goal("ring"))  # type: ignore[arg-type]  # a user's mistake
    assert str(caught.value) == (
        "there is no route 'ring'; use one of: non-blocking, star, chain, binomial"
    )
    with pytest.raises(UsageError, match="only a non-blocking tree has one"):
        check_goal(Goal("star", 3))
    with pytest.raises(UsageError, match="1 or more"):
        check_goal(Goal("non-blocking", -1))
