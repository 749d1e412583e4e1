"""Links: delay, bandwidth, faults, cuts and partitions; every message is counted."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.simulation.network import LinkCounts, LinkModel, Network, Tail
from whale_ray.lab.simulator.clock import EventQueue

FOREVER_NS = 1 << 60
MANY = 20_000


class Bench:
    """A network whose nodes only record what arrives, and when."""

    def __init__(self, model: LinkModel, seed: int = 1) -> None:
        self.events = EventQueue()
        self.arrived: list[tuple[int, str, object]] = []
        self.dead: set[str] = set()
        self.network = Network(self.events, random.Random(seed), model, self._hand, lambda *_: None)

    def _hand(self, name: str, sender: str, message: object) -> bool:
        self.arrived.append((self.events.clock.now_ns, name, message))
        return name not in self.dead

    def run(self, until_ns: int = FOREVER_NS) -> None:
        self.events.run(until_ns, 1_000_000)

    def counts(self) -> LinkCounts:
        return self.network.counts()

    @property
    def messages(self) -> list[object]:
        return [message for _, _, message in self.arrived]

    @property
    def times_ns(self) -> list[int]:
        return [time_ns for time_ns, _, _ in self.arrived]


def sent_many(model: LinkModel) -> Bench:
    bench = Bench(model)
    for number in range(MANY):
        bench.network.send("a", "b", number, 100)
    bench.run()
    return bench


@pytest.mark.parametrize("chance", [0.0, 0.02, 0.3, 1.0])
def test_loss_and_duplication_are_as_probable_as_asked(chance):
    # Five standard deviations of a binomial distribution.
    bound = 5 * (MANY * chance * (1 - chance)) ** 0.5
    assert abs(sent_many(LinkModel(loss=chance)).counts().lost - MANY * chance) <= bound
    doubled = sent_many(LinkModel(duplication=chance)).counts()
    assert abs(doubled.duplicated - MANY * chance) <= bound
    assert doubled.delivered == MANY + doubled.duplicated


def test_uniform_delays_lie_between_their_bounds():
    times = sent_many(LinkModel(delay_ns=1_000, jitter_ns=500, in_order=False)).times_ns
    assert min(times) in range(1_000, 1_005)
    assert max(times) in range(1_495, 1_501)
    assert abs(sum(times) / MANY - 1_250) < 5 * 500 / 12**0.5 / MANY**0.5


def test_exponential_delays_have_their_mean_and_a_long_tail():
    model = LinkModel(delay_ns=1_000, jitter_ns=500, tail=Tail.EXPONENTIAL, in_order=False)
    times = sent_many(model).times_ns
    assert abs(sum(times) / MANY - 1_500) < 5 * 500 / MANY**0.5
    late = sum(time_ns > 1_000 + 3 * 500 for time_ns in times) / MANY
    assert 0.04 < late < 0.06  # e^-3 = 0.0498
    assert max(times) <= 1_000 + 20 * 500


def test_jitter_keeps_the_order_unless_it_may_not():
    assert sent_many(LinkModel(jitter_ns=500)).messages == list(range(MANY))
    bench = sent_many(LinkModel(jitter_ns=500, in_order=False))
    assert bench.messages != sorted(bench.messages) == list(range(MANY))


def test_only_messages_that_are_held_back_are_passed():
    bench = Bench(LinkModel(delay_ns=10, reordering=0.1, reorder_ns=1_000))
    for number in range(MANY):
        bench.network.send("a", "b", number, 1)
        bench.run(bench.events.clock.now_ns)
        bench.events.advance_to(number)
    bench.run()
    assert sorted(bench.messages) == list(range(MANY))
    passed = sum(time_ns > number + 10 for time_ns, _, number in bench.arrived)
    held_back = bench.counts().reordered
    assert 0 < passed <= held_back
    assert abs(held_back - MANY / 10) < 5 * (MANY * 0.09) ** 0.5


def test_bandwidth_sends_one_byte_after_the_other():
    bench = Bench(LinkModel(delay_ns=7, bytes_per_s=1_000_000_000))
    for nbytes in (100, 50, 1_000):
        bench.network.send("a", "b", nbytes, nbytes)
    bench.network.send("b", "a", "the other way", 10)
    bench.run()
    assert bench.arrived == [
        (17, "a", "the other way"),
        (107, "b", 100),
        (157, "b", 50),
        (1_157, "b", 1_000),
    ]


def test_messages_beyond_the_queue_of_a_link_are_dropped():
    bench = Bench(LinkModel(bytes_per_s=1_000_000, queue_bytes=250))
    for number in range(10):
        bench.network.send("a", "b", number, 100)
    bench.run()
    assert bench.messages == [0, 1, 2]  # one on the wire, two wait
    assert bench.counts().overflowed == 7


def test_links_out_of_one_node_share_its_network_card():
    bench = Bench(LinkModel(delay_ns=0))
    bench.network.limit_egress("a", 1_000_000_000)
    for target in ("b", "c", "d"):
        bench.network.send("a", target, target, 100)
    bench.network.send("b", "a", "free", 100)
    bench.run()
    assert bench.arrived == [
        (0, "a", "free"),
        (100, "b", "b"),
        (200, "c", "c"),
        (300, "d", "d"),
    ]


def test_a_cut_takes_what_is_in_flight_and_what_is_sent_until_it_heals():
    bench = Bench(LinkModel(delay_ns=100))
    network = bench.network
    network.send("a", "b", "in flight", 1)
    bench.run(50)
    network.cut_for("a", "b", 500)
    network.send("a", "b", "into the cut", 1)
    network.send("b", "a", "into the cut", 1)
    network.send("a", "c", "elsewhere", 1)
    bench.run(bench.events.clock.now_ns + 499)
    assert not network.link("a", "b").open
    bench.run()
    network.send("a", "b", "afterwards", 1)
    bench.run()
    assert bench.messages == ["elsewhere", "afterwards"]
    assert bench.counts().cut == 3


def test_cuts_add_up_and_may_go_one_way():
    network = Bench(LinkModel()).network
    network.cut("a", "b", both=False)
    network.cut("a", "b")
    network.heal("a", "b")
    assert (network.link("a", "b").open, network.link("b", "a").open) == (False, True)
    network.heal("a", "b", both=False)
    network.heal("a", "b")
    assert network.link("a", "b").open


def test_a_partition_lets_only_groups_talk_and_is_independent_of_cuts():
    bench = Bench(LinkModel())
    network = bench.network
    network.send("a", "d", "in flight", 1)
    network.partition([("a", "b"), ("c",)])
    network.cut("a", "b")
    pairs = [(x, y) for x in "abcde" for y in "abcde" if x != y]
    for source, target in pairs:
        network.send(source, target, source + target, 1)
    bench.run()
    assert sorted(map(str, bench.messages)) == ["de", "ed"]
    bench.arrived.clear()
    network.heal_partition()
    for source, target in pairs:
        network.send(source, target, source + target, 1)
    bench.run()
    assert len(bench.messages) == len(pairs) - 2
    network.heal_all()
    assert all(link.open for link in network.links())


@given(
    chances=st.tuples(*[st.sampled_from([0.0, 0.1, 0.5])] * 3),
    bytes_per_s=st.sampled_from([None, 1_000_000]),
    seed=st.integers(0, 1 << 32),
)
def test_every_message_is_accounted_for_at_any_time(chances, bytes_per_s, seed):
    loss, duplication, reordering = chances
    chance = random.Random(seed)
    model = LinkModel(
        jitter_ns=10_000,
        bytes_per_s=bytes_per_s,
        queue_bytes=10_000,
        loss=loss,
        duplication=duplication,
        reordering=reordering,
    )
    bench = Bench(model, seed)
    for number in range(200):
        source, target = chance.sample("abc", 2)
        bench.network.send(source, target, number, chance.randrange(1_000))
        if chance.random() < 0.05:
            bench.network.cut_for(source, target, chance.randrange(100_000))
        bench.dead = set(chance.sample("abc", chance.randrange(2)))
        bench.run(bench.events.clock.now_ns + chance.randrange(20_000))
        counts = bench.counts()
        assert counts.delivered + counts.unheard == len(bench.arrived)
        assert 0 <= counts.in_flight <= len(bench.events)
    bench.run()
    assert bench.counts().in_flight == 0


@pytest.mark.parametrize(
    "wrong",
    [{"loss": 1.1}, {"duplication": -0.1}, {"delay_ns": -1}, {"queue_bytes": -1}],
    ids=str,
)
def test_an_invalid_link_is_refused(wrong):
    with pytest.raises(ValueError, match="a probability outside 0 to 1, or a negative"):
        LinkModel(**wrong)


def test_a_link_without_bandwidth_is_refused():
    with pytest.raises(ValueError, match="carries nothing; cut it instead"):
        LinkModel(bytes_per_s=0)
