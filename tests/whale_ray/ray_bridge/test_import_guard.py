"""A script that starts a job while a worker imports it is reported once, with its line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from whale_ray.ray_bridge.guard import refuse_while_importing

UNGUARDED = """\
import multiprocessing
import sys

from whale_ray.errors import UsageError
from whale_ray.ray_bridge.guard import refuse_while_importing


def work():
    return None


def start():
    refuse_while_importing("a job")


try:
    start()
except UsageError as error:
    sys.exit(f"refused: {error}")
"""
START_A_WORKER = """\
child = multiprocessing.get_context("spawn").Process(target=work)
child.start()
child.join()
"""
GUARDED = UNGUARDED.replace("try:", 'if __name__ == "__main__":').split("except")[0]


def told_by(script: Path) -> str:
    command = [sys.executable, str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return done.stderr.strip()


def refusal(script: Path, line: int) -> str:
    return (
        f"refused: {script}:{line}: a job was asked for while a worker imported this script; "
        'put what starts the job under `if __name__ == "__main__":`'
    )


def test_a_process_that_imports_its_parents_script_is_stopped(tmp_path: Path) -> None:
    script = tmp_path / "unguarded.py"
    script.write_text(UNGUARDED + START_A_WORKER)
    assert told_by(script) == refusal(script, 17)


def test_a_guarded_script_may_start_workers(tmp_path: Path) -> None:
    script = tmp_path / "guarded.py"
    indented = START_A_WORKER.replace("\n", "\n    ")
    script.write_text(f"{GUARDED}\n    {indented}")
    assert told_by(script) == ""


def test_a_worker_of_ray_that_imports_the_script_is_stopped(tmp_path: Path) -> None:
    users = tmp_path / "users_script.py"
    users.write_text(UNGUARDED)
    worker = tmp_path / "default_worker.py"  # the name of the program that Ray's workers run
    worker.write_text("import users_script")
    assert told_by(worker) == refusal(users, 17)


def test_a_task_of_ray_may_start_a_job(tmp_path: Path) -> None:
    users = tmp_path / "users_tasks.py"
    users.write_text(UNGUARDED.split("try:", maxsplit=1)[0])
    worker = tmp_path / "default_worker.py"
    worker.write_text("import users_tasks\nusers_tasks.start()")
    assert told_by(worker) == ""


def test_a_test_or_a_notebook_may_start_a_job() -> None:
    refuse_while_importing("a job")
