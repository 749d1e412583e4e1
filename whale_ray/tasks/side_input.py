"""A side input of one task, as edge readers hand it rows: they go beside the task's head.

The task takes no other rows until its tables are complete: `StageTask.accepts_rows`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..plan.logical import TABLE
from ..state.watermarks import WATERMARK_END
from ..transport.wire.batch import Batch
from .nodes import Node
from .table_join_node import TableJoinNode


class SideInput:
    """Port `port` of a table join: its table, or the changes to it, which come after the table.

    `inputs` are the (edge id, producer id) pairs that feed it, `instances` those of its task.
    """

    def __init__(
        self,
        node: TableJoinNode,
        port: int,
        inputs: Iterable[tuple[int, int]],
        instances: tuple[int, ...],
    ) -> None:
        self.nodes: Sequence[Node] = (node,)
        self.instances = instances
        self._node = node
        self._port = port
        self._open = set(inputs)

    @property
    def ready(self) -> bool:
        """Whether it has brought all that the stream's rows need."""
        return self._node.ready

    @property
    def ended(self) -> bool:
        """Whether no row follows."""
        return not self._open

    @property
    def accepts_rows(self) -> bool:
        """Whether rows may be handed to it: changes wait for the table."""
        return self._port == TABLE or self._node.ready

    def deliver(self, port: int, source: int, batch: Batch) -> None:
        """Take rows for all instances."""
        self._node.take_beside(port, batch)

    def deliver_to(self, instance: int, port: int, source: int, batch: Batch) -> None:
        """Take rows that one instance got in a message of its own: once, as `Node.accept_for`."""
        if instance == self.instances[-1]:
            self._node.take_beside(port, batch)

    def advance(self, edge: int, source: int, watermark_ns: int) -> None:
        """Take a producer's end; its watermarks before say nothing, since its rows have no time."""
        if watermark_ns == WATERMARK_END and self._open:
            self._open.discard((edge, source))
            if not self._open:
                self._node.end_beside(self._port)

    def set_idle(self, edge: int, source: int, idle: bool) -> None:
        """Do nothing: it holds no watermark back."""

    def settle(self, now_ns: int) -> None:
        """Do nothing: nothing is sent on account of its rows."""
