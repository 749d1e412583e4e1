"""whale-ray in a notebook: cells run one after another by a kernel of this very Python.

The notebook is made with nbformat and executed with nbclient, as a user's is by Jupyter. Nothing
is registered or written outside the test's folder.
"""

from __future__ import annotations

import asyncio
import re
import sys
import textwrap
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import nbformat
import psutil
import pytest
from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient

CELL_TIMEOUT_S = 120
END_TIMEOUT_S = 60

SETUP = """
    import sys
    import whale_ray as whale

    rates = {"a": 2, "b": 3}  # a global of the notebook that its functions use

    def cents(row):
        return {"cab": row.cab, "cents": row.km * rates[row.cab]}

    class Total(whale.Process):
        def open(self, context):
            self.cents = {}
        def on_row(self, row, out):
            self.cents[row.cab] = self.cents.get(row.cab, 0) + row.cents
        def close(self, out):
            for cab, cents in self.cents.items():
                out.emit_row(cab=cab, cents=cents)

    def fares(name="fares"):
        trips = [{"cab": "ab"[i % 2], "km": i} for i in range(10)]
        topology = whale.Topology(name)
        paid = topology.source(whale.sources.iterable(trips), id="trips").map(cents, id="cents")
        totals = paid.key_by("cab").process(Total, id="total", parallelism=2)
        totals.sink(whale.sinks.collect(), id="out")
        return topology

    def numbers():
        return ({"v": i} for i in range(sys.maxsize))

    def endless():
        topology = whale.Topology("endless")
        source = topology.source(whale.sources.iterable(numbers, bounded=True), id="numbers")
        few = source.shuffle().filter(whale.col("v") % 100 == 0, id="few")
        few.sink(whale.sinks.parquet("out", overwrite=True), id="out")
        return topology
"""
FARES = {"a": (0 + 2 + 4 + 6 + 8) * 2, "b": (1 + 3 + 5 + 7 + 9) * 3}


class OwnSpec(KernelSpecManager):
    """Names one kernel, this Python's, whatever is installed on the machine."""

    def get_kernel_spec(self, kernel_name: str) -> KernelSpec:
        argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        return KernelSpec(argv=argv, display_name=kernel_name, language="python")


class Notebook:
    """A notebook whose cells are written and executed one by one."""

    def __init__(self, client: NotebookClient, run: Callable[[Awaitable[Any]], Any]) -> None:
        self._client = client
        self._run = run

    @property
    def kernel(self) -> psutil.Process:
        return psutil.Process(self._client.km.provisioner.pid)

    def workers(self) -> set[psutil.Process]:
        """Return the worker processes that the kernel has started and that live."""
        found = set()
        for one in self.kernel.children(recursive=True):
            with suppress(psutil.NoSuchProcess):  # it ended since it was listed
                if one.name().startswith("whale worker"):
                    found.add(one)
        return found

    def await_worker(self, earlier: psutil.Process | None) -> psutil.Process:
        """Wait until another worker than `earlier` lives, and return it."""
        until = time.monotonic() + END_TIMEOUT_S
        while not (found := self.workers() - {earlier}):
            assert time.monotonic() < until
        return found.pop()

    def execute(self, source: str) -> Any:
        """Append a cell and execute it; raises what it raised."""
        return self._run(self._execute(self._add(source)))

    def execute_again(self, cell: Any) -> Any:
        """Execute a cell once more, as a user does who returns to it."""
        return self._run(self._execute(cell))

    def interrupt(self, source: str, sign: str) -> Any:
        """Execute a new cell and interrupt the kernel once what it prints matches `sign`."""
        return self._run(self._interrupt(self._add(source), sign))

    def _add(self, source: str) -> Any:
        cells = self._client.nb.cells
        cells.append(nbformat.v4.new_code_cell(textwrap.dedent(source).strip()))
        return cells[-1]

    async def _execute(self, cell: Any) -> Any:
        return await self._client.async_execute_cell(cell, self._client.nb.cells.index(cell))

    async def _interrupt(self, cell: Any, sign: str) -> Any:
        execution = asyncio.ensure_future(self._execute(cell))
        while not execution.done() and not re.search(sign, printed(cell)):
            await asyncio.sleep(0.02)
        await self._client.km.interrupt_kernel()
        return await execution


def printed(cell: Any) -> str:
    """Return what a cell has written to standard output."""
    return "".join(found.text for found in cell.outputs if found.get("name") == "stdout")


def shown(cell: Any) -> dict[str, str]:
    """Return what a cell's last expression is shown as, by media type."""
    kinds = ("execute_result", "display_data")
    (found,) = (one for one in cell.outputs if one.output_type in kinds)
    return dict(found.data)


@asynccontextmanager
async def started(folder: Path) -> AsyncIterator[NotebookClient]:
    manager = AsyncKernelManager(kernel_spec_manager=OwnSpec())
    client = NotebookClient(nbformat.v4.new_notebook(), km=manager, timeout=CELL_TIMEOUT_S)
    async with client.async_setup_kernel(cwd=str(folder), cleanup_kc=True):
        yield client


@contextmanager
def opened(folder: Path) -> Iterator[Notebook]:
    """Start a kernel in a folder; on leaving, shut it down as Jupyter does."""
    with pytest.MonkeyPatch.context() as patch, asyncio.Runner() as runner:
        for name in ("JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "IPYTHONDIR"):
            patch.setenv(name, str(folder / name.lower()))
        context = started(folder)
        try:
            yield Notebook(runner.run(context.__aenter__()), runner.run)
        finally:
            runner.run(context.__aexit__(None, None, None))


@pytest.fixture(scope="module")
def notebook(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notebook]:
    with opened(tmp_path_factory.mktemp("notebook")) as made:
        made.execute(SETUP)
        yield made


@pytest.fixture
def no_job_leaks(notebook: Notebook, no_leaks: None) -> Iterator[None]:
    """Fail a test whose jobs leave more than the process that waits for the notebook's next job."""
    yield
    notebook.execute(
        """
        from whale_ray.deployment.processes.waiting_server import end_waiting_server
        end_waiting_server()
        """
    )


def fares_of(html: str) -> dict[str, int]:
    """Return the rows of a shown pandas table."""
    cells = [text.split("</td>")[0] for text in html.split("<td>")[1:]]
    return dict(zip(cells[::2], map(int, cells[1::2]), strict=True))


def test_a_topology_of_functions_in_cells_is_explained_as_tables(notebook: Notebook) -> None:
    data = shown(notebook.execute("fares().explain()"))
    assert data["text/plain"].startswith("topology fares\n")
    assert "<table" in data["text/html"] and "total" in data["text/html"]


def test_it_runs_in_the_notebook_itself(notebook: Notebook) -> None:
    cell = notebook.execute('whale.run(fares()).results("out").to_pandas()')
    assert fares_of(shown(cell)["text/html"]) == FARES


def test_it_runs_in_processes_and_the_job_is_shown_as_a_table(
    notebook: Notebook, no_job_leaks: None
) -> None:
    cell = notebook.execute(
        """
        job = whale.submit(fares(), on="processes", workers=2)
        job.wait()
        """
    )
    html = shown(cell)["text/html"]
    assert html.startswith("<div><b>fares</b> <code>fares-") and "</code>: finished<table>" in html
    assert "<tr><td>trips</td><td>1</td><td>10</td><td>10</td>" in html
    cell = notebook.execute("job.results().to_pandas()")
    assert fares_of(shown(cell)["text/html"]) == FARES
    assert not notebook.workers()


FAST = '{"runtime.poll_interval_ms": 20}'
WATCH = "watch=sys.stdout, interval_s=0.2"
ROWS_COME_OUT = r"running .* \| out [\d.]*[1-9]"
CHECK = """
    values = job.results().to_arrow()["v"].to_pylist()
    print(job.state, len(values) > 0, sorted(values) == [100 * i for i in range(len(values))])
"""


def test_the_table_of_a_job_lives_while_it_runs(notebook: Notebook, no_job_leaks: None) -> None:
    submit = f'job = whale.submit(endless(), on="processes", workers=1, settings={FAST})'
    cell = notebook.execute(f"{submit}\njob")
    (output,) = cell.outputs
    assert output.output_type == "display_data"
    assert re.search("</code>: (starting|running)<table>", output.data["text/html"])
    notebook.await_worker(None)
    notebook.execute(
        """
        import threading
        job.stop()
        for thread in threading.enumerate():
            if thread.name == "show endless":
                thread.join()  # it has shown the end
        """
    )
    (output,) = cell.outputs
    assert "</code>: drained<table>" in output.data["text/html"]
    assert "drained" in output.data["text/plain"]


def test_metrics_are_shown_as_a_table(notebook: Notebook) -> None:
    data = shown(notebook.execute("whale.run(fares()).metrics()"))
    assert "<tr><td>trips</td><td>1</td><td>10</td><td>10</td>" in data["text/html"]
    assert data["text/plain"].startswith("JobMetrics(")


def test_an_interrupt_drains_the_job_that_the_cell_waits_for(
    notebook: Notebook, no_job_leaks: None
) -> None:
    notebook.interrupt(
        f"""
        job = whale.submit(endless(), on="processes", workers=1, settings={FAST})
        job.wait({WATCH})
        """,
        ROWS_COME_OUT,
    )
    assert not notebook.workers()
    assert printed(notebook.execute(CHECK)) == "drained True True\n"


@pytest.mark.long
def test_an_interrupt_drains_a_run_in_the_notebook_itself(
    notebook: Notebook, no_job_leaks: None
) -> None:
    notebook.interrupt(
        """
        def tell(row):
            if row.v == 0:
                print("flowing", flush=True)
            return row.v % 100 == 0

        topology = whale.Topology("endless")
        source = topology.source(whale.sources.iterable(numbers, bounded=True), id="numbers")
        source.filter(tell, id="few").sink(whale.sinks.collect(), id="out")
        job = whale.run(topology)
        """,
        "flowing",
    )
    assert printed(notebook.execute(CHECK)) == "drained True True\n"


@pytest.mark.long
def test_running_a_cell_again_ends_the_job_that_it_left(
    notebook: Notebook, no_job_leaks: None
) -> None:
    submit = f'whale.submit(endless(), on="processes", workers=1, settings={FAST})'
    cell = notebook.execute(f"{submit};")  # no variable refers to the job
    notebook.execute("import gc; gc.collect()")
    first = notebook.await_worker(None)
    notebook.execute_again(cell)
    second = notebook.await_worker(first)
    assert notebook.workers() == {second}
    cell = notebook.execute('whale.submit(fares(), on="processes", workers=1).wait().state')
    assert shown(cell)["text/plain"] == "'finished'"
    assert notebook.workers() == {second}  # a job of another name is no earlier one
    notebook.execute('whale.submit(fares("endless"), on="processes", workers=1).wait()')
    assert not notebook.workers()


@pytest.mark.long
def test_closing_the_notebook_ends_its_jobs(tmp_path: Path, no_leaks: None) -> None:
    with opened(tmp_path) as notebook:
        notebook.execute(SETUP)
        notebook.execute('job = whale.submit(endless(), on="processes", workers=1)')
        worker = notebook.await_worker(None)
    assert psutil.wait_procs([worker], timeout=END_TIMEOUT_S)[1] == []
    assert not (tmp_path / "out").exists()


@pytest.mark.ray
@pytest.mark.long
def test_the_same_on_a_ray_that_the_notebook_starts(notebook: Notebook, no_job_leaks: None) -> None:
    submit = f'job = whale.submit(endless(), workers=1, address="local", settings={FAST})'
    cell = notebook.execute(submit)
    notebook.execute("first = job")
    notebook.execute_again(cell)
    assert printed(notebook.execute("print(first.state)")) == "cancelled\n"
    html = shown(notebook.execute("job"))["text/html"]
    assert html.startswith("<div><b>endless</b> <code>endless-")
    notebook.interrupt(f"job.wait({WATCH})", ROWS_COME_OUT)
    assert printed(notebook.execute(CHECK)) == "drained True True\n"
    cell = notebook.execute(
        """
        import ray
        print(ray.is_initialized())  # the job's Ray was its own
        """
    )
    assert printed(cell) == "False\n"
    cell = notebook.execute(
        """
        job = whale.submit(fares(), workers=2, address="local")
        job.results().to_pandas()
        """
    )
    assert fares_of(shown(cell)["text/html"]) == FARES
