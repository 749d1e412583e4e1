"""Members as Ray actors. Ray carries calls only: no row passes through it.

The driver creates all actors, the controller's too, since Ray kills the actors whose creator dies.
Ray restarts a member's actor that dies, without limit; the controller decides what follows.
"""

from __future__ import annotations

import logging
import pickle
import secrets
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import cloudpickle
import ray
from ray.actor import ActorHandle
from ray.exceptions import (
    ActorUnavailableError,
    ActorUnschedulableError,
    RayActorError,
    RayError,
    RayTaskError,
    RuntimeEnvSetupError,
)
from ray.util.scheduling_strategies import (
    NodeAffinitySchedulingStrategy,
    PlacementGroupSchedulingStrategy,
)

from ...configs.errors import ResourceError, WhaleError
from ...control.attempt_steps import REJOIN, STEPS
from ...control.controller_events import Died, Raised, Respawned
from ...control.fleet import CountersTaken, Fleet, FleetEvent, MemberMessage
from ...plan.assignment import Assignment
from ...plan.physical import PhysicalPlan
from ...plan.requests import CPU, GPU
from ...plan.streams import StreamPlan
from ...tasks.printed import Fetched
from ...transport.clock import Clock
from ..envelope import Envelope
from ..member_host import COMMANDS, MemberHost, StepThread, pack
from ..members import Member, make_member
from ..signals import leave_stops_to_the_controller
from .message_outbox import MessageOutbox
from .ray_journal import fetch_envelope
from .ray_output import ActorOutput, fetched
from .ray_room import Room
from .relay_process import RelayProcess

NAMESPACE = "whale-ray"
"""Ray's namespace of all our actors' names."""

_OPERATORS_NAMED_MAX = 8

_THREADS = 16
"""An actor's threads: one runs the loop; the others take commands, counters, and the calls of
controllers that replace failed ones."""


_MESSAGES_MAX = 65_536
_MESSAGES_WAIT_S = 5.0
"""How long a relay's actor waits for messages; then it is called again."""

_RESTART_POLL_NS = 50_000_000
"""How often an actor that Ray restarts is asked whether it is ready."""

_log = logging.getLogger(__name__)


class MemberActor:
    """A worker inside a Ray actor, or a relay in a process beside one; see `MemberHost`."""

    def __init__(self, index: int, job_id: str, title: str) -> None:
        leave_stops_to_the_controller()
        self._index = index
        self._title = title
        self._host: MemberHost | None = None
        self._refused: WhaleError | None = None
        self._token = secrets.token_hex(8)
        self._steps = StepThread()
        self._output: ActorOutput | None = None
        self._outbox = MessageOutbox()
        try:
            envelope = fetch_envelope(job_id)
            if index < envelope.workers:
                self._output = ActorOutput(f"worker {index}", envelope)
            self._host = MemberHost(index, self._make_member(envelope))
        except WhaleError as error:
            self._refused = error

    def _make_member(self, envelope: Envelope) -> Member:
        """Return a worker, or a relay in a process of its own at this node's address."""
        index = self._index
        if index < envelope.workers:
            return make_member(index, envelope, tell=self._tell)
        return RelayProcess(index, envelope, ray.util.get_node_ip_address())

    def _tell(self, attempt: int, content: object) -> None:
        self._outbox.add(MemberMessage(self._index, attempt, content))

    def __repr__(self) -> str:
        """Return its name in Ray's dashboard and messages."""
        return self._title

    def ready(self) -> str:
        """Return the token of this process, as soon as it can be called."""
        return self._token

    def execute(self, term: int, attempt: int, method: str, arguments: bytes) -> bytes:
        """Carry out one step, once, in the thread of all steps; return the pickled event."""
        if self._host is None:
            assert self._refused is not None
            return cloudpickle.dumps(Raised(self._index, attempt, method, self._refused))
        host = self._host
        given = pickle.loads(arguments)  # noqa: S301  # from our own controller
        event = self._steps.run(lambda: host.execute_once(term, attempt, method, given))
        if self._output is not None:
            self._output.flush()
        return pack(event)

    def command(self, attempt: int, name: str, arguments: bytes) -> None:
        """Carry out a command while a step may run."""
        if self._host is not None:
            given = pickle.loads(arguments)  # noqa: S301  # from our own controller
            self._host.command(attempt, name, given)

    def messages(self, received: int) -> bytes:
        """Return the member's messages to the controller, pickled; wait some time for the first.

        `received` is the number of the last message of a worker that the controller has processed;
        later ones are returned again, since a controller may have failed before it processed them.
        Relays repeat their messages themselves.
        """
        member = None if self._host is None else self._host.member
        if isinstance(member, RelayProcess):
            return pickle.dumps((0, member.messages(_MESSAGES_WAIT_S)))
        return pickle.dumps(self._outbox.fetch(received, _MESSAGES_WAIT_S))

    def output(self, last_answer: int) -> Fetched:
        """Return lines printed here, see `Outbox.fetch`; wait some time for the first."""
        return fetched(self._output, last_answer)

    def counters(self) -> bytes:
        """Return the pickled counters."""
        unknown = CountersTaken(self._index, None)
        return cloudpickle.dumps(unknown if self._host is None else self._host.counters())

    def close(self) -> None:
        """Abort the step under way, then release everything."""
        if self._host is not None:
            self._host.abort()
            self._steps.run(self._host.close)
        if self._output is not None:
            self._output.close()


def member_title(plan: PhysicalPlan, index: int) -> str:
    """Return the name of a member in Ray, with the operators that a worker runs."""
    if index >= plan.workers:
        return plan.member_name(index)
    operators = [one for stage in plan.local_stages(index) for one in stage.operators]
    more = len(operators) - _OPERATORS_NAMED_MAX
    named = [*operators[:_OPERATORS_NAMED_MAX], *([f"{more} more"] if more > 0 else [])]
    return f"worker {index} ({', '.join(named)})"


def member_name(plan: PhysicalPlan, job_id: str, index: int) -> str:
    """Return the name of a member's actor."""
    return f"whale-ray:{job_id}:{member_title(plan, index)}"


def create_members(
    plan: PhysicalPlan,
    nodes: Sequence[str],
    job_id: str,
    room: Room,
    detached: bool,
    runtime_env: Mapping[str, Any] | None,
) -> list[ActorHandle[Any]]:
    """Create the actors of a job's members; the caller's process owns them.

    `nodes` has the id of each host's Ray node. Ray places workers once it has reserved their
    resources.
    """
    remote = ray.remote(MemberActor)
    return [
        remote.options(
            **_reserved(plan, index, nodes, room),
            max_restarts=-1,
            max_task_retries=0,
            max_concurrency=_THREADS,
            name=member_name(plan, job_id, index),
            namespace=NAMESPACE,
            lifetime="detached" if detached else None,
            runtime_env=None if runtime_env is None else dict(runtime_env),
        ).remote(index, job_id, member_title(plan, index))
        for index in range(plan.members)
    ]


def _reserved(plan: PhysicalPlan, index: int, nodes: Sequence[str], room: Room) -> dict[str, Any]:
    """Return an actor's options for where it runs and what it reserves there."""
    host = plan.host_of(index)
    bundle = room.bundle(host)
    if index >= plan.workers or bundle is None:
        there = NodeAffinitySchedulingStrategy(nodes[host], soft=False)
        return {"num_cpus": 0, "scheduling_strategy": there}
    demand = dict(room.demands[index])
    return {
        "num_cpus": demand.pop(CPU, 0.0),
        "num_gpus": demand.pop(GPU, 0.0),
        "resources": {name: amount for name, amount in demand.items() if amount},
        "scheduling_strategy": PlacementGroupSchedulingStrategy(room.group, bundle),
    }


def is_restarting(actor: ActorHandle[Any]) -> bool:
    """Return whether Ray is starting the process of an actor that died."""
    from ray.core.generated import gcs_pb2

    accessor = ray._private.state.state._connect_and_get_accessor()
    packed = accessor.get_actor_info(actor._actor_id)
    if packed is None:
        return False
    return bool(
        gcs_pb2.ActorTableData.FromString(packed).state == gcs_pb2.ActorTableData.RESTARTING
    )


class RayFleet(Fleet):
    """Calls member actors; runs in the controller's actor.

    Ray restarts an actor on its own node only. When that node is gone, `start`, `respawn` and
    `next_event` raise ResourceError.
    """

    def __init__(
        self,
        actors: list[ActorHandle[Any]],
        nodes: Sequence[str],
        start_timeout_ns: int,
        clock: Clock,
        ask_for_nodes: Callable[[], list[Mapping[str, Any]]] = ray.nodes,
        is_restarting: Callable[[ActorHandle[Any]], bool] = is_restarting,
    ) -> None:
        self._actors = actors
        self._nodes = nodes
        self._start_timeout_ns = start_timeout_ns
        self._clock = clock
        self._ask_for_nodes = ask_for_nodes
        self._is_restarting = is_restarting
        self._plan: StreamPlan | None = None
        self._tokens: list[str] = []
        self._killed: set[int] = set()
        self._pending: dict[Any, tuple[int, str, int]] = {}
        self._restarting: set[int] = set()  # members that are asked whether they are ready once up
        self._unheard: set[int] = set()  # members whose call of `messages` was lost with a process
        self._heard: dict[int, int] = {}  # whose messages were returned, and the number of the last
        self._messages: deque[FleetEvent] = deque(maxlen=_MESSAGES_MAX)

    def start(self, assignment: Assignment) -> None:
        """Wait until Ray has started all members."""
        self._plan = assignment.plan
        deadline_ns = self._clock.monotonic_ns() + self._start_timeout_ns
        waiting = [actor.ready.remote() for actor in self._actors]
        _, missing = ray.wait(
            waiting, num_returns=len(waiting), timeout=self._start_timeout_ns / 1e9
        )
        if missing:
            late = [member for member, ready in enumerate(waiting) if ready in missing]
            self._check_nodes(late)
            raise ResourceError(_cannot_place(assignment.plan, late))
        self._tokens = [
            self._token_of(member, ready, deadline_ns) for member, ready in enumerate(waiting)
        ]
        for member in range(self._plan.members):
            self._request_messages(member, 0)

    def _token_of(self, member: int, ready: Any, deadline_ns: int) -> str:
        while True:
            try:
                return str(ray.get(ready))
            except ActorUnavailableError:
                # A controller that resumes may find it dead and not yet restarted.
                ready = self._ask_again(member, deadline_ns)
            except (RayActorError, ActorUnschedulableError, RuntimeEnvSetupError) as error:
                self._check_nodes([member])
                msg = f"{self._name(member)} died while starting: {_first_line(error)}"
                raise ResourceError(msg) from error

    def _ask_again(self, member: int, deadline_ns: int) -> Any:
        """Ask whether a member is ready, and wait for the answer."""
        assert self._plan is not None, "not started"
        self._check_nodes([member])
        self._clock.sleep_ns(_RESTART_POLL_NS)
        left_ns = deadline_ns - self._clock.monotonic_ns()
        asked = self._actors[member].ready.remote()
        if left_ns <= 0 or not ray.wait([asked], num_returns=1, timeout=left_ns / 1e9)[0]:
            raise ResourceError(_cannot_place(self._plan, [member]))
        return asked

    def _name(self, member: int) -> str:
        assert self._plan is not None, "not started"
        return self._plan.member_name(member)

    def _check_nodes(self, members: Sequence[int]) -> None:
        """Raise ResourceError if the Ray node of one of these members is gone."""
        if not members:
            return
        assert self._plan is not None, "not started"
        known = {node["NodeID"]: node for node in self._ask_for_nodes()}
        for host in sorted({self._plan.host_of(member) for member in members}):
            node = known.get(self._nodes[host], {"Alive": False})
            if not node["Alive"]:
                address = node.get("NodeManagerAddress", self._nodes[host])
                msg = (
                    f"{self._plan.hosts.names[host]} is gone: its Ray node {address} died, and its "
                    "workers cannot come back; submit the job again, on the nodes that remain"
                )
                raise ResourceError(msg)

    def call(self, member: int, attempt: int, method: str, arguments: tuple[Any, ...]) -> None:
        """Call a member's actor."""
        actor = self._actors[member]
        if method in COMMANDS:
            actor.command.remote(attempt, method, cloudpickle.dumps(arguments))
        elif method == "counters":
            self._pending[actor.counters.remote()] = (member, method, attempt)
        else:
            packed = cloudpickle.dumps(arguments)
            called = actor.execute.remote(self.term, attempt, method, packed)
            self._pending[called] = (member, method, attempt)

    def respawn(self, member: int) -> None:
        """Wait for the process that Ray starts anew; kill the old one if it hangs."""
        hangs = any(
            of_member == member and method in (*STEPS, REJOIN)
            for of_member, method, _ in self._pending.values()
        )
        self._pending = {ref: call for ref, call in self._pending.items() if call[0] != member}
        self._killed.discard(member)
        self._check_nodes([member])
        if hangs:
            self._kill_old(member)
        self._restarting.add(member)

    def _kill_old(self, member: int) -> None:
        self._killed.add(member)
        try:
            ray.kill(self._actors[member], no_restart=False)
        except RayActorError:
            pass  # it has died already, and Ray restarts it

    def _ask_whether_ready(self) -> None:
        """Ask the members that Ray has restarted by now.

        Those that it still restarts are not asked: Ray refuses such a call, but says so only up to
        two seconds later, when they may have been up for long.
        """
        for member in sorted(self._restarting):
            if not self._is_restarting(self._actors[member]):
                self._restarting.discard(member)
                self._pending[self._actors[member].ready.remote()] = (member, "ready", 0)

    def _request_messages(self, member: int, received: int) -> None:
        self._unheard.discard(member)
        self._heard.pop(member, None)
        self._pending[self._actors[member].messages.remote(received)] = (member, "messages", 0)

    def _ready(self, member: int, token: str) -> FleetEvent | None:
        """Return `Respawned` if the answer is from a new process, by its token.

        The old process may answer, too: its call may have been lost though it is alive. It is
        killed once; a second kill could hit the new process.
        """
        if token != self._tokens[member]:
            self._tokens[member] = token
            self._request_messages(member, 0)
            return Respawned(member)
        if member not in self._killed:
            self._kill_old(member)
        self._clock.sleep_ns(_RESTART_POLL_NS)
        self._restarting.add(member)
        return None

    def next_event(self, timeout_ns: int) -> FleetEvent | None:
        """Wait for the next call to return."""
        if self._messages:
            return self._messages.popleft()
        for one, received in list(self._heard.items()):  # the caller has dealt with all of them
            self._request_messages(one, received)
        self._ask_whether_ready()
        if self._restarting:
            timeout_ns = min(timeout_ns, _RESTART_POLL_NS)
        if not self._pending:
            self._check_nodes(sorted(self._restarting))
            self._clock.sleep_ns(timeout_ns)
            return None
        done, _ = ray.wait(list(self._pending), num_returns=1, timeout=timeout_ns / 1e9)
        if not done:
            pending = self._pending.values()
            asked = [member for member, method, _ in pending if method == "ready"]
            self._check_nodes([*self._restarting, *asked])
            return None
        member, method, attempt = self._pending.pop(done[0])
        try:
            value = ray.get(done[0])
        except (RayActorError, ActorUnschedulableError) as error:
            return self._lost(member, method, error)
        except RayTaskError as error:
            if method == "counters":
                return CountersTaken(member, None)
            if method == "messages":
                self._request_messages(member, 0)
                return None
            failure = ResourceError(
                f"{self._name(member)} failed in {method}: {_first_line(error)}"
            )
            return Raised(member, attempt, method, failure)
        if method == "ready":
            return self._ready(member, value)
        if member in self._unheard:
            self._request_messages(member, 0)
        if method == "messages":
            last, messages = pickle.loads(value)  # noqa: S301  # from our members
            self._heard[member] = last
            self._messages.extend(messages)
            return self._messages.popleft() if self._messages else None
        event: FleetEvent = pickle.loads(value)  # noqa: S301  # from our members
        return event

    def _lost(self, member: int, method: str, error: RayError) -> FleetEvent | None:
        """Turn a lost call into an event; only the loss of a step is reported as a death."""
        if method == "ready":  # not restarted yet
            self._check_nodes([member])
            self._clock.sleep_ns(_RESTART_POLL_NS)
            self._restarting.add(member)
            return None
        if method == "counters":
            return CountersTaken(member, None)
        if method == "messages":
            self._unheard.add(member)  # called again once the new process answers another call
            return None
        return Died(member, _first_line(error))

    def shutdown(self, grace_ns: int) -> None:
        """Let the members close what they hold, then kill their actors."""
        closing = [actor.close.remote() for actor in self._actors]
        ray.wait(closing, num_returns=len(closing), timeout=grace_ns / 1e9)
        kill_all(self._actors)


def kill_all(actors: list[ActorHandle[Any]]) -> None:
    """Kill actors without restart; an error at one of them does not stop the rest."""
    for actor in actors:
        try:
            ray.kill(actor)
        except Exception as error:  # noqa: BLE001  # the actor or Ray has ended already
            _log.warning("an actor cannot be killed: %s", _first_line(error))


def _cannot_place(plan: StreamPlan, late: Sequence[int]) -> str:
    missing = sum(member < plan.workers for member in late)
    if not missing:
        names = ", ".join(plan.member_name(member) for member in late)
        return f"{names} did not start in time; raise runtime.start_timeout_ms"
    return (
        f"{missing} of {plan.workers} workers did not start in time, though Ray has room for them; "
        "raise runtime.start_timeout_ms, or see why in Ray's logs"
    )


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), repr(error))
