"""`hydra/launcher=ray`: each job of a sweep is a task of Ray.

Ours, because hydra-ray-launcher 1.2.2 wants cloudpickle < 3 and boto3. Hydra finds plugins by the name of this folder.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from typing import Any

from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn, run_job, setup_globals
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, open_dict


class RayLauncher(Launcher):
    """Starts Ray, or joins it, and waits for all jobs.

    Args:
        init: arguments of `ray.init`.
        remote: what each job takes, as `ray.remote` has it.
    """

    def __init__(self, init: Mapping[str, Any], remote: Mapping[str, Any]) -> None:
        self.init, self.remote = dict(init), dict(remote)

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.context, self.task, self.config = hydra_context, task_function, config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        import ray

        ours = not ray.is_initialized()
        if ours:
            ray.init(**{"include_dashboard": False, "logging_level": "warning", **self.init})
        try:
            task = ray.remote(**self.remote)(_play)
            given = ray.put((self.context, self.task, self.config, Singleton.get_state(), os.getcwd()))
            return list(
                ray.get([task.remote(given, initial_job_idx + n, list(o)) for n, o in enumerate(job_overrides)])
            )
        finally:
            if ours:
                ray.shutdown()


def _play(given: tuple[Any, ...], number: int, overrides: list[str]) -> JobReturn:
    """One job, in a process of Ray's."""
    context, task, config, state, folder = given
    with contextlib.suppress(OSError):  # another machine may not have it
        os.chdir(folder)
    setup_globals()
    Singleton.set_state(state)
    job = context.config_loader.load_sweep_config(config, overrides)
    with open_dict(job):
        job.hydra.job.id, job.hydra.job.num = f"ray_{number}", number
    return run_job(
        hydra_context=context,
        task_function=task,
        config=job,
        job_dir_key="hydra.sweep.dir",
        job_subdir_key="hydra.sweep.subdir",
    )
