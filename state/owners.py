"""Owners: which instance owns each virtual node, as a table in the physical plan.

The table decides where rows of a key go, and so where the key's state is. `even` fills it so that
each instance owns a contiguous range of virtual nodes and all ranges are about equally long.
"""

from __future__ import annotations

from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt

from ..configs.errors import InputError

__all__ = ["Owners"]


class Owners:
    """The owner of each virtual node of one operator; an immutable value.

    Args:
        instances: the instance that owns each virtual node, uint16, shape (virtual_nodes,); their
            number is a power of two.
    """

    def __init__(self, instances: npt.NDArray[np.uint16]) -> None:
        self.instances = np.array(instances, np.uint16)
        self.instances.flags.writeable = False

    @classmethod
    @lru_cache(maxsize=256)
    def even(cls, virtual_nodes: int, parallelism: int) -> Owners:
        """Divide the virtual nodes: `node * parallelism // virtual_nodes` owns each.

        Raises:
            InputError: there are more instances than virtual nodes, so some would be idle.
        """
        if parallelism > virtual_nodes:
            msg = (
                f"{parallelism} instances cannot share {virtual_nodes} virtual nodes: set"
                f" runtime.virtual_nodes to {1 << (parallelism - 1).bit_length()} or more"
            )
            raise InputError(msg)
        nodes = np.arange(virtual_nodes, dtype=np.int64)
        return cls((nodes * parallelism // virtual_nodes).astype(np.uint16))

    @property
    def virtual_nodes(self) -> int:
        """How many virtual nodes there are."""
        return len(self.instances)

    def of(self, nodes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the instance that owns each virtual node.

        Args:
            nodes: virtual nodes, int64, any shape; the result has the same.
        """
        return self._instances_int64[nodes]

    def nodes_of(self, *instances: int) -> npt.NDArray[np.int64]:
        """Return the virtual nodes that any of these instances own, ascending: int64 (n,)."""
        is_one = np.zeros(max(self._highest, *instances) + 1, np.bool_)
        is_one[list(instances)] = True
        return np.flatnonzero(is_one[self.instances])

    @cached_property
    def _highest(self) -> int:
        return int(self.instances.max())

    @cached_property
    def _instances_int64(self) -> npt.NDArray[np.int64]:
        return self.instances.astype(np.int64)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Owners) and np.array_equal(self.instances, other.instances)

    def __hash__(self) -> int:
        return hash(self.instances.tobytes())

    def __repr__(self) -> str:
        return f"Owners({self.instances.tolist()})"

    def __reduce__(self) -> tuple[type[Owners], tuple[npt.NDArray[np.uint16]]]:
        return Owners, (self.instances,)
