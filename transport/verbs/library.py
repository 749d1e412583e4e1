"""The classes and constants of pyverbs that this package uses, loaded when first needed.

pyverbs 44 (Debian 12) keeps its constants in `pyverbs.enums`, pyverbs 59 in
`pyverbs.libibverbs_enums`. The package may be missing, or installed and fail to load: it does not
contain libibverbs, and needs one at least as new as itself. The error of `load` says which, and the
remedy.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import logging
import threading
from dataclasses import dataclass
from typing import Any, Final

from ...configs.errors import ResourceError
from ...configs.extras import install_command

descriptors_lock: Final = threading.Lock()
"""Held while descriptors of verbs' events are opened or closed: a new one is found by comparison
with those before, as pyverbs 44 has no attribute for it."""

_REMEDY: Final = (
    f"install the system's python3-pyverbs, or {install_command('rdma')} beside an rdma-core "
    "at least as new; or set transport.between_hosts to tcp"
)

# Names of completion statuses for messages, by number (ibv_wc_status).
_STATUS: Final = (
    "success",
    "local length error",
    "local queue pair error",
    "local context error",
    "local protection error",
    "flushed",
    "memory window error",
    "bad response",
    "local access error",
    "invalid request at the peer",
    "access refused by the peer",
    "operation failed at the peer",
    "the peer does not answer",
    "the peer has no receive buffers",
)


def status_in_words(status: int) -> str:
    """Return the name of a completion's status."""
    return _STATUS[status] if 0 <= status < len(_STATUS) else f"status {status}"


class NoVerbsError(ResourceError):
    """Verbs cannot be used here; the message says what is missing, and the remedy."""

    def __init__(self, lack: str, remedy: str = "") -> None:
        super().__init__(f"{lack}; {remedy}" if remedy else lack)
        self.lack = lack
        """What is missing."""


@dataclass(frozen=True)
class Library:
    """pyverbs' classes and constants. Tests substitute simulated devices."""

    Error: type[Exception]
    """The error that every call may raise."""
    get_device_list: Any
    Context: Any
    PD: Any
    MR: Any
    CompChannel: Any
    CQ: Any
    QP: Any
    QPAttr: Any
    QPCap: Any
    QPInitAttr: Any
    AHAttr: Any
    GID: Any
    GlobalRoute: Any
    SGE: Any
    SendWR: Any
    RecvWR: Any
    SEND: int
    WRITE: int
    READ: int
    SIGNALED: int
    LOCAL_WRITE: int
    REMOTE_READ: int
    REMOTE_WRITE: int
    RC: int
    PORT_ACTIVE: int

    def close(self, part: Any) -> None:
        """Close `part`; this fails on a device that is gone, but the kernel has freed it then."""
        with contextlib.suppress(self.Error):
            part.close()


_CLASSES: Final = {
    "device": ("get_device_list", "Context"),
    "pd": ("PD",),
    "mr": ("MR",),
    "cq": ("CompChannel", "CQ"),
    "qp": ("QP", "QPAttr", "QPCap", "QPInitAttr"),
    "addr": ("AHAttr", "GID", "GlobalRoute"),
    "wr": ("SGE", "SendWR", "RecvWR"),
}
_CONSTANTS: Final = {
    "SEND": ("ibv_wr_opcode", "IBV_WR_SEND"),
    "WRITE": ("ibv_wr_opcode", "IBV_WR_RDMA_WRITE"),
    "READ": ("ibv_wr_opcode", "IBV_WR_RDMA_READ"),
    "SIGNALED": ("ibv_send_flags", "IBV_SEND_SIGNALED"),
    "LOCAL_WRITE": ("ibv_access_flags", "IBV_ACCESS_LOCAL_WRITE"),
    "REMOTE_READ": ("ibv_access_flags", "IBV_ACCESS_REMOTE_READ"),
    "REMOTE_WRITE": ("ibv_access_flags", "IBV_ACCESS_REMOTE_WRITE"),
    "RC": ("ibv_qp_type", "IBV_QPT_RC"),
    "PORT_ACTIVE": ("ibv_port_state", "IBV_PORT_ACTIVE"),
}


@functools.cache
def load() -> Library:
    """Return pyverbs; raises NoVerbsError if it is missing, or does not load."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    try:
        found: dict[str, Any] = {
            name: getattr(importlib.import_module(f"pyverbs.{module}"), name)
            for module, names in _CLASSES.items()
            for name in names
        }
        found["Error"] = importlib.import_module("pyverbs.pyverbs_error").PyverbsError
        enums = _enums()
        for name, (group, constant) in _CONSTANTS.items():
            found[name] = int(getattr(getattr(enums, group), constant))
    except ImportError as error:
        lack = f"no RDMA verbs: {_why_not(error)}"
        raise NoVerbsError(lack, _REMEDY) from error
    finally:
        # pyverbs calls logging.basicConfig, which is up to the application.
        for handler in [one for one in root.handlers if one not in handlers]:
            root.removeHandler(handler)
        root.setLevel(level)
    return Library(**found)


def _enums() -> Any:
    try:
        return importlib.import_module("pyverbs.libibverbs_enums")
    except ModuleNotFoundError:
        return importlib.import_module("pyverbs.enums")


def _why_not(error: ImportError) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name == "pyverbs":
        return "pyverbs is not installed"
    return f"pyverbs does not load ({error})"
