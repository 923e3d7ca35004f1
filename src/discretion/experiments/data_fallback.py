"""Data of an experiment: loaded before anything runs, or replaced by the [fallback] with a notice."""

from collections.abc import Callable
from dataclasses import replace

from discretion.errors import DataError
from discretion.experiments.settings import Experiment, merged
from discretion.runs.build import load_data
from discretion.runs.config import make


def with_data(experiment: Experiment, say: Callable[[str], None]) -> Experiment:
    """Return the experiment, or its [fallback] where a data set cannot be had; raise where there is none."""
    wanted = {}
    for variation in experiment.variations:
        setting = merged(merged(experiment.setting, variation.setting), experiment.last or {})
        config = make(setting, experiment.overrides, experiment.name)
        wanted[config.data.name, config.data.path] = config
    try:
        for config in wanted.values():
            load_data(config, say)
    except DataError as problem:
        if experiment.fallback is None:
            raise
        say(f"{problem}\n\nGoing on with the small data set inside scikit-learn instead.")
        settings = {name: value for name, value in experiment.fallback.items() if name != "title"}
        return replace(
            experiment,
            about=experiment.about.model_copy(update={"title": experiment.fallback["title"]}),
            last=merged(settings, experiment.last or {}),
        )
    return experiment
