"""Sparks that whale-ray did not start: each in a process of its own, with its own Java."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

END_TIMEOUT_S = 60
LIMIT_S = 580  # Java, Spark and Ray start beside two other such tests
pytestmark = [
    pytest.mark.spark,
    pytest.mark.long,
    pytest.mark.timeout(600),
    pytest.mark.usefixtures("no_leaks"),
]

ROOT = Path(__file__).parents[3]
NO_AGENT_YET = "No available agent to submit job"
"""What Ray answers to a job that is handed over early."""


def told_by(script: str) -> dict[str, Any]:
    """Run a script that prints a JSON object at its end, and return that."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


def test_a_plain_spark_works_through_files_and_ends_with_its_java() -> None:
    told = told_by(
        """
        import json, psutil
        import whale_ray as whale
        from tests.whale_ray.spark import spark_rows as rows
        from whale_ray.spark import adopt_session, spark_locally, spark_source, to_spark

        def javas():
            listed = {c.pid for c in psutil.Process().children(True)}
            # process_iter leaves out those that have ended since they were listed.
            names = {p.pid: p.info["name"] for p in psutil.process_iter(["name"])}
            return [names[pid] for pid in listed & names.keys() if "java" in names[pid]]

        facts, after = {}, []
        for name in ("first", "second"):
            with spark_locally(name) as spark:
                table = rows.rows_of_spark()
                topology = whale.Topology(name)
                source = topology.source(whale.sources.spark(to_spark(table, spark)), id="rows")
                source.sink(whale.sinks.spark(), id="out")
                frame = whale.run(topology).results("out").to_spark()
                told = frame.orderBy("row").selectExpr(*rows.spelled_by_spark(frame.schema))
                columns = list(zip(*told.collect()))
                facts[name] = [list(c) for c in columns] == list(rows.spelled(table).values())
                facts["way"] = adopt_session(spark).name
            after += javas()
        print(json.dumps(facts | {"after": after}))
        """
    )
    assert told == {"first": True, "second": True, "way": "FILES", "after": []}


USERS_OWN = """
import json
import ray, raydp
import whale_ray as whale
from whale_ray.errors import UsageError
from whale_ray.spark import JAVA_OPTION_KEYS, JAVA_OPTIONS, stop_session, use_java
from whale_ray.spark.java import QUICK_START_OPTIONS

def topology(frame):
    made = whale.Topology("users")
    rows = made.source(whale.sources.spark(frame), id="rows")
    rows.sink(whale.sinks.spark(), id="out")
    return made

use_java()
# An executor and a worker: Ray starts a process for each processor, whether it is used or not.
ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
facts = {}
configs = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
# Three Javas start, beside other tests: Java's second compiler would double the processor time.
configs |= dict.fromkeys(JAVA_OPTION_KEYS, " ".join(QUICK_START_OPTIONS))
"""


@pytest.mark.ray
def test_a_users_own_spark_on_ray_is_joined_and_left_alone() -> None:
    told = told_by(
        USERS_OWN
        + """
configs |= dict.fromkeys(JAVA_OPTION_KEYS, " ".join([*JAVA_OPTIONS, *QUICK_START_OPTIONS]))
spark = raydp.init_spark("flagged", 1, 1, "512m", configs=configs)
job = whale.submit(topology(spark.range(10)), workers=1)
facts["sum"] = job.results("out").to_spark().selectExpr("sum(id)").collect()[0][0]
stop_session(spark)  # the user's own: nothing happens
facts["lives"] = spark.range(10).count()
facts["connected"] = ray.is_initialized()
raydp.stop_spark()
print(json.dumps(facts))
"""
    )
    assert told == {"sum": 45, "lives": 10, "connected": True}


@pytest.mark.ray
@pytest.mark.exhaustive
def test_a_users_own_spark_on_ray_without_the_flags_is_refused_unharmed() -> None:
    told = told_by(
        USERS_OWN
        + """
spark = raydp.init_spark("bare", 1, 1, "512m", configs=configs)
try:
    whale.submit(topology(spark.range(10)), workers=1)
except UsageError as error:
    facts["refused"] = str(error)
facts["unharmed"] = spark.range(10).count()
raydp.stop_spark()
print(json.dumps(facts))
"""
    )
    assert told.pop("refused").startswith(
        "this Spark session was made without spark.ray.raydp_app_master.extraJavaOptions for "
    )
    assert told == {"unharmed": 10}


@pytest.mark.ray
def test_a_ray_that_was_started_without_java_is_refused_unharmed(tmp_path: Path) -> None:
    """Its raylet would end with the first Java process, and the whole Ray with it."""
    for folder in os.environ["PATH"].split(os.pathsep):
        for program in os.scandir(folder) if os.path.isdir(folder) else ():
            if program.name != "java" and not os.path.lexists(tmp_path / program.name):
                os.symlink(program.path, tmp_path / program.name)
    told = told_by(
        f"""
        import json, os
        import ray
        from whale_ray.errors import ResourceError
        from whale_ray.spark import spark_on_ray

        os.environ["PATH"] = {str(tmp_path)!r}
        os.environ.pop("JAVA_HOME", None)
        ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
        try:
            with spark_on_ray("joined"):
                facts = {{}}
        except ResourceError as error:
            facts = {{"said": str(error)}}
        facts["unharmed"] = ray.get(ray.remote(num_cpus=0)(os.path.basename).remote("a/b"))
        ray.shutdown()
        print(json.dumps(facts))
        """
    )
    assert "which was started without java; nodes of a Ray that runs already" in told["said"]
    assert told["unharmed"] == "b"


@pytest.mark.ray
def test_inside_a_submitted_script_ray_is_joined_without_an_address(tmp_path: Path) -> None:
    """A Ray with a job server, and a script handed to it: RAY_ADDRESS is all that it gets."""
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            """
            import json
            from whale_ray.ray_bridge import connect_ray

            if __name__ == "__main__":
                with connect_ray() as session:
                    print(json.dumps([session.started_here, session.worker_cpus, session.address]))
            """
        )
    )
    told = told_by(
        f"""
        import functools, json, shutil, socket, sys, tempfile, time
        import ray
        from ray._private.parameter import RayParams
        from ray._private.utils import write_ray_address
        from ray.job_submission import JobStatus, JobSubmissionClient

        # Its agent listens on a free port, not on one that other Rays of this machine have taken.
        RayParams.__init__ = functools.partialmethod(
            RayParams.__init__, dashboard_agent_listen_port=0
        )
        folder = tempfile.mkdtemp(prefix="whale-")
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        context = ray.init(
            address="local", num_cpus=2, include_dashboard=True, dashboard_port=port,
            log_to_driver=False, logging_level="ERROR", _temp_dir=folder,
        )
        # As `ray start` does: of several Rays on a machine, jobs get the address of this one.
        write_ray_address(context.address_info["gcs_address"], folder)
        client = JobSubmissionClient(f"http://{{context.dashboard_url}}")
        job = None
        while job is None:
            try:
                job = client.submit_job(entrypoint=f"{{sys.executable}} {script}")
            except RuntimeError as error:  # Ray gives its agent 10 s to start
                if {NO_AGENT_YET!r} not in str(error):
                    raise
        while not client.get_job_status(job).is_terminal():
            time.sleep(0.2)
        facts = {{
            "status": client.get_job_status(job).name,
            "told": json.loads(client.get_job_logs(job).splitlines()[-1]),
            "at": context.address_info["gcs_address"],
        }}
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)
        print(json.dumps(facts))
        """
    )
    assert told["status"] == "SUCCEEDED"
    assert told["told"] == [False, 1.0, told["at"]]


@pytest.mark.ray
def test_a_ray_that_wants_another_token_says_so(tmp_path: Path) -> None:
    """Without the right token, the message names the variables to set."""
    told = told_by(
        f"""
        import json, os, subprocess, sys
        from whale_ray.ray_bridge import connect_ray

        JOIN = '''
        import sys
        from whale_ray.errors import ResourceError
        from whale_ray.ray_bridge import connect_ray
        try:
            connect_ray(sys.argv[1])
        except ResourceError as error:
            print(error)
        '''
        with connect_ray("local", num_cpus=2) as session:
            strangers = os.environ | {{"HOME": {str(tmp_path)!r}}}
            strangers.pop("RAY_AUTH_MODE", None)
            strangers["RAY_gcs_server_port_wait_time_s"] = "5"  # it waits for no better answer
            done = subprocess.run(
                [sys.executable, "-c", __import__("textwrap").dedent(JOIN), session.address],
                env=strangers, capture_output=True, text=True,
            )
            print(json.dumps({{"said": done.stdout.strip(), "at": session.address}}))
        """
    )
    assert told["said"] == (
        f"the Ray at {told['at']} refuses this process: it wants a token; set RAY_AUTH_MODE=token "
        "and RAY_AUTH_TOKEN_PATH (or RAY_AUTH_TOKEN) to the cluster's before Python starts"
    )


FOREACH_BATCH = """
import faulthandler, json, logging, sys, time
import ray
import whale_ray as whale
from whale_ray.spark import foreach_batch, spark_locally

class Count(whale.Process):
    def open(self, context):
        self.rows = 0
    def on_row(self, row, out):
        self.rows += 1
    def close(self, out):
        out.emit_row(rows=self.rows)

def build(source, number):
    topology = whale.Topology("counting")
    counted = topology.source(source, id="rows").global_().process(Count, id="count")
    counted.sink(whale.sinks.collect(), id="out")
    return topology

def submit(topology):
    return whale.submit(topology, workers=1)

def receive(job, number):
    facts["rows"].append(job.results("out").preview()[0]["rows"])
    context = ray.get_runtime_context()
    facts["rays"].append(str(context.get_job_id()) + context.gcs_address)
    if number == FAILS_AT:
        raise LookupError("the third is too much")

class Told(logging.Handler):
    def emit(self, record):
        facts["told"].append(record.getMessage())

facts = {"rows": [], "rays": [], "told": []}
logging.getLogger("whale_ray.spark.streaming").addHandler(Told())
with spark_locally("stream") as spark:
    for number in range(3):
        spark.range(10 + number).coalesce(1).write.mode("append").parquet(FOLDER + "/in")
    stream = spark.readStream.schema("id bigint").option("maxFilesPerTrigger", 1)
    writer = stream.parquet(FOLDER + "/in").writeStream.option("checkpointLocation", FOLDER + "/c")
    query = writer.foreachBatch(foreach_batch(build, receive, submit=submit)).start()
    try:
        query.processAllAvailable()
        query.stop()
    except Exception as error:
        facts["failed"] = str(error)
    until = time.monotonic() + END_TIMEOUT_S
    while ray.is_initialized() and time.monotonic() < until:
        time.sleep(0.05)
    if ray.is_initialized():
        faulthandler.dump_traceback()
        sys.exit("Ray runs on after the query's end; all threads are above")
print(json.dumps(facts))
"""


@pytest.mark.ray
@pytest.mark.parametrize("fails_at", [-1, pytest.param(2, marks=pytest.mark.exhaustive)])
def test_one_ray_serves_all_micro_batches_of_a_query_and_ends_with_it(
    fails_at: int, tmp_path: Path
) -> None:
    names = f"""
FOLDER = {str(tmp_path)!r}
FAILS_AT = {fails_at}
END_TIMEOUT_S = {END_TIMEOUT_S}
"""
    told = told_by(names + FOREACH_BATCH)
    failed = told.get("failed", "")
    assert "the third is too much" in failed if fails_at == 2 else not failed
    assert sorted(told["rows"]) == [10, 11, 12]
    assert len(set(told["rays"])) == 1
    assert told["told"] == [
        "topology 'counting': what 'count' keeps does not outlive a micro-batch: the next one "
        "begins with new instances"
    ]
