"""`attach`: a handle of a job on Ray that another driver submitted."""

from __future__ import annotations

from ..configs.errors import UsageError
from ..configs.loading import load_settings
from .job import Job


def attach(named: str, *, address: str | None = None) -> Job:
    """Return a handle of a job that runs on Ray, detached or not, in any driver.

    It is like the one that `submit` returned: `metrics`, `savepoint`, `stop`, `wait`, `results`.
    The job goes on when this process ends; Ctrl-C in `wait` ends only the waiting. Jobs on plain
    processes end with their driver, and no other one reaches them.

    Args:
        named: its id, or its name if no other job has that; `whale-ray list` shows both.
        address: of the cluster; None: that which this process is connected to, or finds.

    Raises:
        UsageError: there is no such job, it has ended, or several have that name.
        ResourceError: no Ray answers there.
    """
    from ..deployment.on_ray.ray_jobs import controller_of, find_job, list_jobs
    from ..deployment.on_ray.ray_output import logs_place
    from ..ray_bridge.session import connect_ray
    from .ray_submission import DetachedRunner

    session = connect_ray(address or "auto")
    try:
        found = find_job(named, list_jobs(address))
        controller = controller_of(found.id)
        if controller is None:
            msg = f"job {found.id!r} has just ended"
            raise UsageError(msg)
        runner = DetachedRunner(found.id, controller, session)
        return Job(
            found.id,
            found.name,
            runner,
            logs=logs_place(),
            dashboard_url=session.dashboard_url,
            records=load_settings().records,
        )
    except BaseException:
        session.close()
        raise
