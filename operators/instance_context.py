"""`InstanceContext`: what an operator object is told when it is opened."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..state.budget import StateBudget
from ..state.watermarks import WATERMARK_NONE

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from ..state.owners import Owners
    from ..transport.clock import Clock
    from ..transport.wire.batch import Batch

__all__ = ["InstanceContext"]


@dataclass(frozen=True)
class InstanceContext:
    """The job and the instance that an operator object belongs to.

    Attributes:
        job: the job's name.
        operator_id: the operator's id in the topology.
        instance: this instance's number, 0 … parallelism − 1; the lowest of `instances`.
        instances: all instances that this object serves: one, or with `per_worker` all local ones.
        parallelism: the number of instances of the operator in the whole job.
        attempt: 0 at the first start, one more after each restart.
        clock: the only clock to read, so that tests can set the time.
        virtual_nodes: into how many parts keys are divided, see `runtime.virtual_nodes`.
        state_budget: the memory that the state of all operators of the worker may take.
        keys: the key columns of each input, () for one that is not grouped by key.
        in_event_time_order: whether rows reach the object in the order of their event times.
        owners: which instance owns each virtual node; None: they are divided evenly.
        watermark_ns: what an operator that is given back its state has seen of event time, ns;
            `WATERMARK_NONE` for one that begins.
    """

    job: str
    operator_id: str
    instance: int
    instances: tuple[int, ...]
    parallelism: int
    attempt: int
    clock: Clock
    virtual_nodes: int = 1024
    state_budget: StateBudget = field(default_factory=StateBudget)
    keys: tuple[tuple[str, ...], ...] = ()
    in_event_time_order: bool = False
    owners: Owners | None = None
    watermark_ns: int = WATERMARK_NONE

    @property
    def owned_nodes(self) -> npt.NDArray[np.int64]:
        """The virtual nodes whose keys the object owns, ascending: int64 (n,)."""
        from ..state.owners import Owners

        owners = self.owners or Owners.even(self.virtual_nodes, self.parallelism)
        return owners.nodes_of(*self.instances)

    def nodes_of(self, batch: Batch, columns: Sequence[str] = ()) -> npt.NDArray[np.int64]:
        """Return the virtual node of each row's key, int64 (num_rows,).

        Args:
            batch: rows with the key columns.
            columns: these, in order; by default those of the first input.

        Raises:
            InputError: a column does not exist.
        """
        from ..state.keys import hash_keys, virtual_node_of

        hashes, _ = hash_keys(batch, columns or self.keys[0])
        return virtual_node_of(hashes, self.virtual_nodes)
