"""`hydra/sweeper=optuna`: a search instead of a grid, on whatever launcher.

    -m hydra/sweeper=optuna recipe=neural_ucb 'algorithm.nu=tag(log, interval(0.01, 1))' env.arms=choice(4,8)

Ours, because hydra-optuna-sweeper 1.3.0 wants Optuna < 3. Hydra finds plugins by the name of this folder.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import IntervalSweep, Override, RangeSweep
from hydra.core.plugins import Plugins
from hydra.core.utils import JobStatus
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

SAMPLERS = {"tpe": "TPESampler", "random": "RandomSampler", "cmaes": "CmaEsSampler"}


class OptunaSweeper(Sweeper):
    """Asks Optuna for runs, `n_jobs` at a time, and tells it what they came to; less is better.

    Without a storage a search that was interrupted is played again from its seed: it proposes the same runs, and those
    that are done are read instead of played.
    """

    def __init__(
        self, n_trials: int, n_jobs: int, sampler: str, seed: int | None, storage: str | None, study: str | None
    ) -> None:
        self.n_trials, self.n_jobs, self.sampler, self.seed = n_trials, n_jobs, sampler, seed
        self.storage, self.study = storage, study

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.config = config
        self.launcher: Launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments: list[str]) -> Any:
        import optuna
        from optuna.trial import TrialState

        from nbl.config import unknown
        from nbl.types import NblError

        if self.sampler not in SAMPLERS:
            raise NblError(unknown("sampler of Optuna", self.sampler, SAMPLERS))
        if self.n_trials < 1 or self.n_jobs < 1:
            raise NblError(f"n_trials={self.n_trials} n_jobs={self.n_jobs}: need whole numbers, at least 1.")
        config = self.config
        assert config is not None
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        parsed = OverridesParser.create().parse_overrides(arguments)
        fixed = [str(o.input_line) for o in parsed if not o.is_sweep_override()]
        space = {o.get_key_element(): distribution(o) for o in parsed if o.is_sweep_override()}
        if not space:
            raise NblError(
                "Nothing to search: say for example 'algorithm.nu=interval(0.01, 1)' or env.arms=choice(4,8)."
            )
        study = optuna.create_study(
            direction="minimize",
            sampler=getattr(optuna.samplers, SAMPLERS[self.sampler])(seed=self.seed),
            storage=self.storage,
            study_name=self.study,
            load_if_exists=True,
        )
        while (begun := len(study.trials)) < self.n_trials:
            trials = [study.ask(space) for _ in range(min(self.n_jobs, self.n_trials - begun))]
            jobs = [[*fixed, *(f"{key}={value}" for key, value in trial.params.items())] for trial in trials]
            for trial, result in zip(trials, self.launcher.launch(jobs, initial_job_idx=begun), strict=True):
                if result.status == JobStatus.COMPLETED and result.return_value is not None:
                    study.tell(trial, result.return_value)
                else:
                    study.tell(trial, state=TrialState.FAIL)
        done = [trial for trial in study.trials if trial.state == TrialState.COMPLETE]
        if not done:
            raise NblError(f"None of {self.n_trials} runs of the search ended well: each folder's log.txt says why.")
        best = {"value": study.best_value, "overrides": [f"{k}={v}" for k, v in study.best_params.items()]}
        found = {"best": best, "trials": [{"value": trial.value, **trial.params} for trial in study.trials]}
        file = Path(str(config.hydra.sweep.dir)) / "optuna.json"
        file.write_text(json.dumps(found, indent=2) + "\n")
        print(f"Best of {len(done)}: {best['value']:.4g} with {' '.join(best['overrides'])}; all of them: {file}")


def distribution(override: Override) -> Any:
    """What Optuna draws from, for a choice, a range or an interval of the command line."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    values = override.value()
    if isinstance(values, IntervalSweep):
        ends, log = (values.start, values.end), "log" in values.tags
        whole = all(isinstance(end, int) for end in ends)
        return (IntDistribution if whole else FloatDistribution)(*ends, log=log)
    if isinstance(values, RangeSweep) and all(isinstance(v, int) for v in (values.start, values.stop, values.step)):
        whole_numbers = sorted(int(str(value)) for value in override.sweep_iterator())
        return IntDistribution(whole_numbers[0], whole_numbers[-1], step=abs(int(values.step)))
    return CategoricalDistribution([str(value) for value in override.sweep_iterator()])
