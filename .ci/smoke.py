"""Small jobs with what is installed: `python smoke.py run processes ray data pandas spark`.

For an installed wheel: it runs anywhere but beside the sources, and beside an `operators.py` of the
user's own, which must not be taken for whale-ray's.
"""

import importlib.util
import sys
from pathlib import Path

import whale_ray as whale

ROWS = [{"key": key, "value": key * 10} for key in range(5)]
WANTED = ROWS[3:]


def topology(source: whale.sources.Source, sink: whale.sinks.Sink) -> whale.Topology:
    """Return a filter whose rows go to two instances by their key."""
    made = whale.Topology("smoke")
    rows = made.source(source, id="rows").filter(whale.col("key") > 2, id="some")
    rows.key_by("key").map(
        lambda row: {"key": row.key, "value": row.value}, id="same", parallelism=2
    ).sink(sink, id="out")
    return made


def in_order(rows: list[dict[str, int]]) -> list[dict[str, int]]:
    """Return rows by key: two instances promise no order."""
    return sorted(rows, key=lambda row: row["key"])


def collected(on: str) -> None:
    """Run the topology on one of the deployments."""
    made = topology(whale.sources.iterable(ROWS), whale.sinks.collect())
    job = whale.run(made) if on == "run" else whale.submit(made, on=on, workers=2)
    assert in_order(job.results("out").to_arrow().to_pylist()) == WANTED


def compiled_before() -> None:
    """Run it in this process with the functions that the wheel carries, and compile none."""
    from numba.core import event

    with event.install_recorder("numba:compile") as compiled:
        collected("run")
    names = [each.data["dispatcher"].py_func.__qualname__ for _, each in compiled.buffer]
    assert not names, f"compiled here: {names}"


def pandas_frame() -> None:
    """Rows from a pandas frame and into one."""
    import pandas

    made = topology(whale.sources.pandas(pandas.DataFrame(ROWS)), whale.sinks.collect())
    frame = whale.run(made).results("out").to_pandas()
    assert in_order(frame.to_dict("records")) == WANTED


def ray_dataset() -> None:
    """Rows into a Ray Dataset and out of it."""
    from whale_ray.ray_bridge import connect_ray

    with connect_ray():
        import ray.data

        source = whale.sources.ray_dataset(ray.data.from_items(ROWS))
        job = whale.submit(topology(source, whale.sinks.ray_dataset()), workers=2)
        assert in_order(job.results("out").to_ray_dataset().take_all()) == WANTED


def spark_frame() -> None:
    """Rows from a DataFrame of Spark on Ray and into one."""
    from whale_ray.spark import spark_on_ray

    with spark_on_ray("smoke") as session:
        rows = session.createDataFrame([tuple(row.values()) for row in ROWS], list(ROWS[0]))
        job = whale.submit(topology(whale.sources.spark(rows), whale.sinks.spark()), workers=2)
        frame = job.results("out").to_spark(session)
        assert in_order([row.asDict() for row in frame.collect()]) == WANTED


CASES = {
    "compiled": compiled_before,
    "run": lambda: collected("run"),
    "processes": lambda: collected("processes"),
    "ray": lambda: collected("ray"),
    "pandas": pandas_frame,
    "data": ray_dataset,
    "spark": spark_frame,
}


def main() -> None:
    """Run the cases that are named."""
    Path("operators.py").write_text("raise AssertionError('this is the user's own')\n")
    assert "site-packages" in whale.__file__, whale.__file__
    assert importlib.util.find_spec("transport") is None
    for name in sys.argv[1:]:
        CASES[name]()
        sys.stdout.write(f"{name} works\n")


if __name__ == "__main__":
    main()
