"""Facts about this machine, without a judgement.

Only small modules are imported: versions come from the metadata of the installed distributions, and
pyverbs, whose import may fail or change logging, is tried in another process. Nothing here raises:
a fact that cannot be determined is None or empty.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import importlib.util
import json
import os
import platform
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from .configs.extras import EXTRAS, lacking
from .transport.compiled_folder import why_full
from .transport.compiling import kept_in
from .transport.verbs.reports import DeviceReport

PROBE_TIMEOUT_S = 20
EXAMINATION_TIMEOUT_S = 100
"""For RDMA devices: the examination loads the libraries that use them."""


@dataclasses.dataclass(frozen=True)
class Requirement:
    """One distribution that whale-ray depends on."""

    name: str
    version: str | None
    """The installed version; None if it is not installed."""
    wanted: str
    """The specifier of the required versions."""
    satisfied: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class Facts:
    """The facts that `gather` found. A size or text that could not be determined is None."""

    python: tuple[int, int, int] = (3, 11, 0)
    machine: str = "x86_64"
    kernel: str = ""
    cores: int = 1
    memory_bytes: int = 0
    memory_free_bytes: int = 0
    shm_bytes: int | None = None
    shm_free_bytes: int | None = None
    memfd: bool = True
    pidfd: bool = True
    unnamed_files: bool = True
    working_directory: str = "."
    between_hosts: str = "auto"
    """The setting transport.between_hosts in this environment; see `settings_error`."""
    settings_error: str = ""
    """Why the environment's settings are refused; empty if they are valid."""
    spill_directory: str = ""
    """Empty if no folder for temporary files can be written."""
    spill_free_bytes: int = 0
    open_files_max: int = 65_536
    kernel_cache: str | None = None
    kernel_cache_full: str = ""
    """Why nothing more can be written there, if it has no room."""
    java: str | None = None
    java_refused: tuple[str, ...] = ()
    requirements: tuple[Requirement, ...] = ()
    """The requirements of whale-ray itself, and of the installed extras."""
    lacking: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    """Extras that are not installed, with their missing packages."""
    ray_address: str | None = None
    addresses: tuple[str, ...] = ()
    """The IP addresses of this machine's network interfaces."""
    rdma_devices: tuple[str, ...] = ()
    """The RDMA devices that the kernel lists."""
    rdma_examined: tuple[DeviceReport, ...] = ()
    """The RDMA devices that pyverbs finds; none without pyverbs."""
    rdma_error: str = ""
    """Why the devices could not be examined."""
    pyverbs_version: str | None = None
    pyverbs_error: str | None = None
    locked_memory_max: int | None = None
    """The most bytes that this user may register for RDMA; None means without limit."""
    namespaces_lack: str = ""
    """Why network namespaces cannot be used as hosts; empty if they can."""
    namespaces_delay: bool = True


def _settings() -> tuple[str, str]:
    """Return the environment's transport.between_hosts, and why its settings are refused or ""."""
    from .configs.errors import SettingsError
    from .configs.loading import load_settings

    try:
        return load_settings().transport.between_hosts, ""
    except SettingsError as error:
        return "auto", str(error)


def gather() -> Facts:
    """Return the facts of this machine; takes about a second, and at most four short processes."""
    import psutil

    from .testing.hosts.probe import capability

    memory = psutil.virtual_memory()
    shm_bytes, shm_free_bytes = _shm()
    between_hosts, settings_error = _settings()
    spill_directory, spill_free_bytes = _spill()
    kernel_cache = kept_in()
    pyverbs_version, pyverbs_error = _pyverbs()
    java, java_refused = _java()
    devices = _rdma_devices()
    can_examine = devices and pyverbs_version is not None and pyverbs_error is None
    examined, rdma_error = _examine_rdma() if can_examine else ((), "")
    return Facts(
        python=sys.version_info[:3],
        machine=platform.machine(),
        kernel=platform.release(),
        cores=len(os.sched_getaffinity(0)),
        memory_bytes=memory.total,
        memory_free_bytes=memory.available,
        shm_bytes=shm_bytes,
        shm_free_bytes=shm_free_bytes,
        memfd=_can(lambda: os.memfd_create("whale-ray-doctor")),
        pidfd=_can(lambda: os.pidfd_open(os.getpid())),
        unnamed_files=_can(lambda: os.open(".", os.O_TMPFILE | os.O_RDWR, 0o600)),
        working_directory=os.getcwd(),
        between_hosts=between_hosts,
        settings_error=settings_error,
        spill_directory=spill_directory,
        spill_free_bytes=spill_free_bytes,
        open_files_max=_open_files_max(),
        kernel_cache=kernel_cache,
        kernel_cache_full="" if kernel_cache is None else why_full(kernel_cache),
        java=java,
        java_refused=java_refused,
        requirements=_requirements(),
        lacking={name: packages for name in EXTRAS if (packages := lacking(name))},
        ray_address=_ray_address(),
        addresses=tuple(
            address.address.partition("%")[0]
            for found in psutil.net_if_addrs().values()
            for address in found
            if address.family in (socket.AF_INET, socket.AF_INET6)
        ),
        rdma_devices=devices,
        rdma_examined=examined,
        rdma_error=rdma_error,
        pyverbs_version=pyverbs_version,
        pyverbs_error=pyverbs_error,
        locked_memory_max=_locked_memory_max(),
        namespaces_lack=capability().lack,
        namespaces_delay=capability().delays,
    )


def _can(opens: Callable[[], int]) -> bool:
    """Return whether `opens`, which returns a file descriptor, succeeds here."""
    try:
        os.close(opens())
    except (OSError, AttributeError):  # AttributeError: a libc too old for the call
        return False
    return True


def _shm() -> tuple[int, int] | tuple[None, None]:
    if not os.access("/dev/shm", os.W_OK):
        return None, None
    usage = shutil.disk_usage("/dev/shm")
    return usage.total, usage.free


def _spill() -> tuple[str, int]:
    """Return the folder for temporary files and its free bytes, or "" and 0 if there is none."""
    try:
        folder = tempfile.gettempdir()
        return folder, shutil.disk_usage(folder).free
    except OSError:
        return "", 0


def _open_files_max() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft


def _locked_memory_max() -> int | None:
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return None if soft == resource.RLIM_INFINITY or os.geteuid() == 0 else soft


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _requirements() -> tuple[Requirement, ...]:
    """Return the requirements in whale-ray's metadata, compared with what is installed.

    The requirements of installed extras are included.
    """
    from packaging.requirements import Requirement as Wanted

    extras = ["", *(name for name in EXTRAS if not lacking(name))]
    found: dict[str, Requirement] = {}
    for text in importlib.metadata.requires("whale-ray") or []:
        wanted = Wanted(text)
        if wanted.marker and not any(wanted.marker.evaluate({"extra": one}) for one in extras):
            continue  # for another Python version, or for an extra that is not installed
        version = _version(wanted.name)
        satisfied = version is not None and wanted.specifier.contains(version, prereleases=True)
        if wanted.name not in found or not satisfied:
            specifier = str(wanted.specifier)
            found[wanted.name] = Requirement(wanted.name, version, specifier, satisfied)
    return tuple(found.values())


def _java() -> tuple[str | None, tuple[str, ...]]:
    """Return the Java that Spark would use with its origin, and messages about refused ones."""
    from .spark.java import look_for_java

    java, refused = look_for_java()
    return None if java is None else f"{java.home} ({java.origin})", refused


def _ray_address() -> str | None:
    """Return the address of a Ray that answers, from RAY_ADDRESS or the file that Ray writes."""
    address = os.environ.get("RAY_ADDRESS")
    if not address:
        try:
            note = Path(tempfile.gettempdir(), "ray", "ray_current_cluster")
            address = note.read_text(encoding="utf-8").strip()
        except OSError:
            return None
    host, _, port = address.rpartition(":")
    try:  # the file may be left from a cluster that has ended
        socket.create_connection((host, int(port)), timeout=1).close()
    except (OSError, ValueError):
        return None
    return address


def _rdma_devices() -> tuple[str, ...]:
    try:
        return tuple(sorted(os.listdir("/sys/class/infiniband")))
    except OSError:
        return ()


def _pyverbs() -> tuple[str | None, str | None]:
    """Return pyverbs' version and why it cannot be imported; both None if it is not installed."""
    if importlib.util.find_spec("pyverbs") is None:
        return None, None
    program = "import pyverbs.device, pyverbs.qp"
    imported, _, said = _run([sys.executable, "-c", program])
    version = _version("pyverbs") or "of the system"
    return version, None if imported else said


def _examine_rdma() -> tuple[tuple[DeviceReport, ...], str]:
    """Return reports on the RDMA devices, and why they could not be examined or ""."""
    program = "whale_ray.transport.verbs.probe"
    done, written, said = _run([sys.executable, "-m", program], EXAMINATION_TIMEOUT_S)
    if not done:
        return (), said or "the process that examined them died"
    found = json.loads(written)
    return tuple(DeviceReport(**{**one, "addresses": tuple(one["addresses"])}) for one in found), ""


def _run(command: list[str], timeout_s: float = PROBE_TIMEOUT_S) -> tuple[bool, str, str]:
    """Return whether a short `command` succeeded, its output, and the last line of its errors."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired:
        return False, "", f"it takes longer than {timeout_s:g} s"
    except OSError as error:
        return False, "", str(error)
    return done.returncode == 0, done.stdout, done.stderr.rstrip().rpartition("\n")[2]
