"""The state machines of transport/ under simulated faults: new seeds in every run.

The base of the seeds is printed at the start; a failure prints the command that repeats its seed.
Seeds that failed once are in `past_failures/` and are tried first. Injected faults test that the
scenarios detect them.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.simulation.scenarios import epoch_stages, epochs, merging, store, tasks
from tests.simulation.scenarios.multicast import Play
from tests.simulation.seeds import (
    SCENARIOS,
    SeedFailedError,
    find_scenario,
    for_seeds,
    fresh_base,
    play_seed,
    seeds_from,
    seeds_of_file,
)
from tests.simulation.simulator import Simulator
from whale_ray.control.epoch_progress import EpochProgress
from whale_ray.control.epoch_session import EpochSession
from whale_ray.multicast.floors import Acknowledgement, SourceFloors
from whale_ray.multicast.read_plan import Span
from whale_ray.multicast.switch_messages import PlannedMove
from whale_ray.multicast.switch_protocol import SwitchPhase
from whale_ray.multicast.switch_vertex import SwitchVertex
from whale_ray.operators.learnt_schema import LearntSchema
from whale_ray.relay.watermark_exchange import WatermarkExchange
from whale_ray.state.epochs import checkpoint_store, retention
from whale_ray.state.epochs.aligner import EpochAligner
from whale_ray.state.epochs.checkpoint_store import CheckpointStore
from whale_ray.state.epochs.claim import Claim
from whale_ray.state.epochs.coordinator import EpochCoordinator, EpochPhase
from whale_ray.state.epochs.coordinator_events import Action, CommitEpoch
from whale_ray.state.epochs.manifest import ChunkFile
from whale_ray.state.epochs.newest_note import NewestNote
from whale_ray.state.epochs.store_files import StoreFiles
from whale_ray.state.epochs.store_names import ManifestName
from whale_ray.state.watermarks import WatermarkTracker
from whale_ray.tasks.partial_node import PartialNode
from whale_ray.transport.links.attached import Offer
from whale_ray.transport.links.control import ControlOutbox
from whale_ray.transport.links.link import Link, Role
from whale_ray.transport.links.link_header import SEQUENCE_MASK
from whale_ray.transport.links.manager import LinkManager
from whale_ray.transport.links.peer import Peer
from whale_ray.transport.links.streams import StreamSender

PAST_FAILURES = Path(__file__).with_name("past_failures")
SEEDS = {
    "resumption": 300,
    "forwarding": 200,
    "moving": 125,
    "multicast": 500,
    "epochs": 500,
    "store": 500,
    "tasks": 500,
    "merging": 500,
}
"""In a minute or so; `make soak` plays more."""
BLOCK = 25
"""Seeds that one test plays at most."""
FEW = 5
"""Seeds of each scenario that `make test` plays."""
SEEDS_TO_CATCH = dict.fromkeys(SEEDS, 100) | {"moving": 200, "multicast": 500, "epochs": 500}
SEEDS_TO_CATCH |= dict.fromkeys(("store", "tasks", "merging"), 1_000)
BASE = fresh_base()
CONTROLLER_STEPS = (
    "InjectMarker",
    "EpochForgotten",
    "WriteManifest",
    "EpochDurable",
    "CommitEpoch",
    "ReleaseEpoch",
    "write down",
    "start",
)
"""What the controller of the scenario "epochs" does; it is killed before any of it."""


@pytest.fixture(scope="module", autouse=True)
def _print_base(request: pytest.FixtureRequest) -> None:
    """Print the base even where the output of tests is captured."""
    capture = request.config.pluginmanager.get_plugin("capturemanager")
    with contextlib.nullcontext() if capture is None else capture.global_and_fixture_disabled():
        sys.stdout.write(f"\nsimulation: {sum(SEEDS.values())} seeds from base {BASE}\n")


def test_every_scenario_has_its_share_of_seeds():
    assert SEEDS.keys() == SCENARIOS.keys()
    assert SEEDS["resumption"] + SEEDS["forwarding"] == 500
    for name in ("multicast", "epochs", "store", "tasks", "merging"):
        assert SEEDS[name] == 500
    assert {path.stem for path in PAST_FAILURES.glob("*.txt")} <= SEEDS.keys()


@pytest.mark.parametrize("name", SEEDS)
def test_seeds_that_failed_once_pass(name):
    for_seeds(find_scenario(name), seeds_of_file(PAST_FAILURES / f"{name}.txt"))


BLOCKS = [
    pytest.param(name, first, end - first, marks=pytest.mark.long if first else ())
    for name, count in SEEDS.items()
    for first, end in itertools.pairwise([0, *range(FEW, count, BLOCK), count])
]


@pytest.mark.parametrize(("name", "first", "count"), BLOCKS)
def test_new_seeds_pass(name, first, count):
    assert for_seeds(find_scenario(name), seeds_from(BASE + first, count)) == count


@pytest.mark.parametrize("name", SEEDS)
def test_a_seed_plays_the_same_again(name):
    scenario = find_scenario(name)
    assert play_seed(scenario, BASE) == play_seed(scenario, BASE)
    traces = []
    for _ in range(2):
        simulation = Simulator(BASE, trace_events=1_000)
        scenario.play(simulation)
        traces.append(simulation.trace_text())
    assert traces[0] == traces[1]


@pytest.mark.long
def test_the_multicast_scenario_covers_all_of_its_events():
    """Otherwise its success would mean nothing."""
    phases: Counter[SwitchPhase] = Counter()
    deaths = terms = stale = aligned = 0
    for seed in range(60):
        played = Play(Simulator(seed))
        played.run()
        phases += played.journal.phases
        deaths += sum(played.fleet.deaths.values())
        terms += played.journal.term - 1
        aligned += len(set(played.memories[0].slot_hosts)) > 1
        for relay in played.relays:
            peers = relay.neighbours.peers.values()
            stale += sum(peer.counters.stale for peer in peers)
    assert phases[SwitchPhase.COMMITTING] > 60
    assert phases[SwitchPhase.ABORTING] > 2
    assert deaths > 40
    assert terms > 20
    assert stale > 1
    assert aligned > 15


def test_the_epochs_scenario_covers_all_of_its_events():
    seen: Counter[str] = Counter()
    stopped = 0
    for seed in range(100):
        job = epochs.play(Simulator(seed))
        seen += job.seen
        stopped += any(one.stopped for one in job.participants.values())
    for phase in EpochPhase:
        assert seen[f"killed while {phase.name}"] >= 2, phase
        assert seen[f"controller killed while {phase.name}"] >= 3, phase
    for step in CONTROLLER_STEPS:
        assert seen[f"controller killed at {step}"] >= 1, step
    assert seen["workers killed while BEGUN"] > 5
    assert seen["killed while there is no controller"] > 2
    assert seen["command lost"] > 2
    assert seen["EpochForgotten"] > 100
    assert seen["ReleaseEpoch"] > 100
    assert seen["CommitEpoch"] > seen["ReleaseEpoch"]
    assert stopped > 2


@pytest.mark.long
def test_the_store_scenario_covers_all_of_its_events():
    seen: Counter[str] = Counter()
    for seed in range(60):
        seen += store.play(Simulator(seed)).seen
    for what in ("CrashedError", "ClaimLostError", "taken over", "forgotten", "not removed"):
        assert seen[what] >= 5, what
    assert seen["counted"] > 300
    assert seen["removed"] > 300


def test_the_tasks_scenario_covers_all_of_its_events():
    seen: Counter[str] = Counter()
    for seed in range(30):
        seen += tasks.play(Simulator(seed)).seen
    assert seen["epochs"] > 30
    assert seen["killed"] > seen["restored"] > 15


@pytest.mark.long
def test_the_merging_scenario_covers_all_of_its_events():
    seen: Counter[str] = Counter()
    for seed in range(40):
        seen += merging.play(Simulator(seed)).seen
    assert seen["epochs"] > 30
    assert seen["killed"] > seen["restored"] > 15


def resume_behind_what_was_sent(sender: StreamSender, received: int, limit: int) -> None:
    furthest = sender.sent
    SUBSCRIBED(sender, received, limit)
    sender.sent = max(sender.sent, furthest)
    sender._whole = max(sender._whole, furthest)


def begin_whatever_the_sequence(link: Link, header: bytes) -> tuple[int, tuple[memoryview, ...]]:
    due = (link._received & SEQUENCE_MASK).to_bytes(4, "little")
    return BEGIN(link, header[:8] + due + header[12:])


def give_back_what_was_only_sent(offer: Offer) -> None:
    if not all(child.gone for child in offer.outgoing.values()):
        offer.tap.release(min(child.sender.sent for child in offer.outgoing.values()))


def do_nothing(self: object) -> None:
    return None


def forget_pinned_floors(floors: SourceFloors, child: int, told: Acknowledgement) -> None:
    """Accept every acknowledgement, for any tree."""
    tree = floors._tree
    for vertex in tree.subtree(child) if child in tree.joined else ():
        floors._floors[vertex] = max(floors._floors[vertex], told.position)


def move_without_a_cut(vertex: SwitchVertex, move: PlannedMove) -> None:
    """Read from the new parent at once, whatever the vertex's position."""
    if move.new_parent is None:
        vertex._retiring = True
    else:
        vertex._read_along(Span(move.new_parent, vertex.received))


def move_with_a_payload_half_received(links: LinkManager[Any, Any], stream: int, to: str) -> None:
    """Do not divert the rest of it."""
    links.neighbours.move(stream, to)
    links.asked = True


def keep_the_link_that_is_replaced(links: LinkManager[Any, Any], *arguments: Any) -> None:
    proved, connection, _ = arguments
    role = Role.PARENT if connection.dialled else Role.CHILD
    links.links.pop((proved.side.peer.host, role), None)
    ESTABLISHED(links, *arguments)


def let_handshakes_go_on(links: LinkManager[Any, Any], host: str) -> None:
    """Only close the link to a host that is no longer dialled."""
    connection = links.links.get((host, Role.PARENT))
    if links._reachability.stop(host) and connection is not None:
        links._hang_up(connection)


def keep_what_a_dead_relay_was_told(watermarks: WatermarkExchange, host: int) -> None:
    """Send its successor only what changes from now on."""


def pass_on_one_by_one(participant: epoch_stages.Participant, marker: epoch_stages.Marker) -> None:
    """Let the producers of a participant go on before the markers of all of them are written."""
    PASS_ON(participant, marker)
    for ring in participant.outputs:
        if len(ring.frames) >= 2 and ring.frames[-2][1] == marker:
            ring.frames.rotate(1)


def read_on_behind_the_marker(aligner: EpochAligner, ring: int) -> bool:
    return False


def remember_what_is_forgotten(aligner: EpochAligner, epoch: int) -> None:
    """Align with markers of an epoch that is over, too."""
    aligner._clear(None)


def commit_before_the_manifest(coordinator: EpochCoordinator) -> list[Action]:
    actions = WRITE_IF_WHOLE(coordinator)
    return [*actions, CommitEpoch(coordinator.epoch)] if actions else []


def count_what_is_forgotten(coordinator: EpochCoordinator, *arguments: Any) -> list[Action]:
    """Leave what sinks staged for it out of the next commit."""
    coordinator.counted = coordinator.epoch
    return FORGET(coordinator, *arguments)


def resume_without_a_commit(coordinator: EpochCoordinator, epoch: int) -> list[Action]:
    coordinator.counted = epoch
    return []


def forget_what_counted(session: EpochSession, progress: EpochProgress) -> None:
    INHERIT(session, replace(progress, restore=None))


def count_the_end_for_every_epoch(coordinator: EpochCoordinator, epoch: int) -> dict[Any, Any]:
    """Do not wait for the snapshot of a participant that ended behind the marker."""
    return {one: end.part for one, end in coordinator._ended.items()}


def remove_what_the_newest_does_not_list(
    chunks: Iterable[str], kept: Mapping[str, retention.Listed], job: str
) -> frozenset[str]:
    """Forget the chunks that only an older manifest lists."""
    return REMOVABLE_CHUNKS(chunks, {name: kept[name] for name in sorted(kept)[-1:]}, job)


def remove_what_is_young(
    chunks: Iterable[str], kept: Mapping[str, retention.Listed], job: str
) -> frozenset[str]:
    """Remove whatever no manifest lists, also of the epoch under way."""
    listed = frozenset[str]().union(*(one.files for one in kept.values()))
    return frozenset(set(chunks) - listed)


def keep_durable_ones_alone(
    manifests: Mapping[str, retention.Listed], durable: Collection[str], *rest: Any
) -> frozenset[str]:
    """Remove savepoints, too."""
    plain = {name: replace(one, savepoint=False) for name, one in manifests.items()}
    return KEPT_MANIFESTS(plain, durable, *rest)


def write_chunks_behind_the_next_file(
    checkpoints: CheckpointStore, name: str, data: bytes
) -> ChunkFile:
    """Say that a chunk is written before it is."""
    late, checkpoints.__dict__["late"] = checkpoints.__dict__.get("late"), (name, data)
    if late is not None:
        WRITE_CHUNK(checkpoints, *late)
    return ChunkFile(f"{name}-{zlib.crc32(data):08x}", len(data), zlib.crc32(data))


def commit_then_write(job: store.Job, savepoint: bool) -> str:
    job.commit(job.name_of_epoch())
    return job.write_manifest(savepoint)


def hold_for_ever(claim: Claim) -> bool:
    return True


def count_whatever_is_there(note: NewestNote, name: ManifestName) -> bool:
    """Let manifests count that a job wrote after another had taken over from it."""
    return True


def rely_on_the_listing(files: StoreFiles) -> NewestNote | None:
    return None


def forget_what_was_learnt(learnt: LearntSchema, *kept: Any) -> None:
    """Learn the columns again, of the rows that follow."""


def follow_the_fastest(watermarks: WatermarkTracker[Any]) -> bool:
    """Take the maximum of the inputs' watermarks instead of their minimum."""
    latest = max(watermarks._watermarks.values())
    if latest <= watermarks.current_ns:
        return False
    watermarks.current_ns = latest
    return True


def pass_watermarks_on_before_groups(partial: PartialNode, watermark_ns: int) -> None:
    partial._output.advance(watermark_ns)
    ADVANCE(partial, watermark_ns)


INHERIT = EpochSession.inherit
PASS_ON = epoch_stages.Participant.pass_on
ADVANCE = PartialNode.advance
REMOVABLE_CHUNKS = retention.removable_chunks
KEPT_MANIFESTS = retention.kept_manifests
WRITE_CHUNK = CheckpointStore.write_chunk
WRITE_IF_WHOLE = EpochCoordinator._write_if_whole
FORGET = EpochCoordinator._forget
SUBSCRIBED = StreamSender.subscribed
BEGIN = Link.begin
ESTABLISHED = LinkManager._established
FAULTS: list[tuple[str, type | ModuleType, str, Callable[..., Any]]] = [
    ("resumption", StreamSender, "subscribed", resume_behind_what_was_sent),
    ("resumption", Link, "begin", begin_whatever_the_sequence),
    ("resumption", Offer, "release", give_back_what_was_only_sent),
    ("resumption", ControlOutbox, "reconnected", do_nothing),
    ("forwarding", StreamSender, "subscribed", resume_behind_what_was_sent),
    ("forwarding", Offer, "release", give_back_what_was_only_sent),
    ("resumption", LinkManager, "_established", keep_the_link_that_is_replaced),
    ("moving", LinkManager, "move", move_with_a_payload_half_received),
    ("moving", LinkManager, "_stop_dialling", let_handshakes_go_on),
    ("moving", Peer, "parent_disconnected", do_nothing),
    ("multicast", SourceFloors, "acknowledge", forget_pinned_floors),
    ("multicast", SwitchVertex, "_move", move_without_a_cut),
    ("multicast", WatermarkExchange, "forget", keep_what_a_dead_relay_was_told),
    ("epochs", epoch_stages.Participant, "pass_on", pass_on_one_by_one),
    ("epochs", EpochAligner, "waits", read_on_behind_the_marker),
    ("epochs", EpochAligner, "forget", remember_what_is_forgotten),
    ("epochs", EpochCoordinator, "_write_if_whole", commit_before_the_manifest),
    ("epochs", EpochCoordinator, "_forget", count_what_is_forgotten),
    ("epochs", EpochCoordinator, "resume", resume_without_a_commit),
    ("epochs", EpochCoordinator, "_ended_before", count_the_end_for_every_epoch),
    ("epochs", EpochSession, "inherit", forget_what_counted),
    ("store", checkpoint_store, "removable_chunks", remove_what_the_newest_does_not_list),
    ("store", checkpoint_store, "removable_chunks", remove_what_is_young),
    ("store", checkpoint_store, "kept_manifests", keep_durable_ones_alone),
    ("store", CheckpointStore, "write_chunk", write_chunks_behind_the_next_file),
    ("store", store.Job, "end_epoch", commit_then_write),
    ("store", Claim, "holds", hold_for_ever),
    ("store", NewestNote, "lets_count", count_whatever_is_there),
    ("store", checkpoint_store, "read_note", rely_on_the_listing),
    ("tasks", LearntSchema, "restore", forget_what_was_learnt),
    ("tasks", WatermarkTracker, "_advance", follow_the_fastest),
    ("merging", WatermarkTracker, "_advance", follow_the_fastest),
    ("merging", PartialNode, "advance", pass_watermarks_on_before_groups),
    ("merging", PartialNode, "empty_for_marker", do_nothing),
]


PLAYED_TO_THE_END = {"resumption", "forwarding", "moving", "multicast"}
"""Scenarios in which most faults show as a run that never ends: seconds of work until it is given
up."""

CAUGHT_QUICKLY = {
    "resumption-StreamSender-resume_behind_what_was_sent": 41,
    "resumption-Link-begin_whatever_the_sequence": 6,
    "resumption-Offer-give_back_what_was_only_sent": 23,
    "resumption-ControlOutbox-do_nothing": 7,
    "resumption-LinkManager-keep_the_link_that_is_replaced": 113,
    "forwarding-StreamSender-resume_behind_what_was_sent": 7,
    "forwarding-Offer-give_back_what_was_only_sent": 12,
    "moving-LinkManager-move_with_a_payload_half_received": 108,
    "moving-LinkManager-let_handshakes_go_on": 1,
    "moving-Peer-do_nothing": 3,
    "multicast-SourceFloors-forget_pinned_floors": 2,
    "multicast-SwitchVertex-move_without_a_cut": 241,
    "multicast-WatermarkExchange-keep_what_a_dead_relay_was_told": 339,
    "store-NewestNote-count_whatever_is_there": 290,
}
"""A seed that catches a fault in less time than the first that does; if one no longer catches it,
all are tried."""


def case_of(name: str, owner: type | ModuleType, fault: Callable[..., Any]) -> str:
    return f"{name}-{owner.__name__}-{fault.__name__}"


def test_the_faults_that_are_caught_quickly_are_injected():
    assert CAUGHT_QUICKLY.keys() <= {case_of(one[0], one[1], one[3]) for one in FAULTS}


@pytest.mark.parametrize(
    ("name", "owner", "method", "fault"),
    [
        pytest.param(
            *injected,
            id=case_of(injected[0], injected[1], injected[3]),
            marks=pytest.mark.long if injected[0] in PLAYED_TO_THE_END else (),
        )
        for injected in FAULTS
    ],
)
def test_an_injected_fault_is_detected_and_its_seed_repeats_it(
    name, owner, method, fault, monkeypatch
):
    scenario = find_scenario(name)
    case = case_of(name, owner, fault)
    tried_first = [CAUGHT_QUICKLY[case]] if case in CAUGHT_QUICKLY else []
    monkeypatch.setattr(owner, method, fault)
    with pytest.raises(SeedFailedError, match=rf"^replay: seed=\d+ .* replay {name} \d+") as caught:
        for_seeds(scenario, [*tried_first, *range(SEEDS_TO_CATCH[name])])
    seed = int(str(caught.value).split("seed=")[1].split()[0])
    with pytest.raises(SeedFailedError) as again:
        play_seed(scenario, seed)
    assert str(again.value) == str(caught.value)
    monkeypatch.undo()
    play_seed(scenario, seed)
