"""Experiment files (TOML): one setting, rows of methods, variations, seeds and differences from a paper."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Any

from pydantic import Field

from discretion.errors import ConfigError, DataError, nearest
from discretion.files import read_toml
from discretion.methods import find
from discretion.plan.plan import Accounting, Parameter
from discretion.runs.build import load_data
from discretion.runs.config import ConfigSection, make

Setting = dict[str, Any]  # what config.toml holds, or a part of it
SECTIONS = ("population", "data", "model", "plan", "train")
OWN = ("seed", "plan.method")  # given by seeds and rows

# --quick: everything is exercised, nothing is learnt
QUICK: Setting = {
    "population": {"clients": 24},
    "data": {"name": "digits", "records": 0},
    "model": {"name": "linear"},
    "plan": {"rounds": 2, "rate": 0.5},
    "train": {"epochs": 1, "evaluate_every": 1},
}


class ExperimentAbout(ConfigSection):
    title: str
    paper: str = Field("", description="where the figures were published")
    seeds: int = Field(3, ge=1)
    minutes: float = Field(0.0, ge=0, description="of the whole experiment, on two cores; 0: unknown")
    version: int = Field(1, ge=1, description="raised when code changes what a cell's settings give")
    keep_runs: bool = Field(False, description="keep run folders, and write a report on them")
    differences: tuple[str, ...] = Field((), description="differences from the paper")


Published = float | tuple[float, float]  # accuracy in per cent, perhaps with its standard deviation


class Row(ConfigSection):
    """A method as a line of the table. Rows share all settings but the options of their methods."""

    method: str
    name: str = ""
    label: str = ""
    accounting: tuple[Accounting, ...] = Field(("tight",), min_length=1)
    options: dict[str, Parameter] = Field(default_factory=dict)
    published: dict[str, Published] = Field(default_factory=dict, description="by variation")


class Variation(ConfigSection):
    """A change of the setting for all rows, or for some."""

    name: str = ""
    table: str = Field("", description="table of the paper that it reproduces")
    rows: tuple[str, ...] = Field((), description="names of rows; empty: all")
    tuned: bool = Field(False, description="use the values that tuning chose for each row")
    accounting: tuple[Accounting, ...] = Field((), description="modes; empty: those of each row")
    setting: Setting = Field(default_factory=dict)


class Tuning(ConfigSection):
    """The same grid for every row, tried on public data in place of the private data."""

    stand_in: Setting
    seeds: int = Field(1, ge=1)
    grid: dict[str, tuple[Parameter, ...]] = Field(description="values by setting, such as plan.clip")
    chosen: dict[str, dict[str, Parameter]] = Field(
        default_factory=dict, description="by row, as --tune found them"
    )


class Document(ConfigSection):
    experiment: ExperimentAbout
    row: tuple[Row, ...] = Field(min_length=1)
    variation: tuple[Variation, ...] = (Variation(),)
    tuning: Tuning | None = None
    fallback: Setting | None = Field(None, description="title and settings used where data cannot be had")
    quick: Setting = Field(default_factory=dict)
    population: Setting = Field(default_factory=dict)
    data: Setting = Field(default_factory=dict)
    model: Setting = Field(default_factory=dict)
    plan: Setting = Field(default_factory=dict)
    train: Setting = Field(default_factory=dict)


@dataclass(frozen=True)
class Experiment:
    name: str
    about: ExperimentAbout
    rows: tuple[Row, ...]
    variations: tuple[Variation, ...]
    setting: Setting  # of every cell, unless a variation changes it
    tuning: Tuning | None = None
    fallback: Setting | None = None
    last: Setting = field(default_factory=dict)  # changes that no variation undoes
    overrides: tuple[str, ...] = ()

    def only(self, rows: Sequence[str], variations: Sequence[str]) -> "Experiment":
        """Return the experiment with these rows and variations only; all where none is named."""
        _known(rows, [row.name for row in self.rows], f"{self.name}: row")
        _known(variations, [variation.name for variation in self.variations], f"{self.name}: variation")
        return replace(
            self,
            rows=tuple(row for row in self.rows if not rows or row.name in rows),
            variations=tuple(one for one in self.variations if not variations or one.name in variations),
        )

    @property
    def runs(self) -> int:
        """Number of cells, over all seeds."""
        rows = (row for variation in self.variations for row in self.rows_of(variation))
        return self.about.seeds * sum(len(row.accounting) for row in rows)

    def setting_of(self, variation: Variation, tuned: Setting) -> Setting:
        """Return the setting of the cells of a variation, with tuned values."""
        return merged(merged(merged(self.setting, variation.setting), tuned), self.last)

    def rows_of(self, variation: Variation) -> list[Row]:
        """Return the rows of a variation, each in its modes."""
        found = [row for row in self.rows if not variation.rows or row.name in variation.rows]
        if not variation.accounting:
            return found
        kept = [tuple(mode for mode in row.accounting if mode in variation.accounting) for row in found]
        return [row.model_copy(update={"accounting": modes}) for row, modes in zip(found, kept, strict=True)]


def shipped() -> list[str]:
    """Return the names of the experiments inside the package."""
    files = resources.files(__package__).iterdir()
    return sorted(file.name.removesuffix(".toml") for file in files if file.name.endswith(".toml"))


def read(name: str, overrides: Sequence[str] = (), quick: bool = False) -> Experiment:
    """Return an experiment by its name, or from a user's TOML file, with every name in it checked."""
    path = Path(name)
    if path.suffix != ".toml":
        if name not in shipped():
            raise ConfigError(
                f"no experiment {name!r}.{nearest(name, shipped())} Expected {', '.join(shipped())}, or "
                "the path of a file that ends in .toml"
            )
        path = Path(str(resources.files(__package__).joinpath(f"{name}.toml")))
    document = Document.validated(read_toml(path), _known_keys(), str(path))
    made = replace(_checked(document, path), overrides=tuple(overrides))
    if own := [override for override in overrides if override.partition("=")[0].strip() in OWN]:
        raise ConfigError(f"-c {own[0]}: an experiment has rows and seeds of its own; use --only, --seeds")
    if not quick:
        return made
    about = made.about.model_copy(update={"seeds": 1})
    return replace(made, name=f"{made.name}-quick", about=about, last=merged(QUICK, document.quick))


def _checked(document: Document, path: Path) -> Experiment:
    """Return the experiment with default names filled in; raise where a name is unknown or repeated."""
    rows = tuple(
        row.model_copy(update={"name": row.name or row.method, "label": row.label or find(row.method).title})
        for row in document.row
    )
    names, variations = [row.name for row in rows], [variation.name for variation in document.variation]
    _unique(names, f"{path}: row")
    _unique(variations, f"{path}: variation")
    for row in rows:
        if "paper" in row.accounting and not has_modes(row):
            raise ConfigError(f"{path}: row {row.name}: {row.method} has no paper mode")
        _known(row.published, variations, f"{path}: row {row.name}: variation")
    for variation in document.variation:
        _known(variation.rows, names, f"{path}: variation {variation.name}: row")
        if variation.tuned and document.tuning is None:
            raise ConfigError(f"{path}: variation {variation.name} is tuned, but there is no [tuning]")
    setting = {name: getattr(document, name) for name in SECTIONS if getattr(document, name)}
    if "method" in setting.get("plan", {}):
        raise ConfigError(f"{path}: plan.method: an experiment has a [[row]] for each method")
    about, tuning, fallback = document.experiment, document.tuning, document.fallback
    return Experiment(path.stem, about, rows, document.variation, setting, tuning, fallback)


def with_data(experiment: Experiment, say: Callable[[str], None]) -> Experiment:
    """Load the data, or return the experiment's [fallback] with a notice; raise where there is none."""
    wanted = {}
    for variation in experiment.variations:
        config = make(experiment.setting_of(variation, {}), experiment.overrides, experiment.name)
        wanted[config.data.name, config.data.path] = config
    try:
        for config in wanted.values():
            load_data(config, say)
    except DataError as problem:
        if experiment.fallback is None:
            raise
        say(f"{problem}\n\nGoing on with the small data set inside scikit-learn instead.")
        settings = {**experiment.fallback}
        about = experiment.about.model_copy(update={"title": settings.pop("title")})
        return replace(experiment, about=about, last=merged(settings, experiment.last))
    return experiment


def has_modes(row: Row) -> bool:
    """Return whether tight and paper mode differ; they do not for methods without noise."""
    return "accounting" in find(row.method).parameters


def merged(first: Setting, second: Setting) -> Setting:
    """Return both settings, merged section by section; the second wins."""
    out = dict(first)
    for key, value in second.items():
        both = isinstance(value, dict) and isinstance(out.get(key), dict)
        out[key] = merged(out[key], value) if both else value
    return out


def _known(names: Iterable[str], known: Sequence[str], what: str) -> None:
    if missing := [name for name in names if name not in known]:
        hint = f"{nearest(missing[0], known)} Expected one of {', '.join(known)}"
        raise ConfigError(f"{what} {missing[0]!r} is not there.{hint}")


def _unique(names: Sequence[str], what: str) -> None:
    if twice := {name for name in names if names.count(name) > 1}:
        raise ConfigError(f"{what} {min(twice)!r} comes twice: give each a name of its own")


def _known_keys() -> list[str]:
    parts = (("experiment", ExperimentAbout), ("row", Row), ("variation", Variation), ("tuning", Tuning))
    keys = [f"{part}.{name}" for part, kind in parts for name in kind.model_fields]
    return keys + [name for name in Document.model_fields if name not in dict(parts)]
