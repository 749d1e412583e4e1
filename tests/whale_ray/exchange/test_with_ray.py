"""Sessions and datasets against a real Ray."""

from __future__ import annotations

import gc
import json
import pickle
import socket
import subprocess
import sys
from typing import Any

import cloudpickle
import pyarrow as pa
import pytest

from tests.whale_ray.exchange.source_tables import table_of
from whale_ray.configs.settings import Settings
from whale_ray.errors import InputError, UsageError
from whale_ray.ray_bridge import connect_ray, ray_dataset_sink, ray_dataset_source, to_ray_dataset
from whale_ray.ray_bridge.blocks import FileSource, ObjectSource
from whale_ray.ray_bridge.dataset import HandoverSink, RayDatasetResult
from whale_ray.ray_bridge.session import RaySession
from whale_ray.testing import read_all, write_all
from whale_ray.transport.wire.batch import Batch

pytestmark = [pytest.mark.ray, pytest.mark.long]

EVERY_TYPE = pa.table(
    {
        "whole": pa.array([2**53 + 1, None, -(2**63)], pa.int64()),
        "unsigned": pa.array([2**64 - 1, 0, None], pa.uint64()),
        "real": pa.array([float("inf"), None, -0.0], pa.float64()),
        "half": pa.array([1.5, None, -2.0], pa.float16()),
        "text": pa.array(["a\0b", None, "😀"], pa.string()),
        "raw": pa.array([b"\xff\0", b"", None], pa.binary()),
        "id": pa.array([b"abcd", None, b"\0\0\0\0"], pa.binary(4)),
        "flag": pa.array([True, None, False], pa.bool_()),
        "day": pa.array([-719162, None, 0], pa.int32()).cast(pa.date32()),
        "at_ns": pa.array([1, None, 2**62], pa.timestamp("ns", "Europe/Paris")),
        "at_s": pa.array([1, None, 2**40], pa.timestamp("s")),
        "time": pa.array([1, None, 2], pa.time64("us")),
        "span": pa.array([-1, None, 2**62], pa.duration("ns")),
        "money": pa.array(["12.34", None, "-0.01"]).cast(pa.decimal128(20, 2)),
    }
)


# Sessions.


def test_a_ray_of_our_own_reserves_nothing_for_workers(session: RaySession) -> None:
    import ray

    assert session.started_here
    assert session.worker_cpus == 0
    assert ray.cluster_resources()["CPU"] == 4


def test_a_second_session_shares_the_ray_and_leaves_it(session: RaySession) -> None:
    import ray

    for address in (None, "auto", "local", session.address):
        with connect_ray(address) as second:
            assert (second.address, second.started_here) == (session.address, True)
        second.close()  # twice
        assert ray.is_initialized()


def test_another_ray_than_the_connected_one_is_refused(session: RaySession) -> None:
    from ray.util import get_node_ip_address

    with socket.create_server(("", 0)) as server:
        other = f"{get_node_ip_address()}:{server.getsockname()[1]}"
        with pytest.raises(UsageError) as raised:
            connect_ray(other)
    assert str(raised.value) == (
        f"this process is connected to Ray at {session.address}, not {other!r}; "
        "leave out the address, or call ray.shutdown() first"
    )


JOIN = """\
import json, sys
import ray
from whale_ray.ray_bridge import connect_ray

with connect_ray(sys.argv[1]) as joined:
    facts = {"started": joined.started_here, "cpus": joined.worker_cpus, "at": joined.address}
facts["left"] = not ray.is_initialized()

ray.init(address=facts["at"], namespace="mine", log_to_driver=False, logging_level="ERROR")
with connect_ray() as users:
    facts |= {"namespace": users.namespace, "users_started": users.started_here}
facts["kept"] = ray.is_initialized()
print(json.dumps(facts))
"""


def test_a_running_ray_is_joined_and_left_as_it_was(session: RaySession) -> None:
    import ray

    before = ray.cluster_resources()
    done = subprocess.run(
        [sys.executable, "-c", JOIN, session.address],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "started": False,
        "cpus": 1.0,
        "at": session.address,
        "left": True,
        "namespace": "mine",
        "users_started": False,
        "kept": True,
    }
    assert ray.cluster_resources() == before


# Datasets in.


@pytest.mark.parametrize("cluster", [True, False], ids=["objects", "files"])
def test_a_dataset_is_read_exactly(session: RaySession, cluster: bool) -> None:
    source = ray_dataset_source(to_ray_dataset(EVERY_TYPE)).materialize(cluster=cluster)
    assert isinstance(source, ObjectSource if cluster else FileSource)
    assert table_of(source).equals(EVERY_TYPE)
    assert table_of(source).equals(EVERY_TYPE)  # a new attempt
    source.release()


@pytest.mark.parametrize("cluster", [True, False], ids=["objects", "files"])
def test_columns_of_blocks_are_matched_by_name(session: RaySession, cluster: bool) -> None:
    import ray.data

    first = ray.data.from_arrow(pa.table({"a": [1, 2], "b": [10, 20]}))
    dataset = first.union(ray.data.from_arrow(pa.table({"b": [30], "a": [3]})))
    source = ray_dataset_source(dataset).materialize(cluster=cluster)
    assert table_of(source).equals(pa.table({"a": [1, 2, 3], "b": [10, 20, 30]}))
    source.release()


def test_a_column_whose_first_block_has_only_nulls(session: RaySession) -> None:
    import ray.data

    blocks = [pa.table({"a": pa.nulls(2)}), pa.table({"a": ["x", None]})]
    for dataset in (ray.data.from_arrow(blocks), ray.data.from_arrow(blocks).materialize()):
        source = ray_dataset_source(dataset).materialize(cluster=True)
        assert table_of(source).equals(pa.table({"a": [None, None, "x", None]}))
        source.release()
    nothing = ray_dataset_source(ray.data.from_arrow(blocks[0]))
    with pytest.raises(InputError, match=r"column 'a' has type null"):
        nothing.materialize(cluster=True)


@pytest.mark.parametrize("cluster", [True, False], ids=["objects", "files"])
def test_blocks_are_dealt_out_in_turn(session: RaySession, cluster: bool) -> None:
    import ray.data

    blocks = [pa.table({"n": list(range(start, start + 10))}) for start in range(0, 50, 10)]
    source = ray_dataset_source(ray.data.from_blocks(blocks)).materialize(cluster=cluster)
    shares = [table_of(source, instance, 2)["n"].to_pylist() for instance in range(2)]
    numbers = list(range(50))
    assert shares == [numbers[:10] + numbers[20:30] + numbers[40:], numbers[10:20] + numbers[30:40]]
    assert table_of(source, 7, 8).num_rows == 0


def test_a_lazy_dataset_is_executed_in_order(session: RaySession) -> None:
    import ray.data

    lazy = ray.data.range(1000, override_num_blocks=10).map_batches(lambda batch: batch)
    source = ray_dataset_source(lazy)
    assert source.schema() is None
    assert table_of(source.materialize(cluster=True))["id"].to_pylist() == list(range(1000))
    assert not lazy.context.execution_options.preserve_order


def test_pandas_blocks_become_arrow(session: RaySession) -> None:
    import pandas as pd
    import ray.data

    dataset = ray.data.from_pandas(pd.DataFrame({"n": [1, 2], "s": ["x", None]}))
    rows = table_of(ray_dataset_source(dataset).materialize(cluster=True)).to_pylist()
    assert rows == [{"n": 1, "s": "x"}, {"n": 2, "s": None}]


def test_blocks_that_differ_are_cast_or_refused(session: RaySession) -> None:
    import ray.data

    def read(*columns: list[Any]) -> list[Any]:
        dataset = ray.data.from_blocks([pa.table({"n": column}) for column in columns])
        return table_of(ray_dataset_source(dataset).materialize(cluster=True))["n"].to_pylist()

    assert read([1], [0.5]) == [1.0, 0.5]
    with pytest.raises(InputError) as raised:
        read([2**53 + 1], [0.5])
    assert str(raised.value) == (
        "Ray Dataset: column 'n' is int64 in one block and double in the others, and Integer value "
        "9007199254740993 not in range: -9007199254740992 to 9007199254740992; cast it to one type"
    )
    with pytest.raises(InputError) as raised:
        read([1], ["2"])
    assert str(raised.value) == (
        "Ray Dataset: Ray cannot execute it: "
        "Unable to merge: Field n has incompatible types: int64 vs string"
    )


def fail(batch: Any) -> Any:
    raise ValueError("no such taxi")


def test_a_dataset_that_fails_says_why(session: RaySession) -> None:
    import ray.data

    with pytest.raises(InputError, match="Ray cannot execute it: ValueError: no such taxi"):
        ray_dataset_source(ray.data.range(3).map_batches(fail)).materialize(cluster=True)


def test_a_type_that_is_not_carried_is_refused_while_building(session: RaySession) -> None:
    with pytest.raises(InputError, match="column 'tags' has type list<"):
        ray_dataset_source(to_ray_dataset(pa.table({"tags": [["a"]]}))).check()


def test_a_dataset_itself_does_not_travel(session: RaySession) -> None:
    source = ray_dataset_source(to_ray_dataset(EVERY_TYPE))
    with pytest.raises(UsageError) as raised:
        pickle.dumps(source)
    assert str(raised.value) == (
        "a Ray Dataset can only be read where it was made; submit the topology from there"
    )


def count_rows(packed: bytes, instance: int, parallelism: int) -> list[int]:
    source = pickle.loads(packed)
    return [batch.num_rows for batch in read_all(source, instance, parallelism)]


@pytest.mark.parametrize("dumps", ["pickle", "cloudpickle", "ray.cloudpickle"])
def test_other_processes_read_the_objects_in_place(session: RaySession, dumps: str) -> None:
    import ray
    import ray.cloudpickle

    pickled: Any = {
        "pickle": pickle.dumps,
        "cloudpickle": cloudpickle.dumps,
        "ray.cloudpickle": ray.cloudpickle.dumps,
    }[dumps]
    blocks = [pa.table({"n": list(range(20_000))}) for _ in range(3)]
    source = ray_dataset_source(ray.data.from_blocks(blocks)).materialize(cluster=True)
    packed = pickled(source)
    task = ray.remote(num_cpus=0)(count_rows)
    pieces = [8192, 8192, 3616]
    told = ray.get([task.remote(packed, instance, 2) for instance in range(2)], timeout=60)
    assert told == [pieces * 2, pieces]
    source.release()


def test_released_objects_leave_the_store(session: RaySession) -> None:
    import ray

    def held() -> set[bytes]:
        counts = ray._private.worker.global_worker.core_worker.get_all_reference_counts()
        return set(counts)

    table = pa.table({"n": list(range(100_000))})
    source = ray_dataset_source(to_ray_dataset(table)).materialize(cluster=True)
    assert isinstance(source, ObjectSource)
    ours = {ref.hex().encode() for ref in source.refs.unpack()}
    cloudpickle.dumps(source)
    assert ours
    assert ours <= held()
    source.release()
    source.release()  # twice
    gc.collect()  # the dataset itself may wait for its turn
    assert not ours & held()


# Datasets out.


def test_a_result_becomes_a_dataset_exactly(session: RaySession) -> None:
    sink = ray_dataset_sink()
    assert isinstance(sink, HandoverSink)
    halves = [Batch.from_arrow(EVERY_TYPE.slice(0, 2)), Batch.from_arrow(EVERY_TYPE.slice(2))]
    result = write_all(sink.configured(Settings()), [halves[0]], [halves[1]])
    result = pickle.loads(pickle.dumps(result))
    assert isinstance(result, RayDatasetResult)
    import ray

    tables = ray.get(result.to_ray_dataset().to_arrow_refs())
    assert pa.concat_tables(tables).equals(EVERY_TYPE)


def test_a_result_without_rows_keeps_its_columns(session: RaySession) -> None:
    dataset = to_ray_dataset(EVERY_TYPE.slice(0, 0))
    assert dataset.count() == 0
    assert dataset.schema().base_schema.equals(EVERY_TYPE.schema)


def test_a_sink_that_no_job_has_is_not_written_to() -> None:
    with pytest.raises(UsageError, match="the Ray Dataset sink was not given to a job"):
        write_all(ray_dataset_sink(), [])


THREADS_AND_OTHERS = """
import json, sys, threading
import ray
from whale_ray.ray_bridge.session import RayKeeper, connect_ray

def use():
    with connect_ray("local", num_cpus=1):
        pass

keeper = RayKeeper()
thread = threading.Thread(target=use)
thread.start()
thread.join()
alive = ray.get(ray.remote(num_cpus=0)(lambda: "alive").remote(), timeout=60)
session = connect_ray()
ray.shutdown()
ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False)
session.close()
keeper.close()
print(json.dumps([alive, ray.is_initialized()]))
ray.shutdown()
"""


@pytest.mark.long
def test_ray_outlives_the_thread_that_needed_it_and_that_of_the_user_stays_theirs() -> None:
    done = subprocess.run(
        [sys.executable, "-c", THREADS_AND_OTHERS],
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == ["alive", True]
