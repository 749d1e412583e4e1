"""A small world of switches: a coordinator, vertices, and messages with all kinds of faults.

Between coordinator and vertices messages are lost, doubled and reordered; between vertices they
are lost with their link, but come in order. Hosts die and are replaced, on the memory that they
had; so is the source's. Every step checks that none reads a byte twice, misses one, or asks for
one that is gone.
"""

from __future__ import annotations

import random
from collections import deque

from whale_ray.multicast.floors import Acknowledgement
from whale_ray.multicast.switch_messages import AddressedMessage
from whale_ray.multicast.switch_protocol import SwitchCoordinator, SwitchPhase, SwitchRecord
from whale_ray.multicast.switch_vertex import SwitchVertex
from whale_ray.multicast.switching import Switch, change_degree, join, leave, reshape
from whale_ray.multicast.trees import Tree, chain, non_blocking_tree, star

PATIENCE_TICKS = 6
LINE_MAX = 1 << 12
ROOT = 0


class World:
    """A coordinator, the vertices of one stream, and the messages between them."""

    def __init__(self, seed: int, *, forgets: bool = False) -> None:
        """Begin with any tree; with `forgets` the source may lose what it retains."""
        self.chance = random.Random(seed)
        shapes = (star, chain, lambda root, others: non_blocking_tree(root, others, 2))
        tree = self.chance.choice(shapes)(ROOT, range(1, self.chance.randint(2, 9)))
        self.vertices = {name: SwitchVertex.of(name, tree) for name in tree.vertices}
        self.coordinator = SwitchCoordinator(1, SwitchRecord(tree), PATIENCE_TICKS)
        self.capacity = self.chance.choice((12, 60, 1 << 40))
        """Bytes of every ring."""
        self.retention = self.chance.choice((0, 30, 1 << 40))
        """Bytes that the source retains beyond its ring."""
        self.forgets = forgets
        self.degree = 3
        self.bag: list[AddressedMessage] = []
        self.lines: dict[tuple[int, int], deque[AddressedMessage | Acknowledgement]] = {}
        self.memories: dict[int, int] = {}
        """The positions of failed hosts, whose memory is kept."""
        self.expected: set[int] = set()
        """Failed hosts that come back, or have, and are not in the tree yet."""
        self.unnoticed: list[int] = []
        self.outcomes: list[tuple[SwitchPhase, Tree]] = []
        self.is_faulty = True
        self.end: int | None = None
        self.dead_root: tuple[SwitchVertex, SwitchRecord] = (self.root, self.coordinator.record)

    @property
    def root(self) -> SwitchVertex:
        """The root; the last one while it is away."""
        return self.vertices.get(ROOT) or self.dead_root[0]

    # --- messages ---------------------------------------------------------------------------

    def send(self, messages: list[AddressedMessage], sender: int | None = None) -> None:
        for one in messages:
            copies = self.chance.choice((0, 1, 1, 1, 2)) if self.is_faulty else 1
            if sender is not None and one.to is not None:
                self.say(sender, one.to, one)
            else:
                self.bag += [one] * copies

    def say(self, sender: int, to: int, what: AddressedMessage | Acknowledgement) -> None:
        if to not in self.vertices or (self.is_faulty and self.chance.random() < 0.2):
            return
        self.lines.setdefault((sender, to), deque(maxlen=LINE_MAX)).append(what)

    def lead(self, call, *arguments) -> None:
        """Let the coordinator act."""
        before = self.coordinator.record
        out = call(*arguments)
        self.follow(before)
        self.send(out)

    def follow(self, before: SwitchRecord) -> None:
        record = self.coordinator.record
        if record.epoch != before.epoch:
            self.outcomes.append((SwitchPhase.COMMITTING, record.tree))
            self.expected -= set(record.tree.vertices)
        was_open = before.phase is SwitchPhase.PREPARING or record.last_epoch != before.last_epoch
        if (
            was_open
            and record.epoch != record.last_epoch
            and record.phase is not SwitchPhase.PREPARING
        ):
            self.outcomes.append((SwitchPhase.ABORTING, record.tree))

    def deliver(self) -> None:
        if self.lines and (not self.bag or self.chance.random() < 0.5):
            self.deliver_line()
            return
        if not self.bag:
            return
        place = self.chance.randrange(len(self.bag)) if self.is_faulty else 0
        one = self.bag.pop(place)
        if one.to is None:
            self.lead(self.coordinator.receive, one.message)
        elif one.to in self.vertices:
            self.send(self.vertices[one.to].receive(one.message), one.to)

    def deliver_line(self) -> None:
        sender, to = pair = self.chance.choice(list(self.lines))
        one = self.lines[pair].popleft()
        if not self.lines[pair]:
            del self.lines[pair]
        if isinstance(one, Acknowledgement):
            self.vertices[to].acknowledged(sender, one)
        else:
            self.send(self.vertices[to].receive(one.message), to)

    def tick(self) -> None:
        self.lead(self.coordinator.tick)
        for name, vertex in self.vertices.items():
            self.send(vertex.tick(), name)

    # --- bytes ------------------------------------------------------------------------------

    def produce(self) -> None:
        tails = [self.root.received, *self.root.serves.values()]
        room = self.capacity - (self.root.received - min(tails))
        room = min(room, self.capacity + self.retention - (self.root.received - self.root.floor))
        if room > 0 and self.end is None and ROOT in self.vertices:
            self.root.produce(self.chance.randint(1, min(room, 20)))

    def flow(self) -> None:
        name = self.chance.choice(list(self.vertices))
        vertex = self.vertices[name]
        span = vertex.reading
        if span is None or span.parent not in self.vertices:
            return
        parent = self.vertices[span.parent]
        if name not in parent.serves:
            return
        is_over = self.end is not None and vertex.received >= self.end
        if vertex.received < parent.held_from and not is_over:
            # The child does not know yet that it gets these bytes from another parent.
            is_early = vertex.epoch < parent.epoch and vertex.received < parent.serves[name]
            assert self.forgets or is_early, f"{parent.name} forgot for {name}"
            self.send([] if is_early else parent.starved(name, vertex.received), parent.name)
            return
        end = min(parent.received, vertex.floor + self.capacity)
        if vertex.limit is not None and self.chance.random() < 0.5:
            end = min(end, vertex.limit)
        if end > vertex.received:
            end = self.chance.randint(vertex.received + 1, end)
            self.send(vertex.read(span.parent, vertex.received, end), name)
        if self.end is not None and vertex.received == self.end:
            self.send(vertex.ended(self.end), name)
        if self.chance.random() < 0.7:
            parent.child_read(name, vertex.received)

    def release(self) -> None:
        """Give back what no vertex needs, as the ring's owner does."""
        vertex = self.chance.choice(list(self.vertices.values()))
        vertex.held_from = max(vertex.held_from, vertex.floor)

    def acknowledge(self) -> None:
        vertex = self.chance.choice(list(self.vertices.values()))
        if vertex.parent is not None:
            self.say(vertex.name, vertex.parent, vertex.acknowledgement)

    # --- faults -------------------------------------------------------------------------

    def kill(self) -> None:
        name = self.chance.choice(list(self.vertices))
        self.lines = {pair: line for pair, line in self.lines.items() if name not in pair}
        if name == ROOT:
            self.dead_root = (self.vertices.pop(ROOT), self.coordinator.record)
        elif len(self.vertices) > 2:
            self.memories[name] = self.vertices.pop(name).received
            self.unnoticed.append(name)

    def replace_root(self) -> None:
        """Another root goes on with the ring, and with what was retained unless that is lost.

        What it is told of the tree may be as old as the death of the one before it.
        """
        if ROOT in self.vertices:
            return
        old, record = self.dead_root
        held_from = old.held_from
        if self.forgets:
            held_from = max(held_from, min([old.received, *old.serves.values()]))
        told_first = self.chance.random() < 0.3
        if told_first:
            self.lead(self.coordinator.root_restarted)
            record = self.coordinator.record
        term = self.coordinator.term
        self.vertices[ROOT] = SwitchVertex.root_from(record, term, held_from, old.received)
        if not told_first:
            self.lead(self.coordinator.root_restarted)

    def notice(self) -> None:
        if self.unnoticed:
            name = self.unnoticed.pop()
            if name in self.coordinator.tree.vertices:
                self.expected.add(name)  # else it has left the tree, or has not joined it
            self.lead(self.coordinator.lost, name)

    def fail_over(self) -> None:
        """Another coordinator goes on from the record; what the old one sent is still under way."""
        old = self.coordinator
        self.coordinator = SwitchCoordinator(old.term + 1, old.record, PATIENCE_TICKS)
        self.follow(old.record)

    # --- switches ---------------------------------------------------------------------------

    def switch(self) -> None:
        coordinator = self.coordinator
        if coordinator.phase is not SwitchPhase.STABLE or ROOT not in self.vertices:
            return
        last = coordinator.record.last_epoch
        cut = max(last + 1, self.root.received + self.chance.randint(0, 9))
        switch = self.choose()
        tree = switch.before
        if not set(switch.after.joined) - set(tree.joined) - self.expected:
            # Only a host that is new begins at the cut, so without one any cut will do.
            cut = self.chance.choice((0, self.chance.randint(0, self.root.received), cut))
        orphans = {
            one: 0
            for failed in coordinator.record.gone & set(tree.vertices)
            for one in tree.children[failed]
        }
        joining = set(switch.after.joined) - set(tree.joined)
        back = {name: 0 for name in joining if name in self.expected}
        try:
            self.lead(coordinator.begin, switch, cut, {**orphans, **back})
        except ValueError as error:
            if "repair first" not in str(error):
                raise
            return
        for name in joining - self.vertices.keys():
            begin = self.memories.pop(name, cut)
            self.vertices[name] = SwitchVertex(name, ROOT, None, epoch=last, received=begin)

    def choose(self) -> Switch:
        coordinator, tree = self.coordinator, self.coordinator.tree
        failed = coordinator.record.gone & set(tree.joined)
        if failed:
            repaired = leave(tree, failed, self.degree)
            if self.chance.random() < 0.2:  # the repair and a new shape in one switch
                return Switch(tree, self.draw_tree(repaired.after.joined), self.degree)
            return repaired
        back = sorted(self.expected - set(tree.vertices) - set(self.unnoticed))
        if coordinator.uninformed or coordinator.record.leaving & set(back):
            back = []
        choice = self.chance.random() if self.is_faulty else 1.0
        if back and (choice < 0.5 or not self.is_faulty):
            return join(tree, back[0], self.degree)
        if choice < 0.1:
            new = max([*tree.vertices, *self.vertices, *coordinator.record.gone, *self.unnoticed])
            return join(tree, new + 1, self.degree)
        if choice < 0.2 and len(tree) > 3:
            return leave(tree, [self.chance.choice(tree.joined)], self.degree)
        if choice < 0.6:
            return reshape(tree, self.draw_tree(tree.joined))
        if self.is_faulty:
            self.degree = self.chance.randint(1, 4)
        caps = {name: self.chance.randint(1, 4) for name in tree.vertices}
        return change_degree(tree, self.degree, caps)

    def draw_tree(self, joined: tuple[int, ...]) -> Tree:
        order = self.chance.sample(joined, len(joined))
        edges = [
            (self.chance.choice([ROOT, *order[:place]]), child) for place, child in enumerate(order)
        ]
        return Tree(ROOT, tuple(edges), joined)

    # --- the run ----------------------------------------------------------------------------

    def live(self, steps: int) -> None:
        usual = [self.deliver] * 16 + [self.flow] * 12 + [self.release] * 3 + [self.produce] * 2
        usual += [self.acknowledge] * 4 + [self.tick, self.switch]
        for _ in range(steps):
            happens = self.chance.choice(usual)
            if self.chance.random() < 0.004:
                happens = self.chance.choice((self.kill, self.fail_over))
            elif self.unnoticed and self.chance.random() < 0.02:
                happens = self.notice
            elif self.chance.random() < 0.02:
                happens = self.replace_root
            happens()
            self.check()
            if self.coordinator.failure:
                return

    def check(self) -> None:
        floors = self.root.floors
        for vertex in self.vertices.values():
            assert vertex.held_from <= max(vertex.floor, vertex.received), vertex.name
            if not self.forgets:
                assert vertex.held_from <= vertex.floor, f"{vertex.name} gave back what is needed"
        received = {name: vertex.received for name, vertex in self.vertices.items()}
        received |= self.memories
        for name in self.coordinator.tree.joined:
            if name in received and floors and not self.forgets:
                kept = self.root.retain_from
                assert kept <= max(received[name], self.coordinator.record.epoch), name

    def settle(self) -> None:
        """No more faults: all hosts return, the switch ends, the stream flows to its end."""
        self.is_faulty = False
        while self.unnoticed:
            self.notice()
        self.replace_root()
        is_last = False
        for _ in range(800):
            failed = self.coordinator.record.gone & set(self.coordinator.tree.vertices)
            if self.coordinator.phase is SwitchPhase.STABLE and (failed or self.expected):
                self.switch()
            while self.bag or self.lines:
                self.deliver()
            if self.root.received < self.coordinator.record.last_epoch + 20 and not is_last:
                self.produce()
            self.tick()
            while self.bag or self.lines:
                self.deliver()
            for _step in range(6 * len(self.vertices)):
                self.flow()
                self.release()
                self.acknowledge()
            while self.bag or self.lines:
                self.deliver()
            self.check()
            if self.coordinator.failure:
                return
            has_all = all(one.received <= self.root.received for one in self.vertices.values())
            if not self.expected and has_all and self.is_settled():
                if is_last:
                    return
                # One more switch, whose cut the stream will not reach: it ends before.
                self.end, is_last = self.root.received, True
                shape = reshape(self.coordinator.tree, self.draw_tree(self.coordinator.tree.joined))
                cut = self.end + 100
                self.lead(self.coordinator.begin, shape, cut)
                self.send(self.root.ended(self.end), ROOT)
        raise AssertionError(f"never at rest: {self.coordinator.record}")

    def is_settled(self) -> bool:
        head, tree = self.root.received, self.coordinator.tree
        is_still = self.coordinator.phase is SwitchPhase.STABLE and not self.bag and not self.lines
        if not is_still or self.coordinator.record.gone & set(tree.vertices):
            return False
        has_all = all(self.vertices[name].received >= head for name in tree.vertices)
        floors = self.root.floors
        return has_all and floors is not None and not floors.pinned and floors.floor(head) == head


def play(seed: int, *, forgets: bool = False) -> World:
    """Live a life to its end; AssertionError or ProtocolError if it does not end well."""
    world = World(seed, forgets=forgets)
    world.live(1200)
    world.settle()
    if world.coordinator.failure:
        assert forgets, world.coordinator.failure
        return world
    tree = world.coordinator.tree
    for name in tree.vertices:
        vertex = world.vertices[name]
        assert vertex.epoch == world.coordinator.record.epoch
        assert vertex.parent == tree.parents.get(name)
        assert vertex.children == set(tree.children[name])
        assert vertex.limit is None and vertex.settled
    return world
