"""config.toml: what is wrong is said all at once, with the nearest right name."""

from pathlib import Path

import pytest

from discretion.errors import ConfigError
from discretion.runs import config


def test_the_template_is_the_defaults(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(config.template(), encoding="utf-8")
    assert config.read(path) == config.Config()
    assert config.template().count("#") > 25  # a comment on each setting


def test_the_resolved_settings_read_back_the_same(tmp_path: Path) -> None:
    made = config.make({"plan": {"rounds": 7, "options": {"groups": 3}}, "seed": 5}, ["train.epochs=2"])
    path = tmp_path / "config.toml"
    path.write_text(made.to_toml(), encoding="utf-8")
    assert config.read(path) == made
    assert made.plan.options == {"groups": 3} and made.train.epochs == 2


def test_overrides_are_read_as_toml_or_as_text() -> None:
    made = config.make(
        {},
        ["plan.rate=0.5", "train.accept_no_privacy=true", "model.name=cnn", 'data.name="mnist"', "seed = 7"],
    )
    assert made.plan.rate == 0.5 and made.train.accept_no_privacy
    assert made.model.name == "cnn" and made.data.name == "mnist" and made.seed == 7


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"plan": {"roundss": 3}}, "plan.roundss: unknown setting. Did you mean 'plan.rounds'?"),
        ({"rounds": 3}, "rounds: unknown setting. Did you mean 'plan.rounds'?"),
        ({"zzzzzz": 3}, "Known are seed, ledger, rule, after, population.csv"),
        ({"plan": {"rate": 1.5}}, "plan.rate: input should be less than or equal to 1, found 1.5"),
        ({"plan": {"rounds": "many"}}, "plan.rounds: input should be a valid integer"),
        ({"population": {"delta": float("nan")}}, "population.delta"),
        (
            {"train": {"epochs": 2, "steps": 5}},
            "expected one of train.epochs and train.steps, and 0 for the other: train.epochs is 2, found 5",
        ),
        ({"train": {"epochs": 0}}, "train.steps: expected one of train.epochs and train.steps"),
        ({"train": {"threads": 10**6}}, "train.threads: input should be less than or equal to 1024"),
        ({"train": {"workers": 10**6}}, "train.workers: input should be less than or equal to 1024"),
        ({"seed": 2**128}, "seed: input should be less than"),
        ({"train": {"steps": -1}}, "train.steps: input should be greater than or equal to 0"),
        (
            {"train": {"schedule": "cosin"}},
            "train.schedule: unknown schedule 'cosin': expected constant, cosine",
        ),
        ({"train": {"schedule": "decay"}}, "such as decay:0.99, found 'decay'"),
        ({"train": {"order": "random"}}, "train.order: input should be 'shuffled' or 'sequential'"),
        ({"train": {"workers": -1}}, "train.workers"),
    ],
)
def test_bad_settings_are_explained(record: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as problem:
        config.make(dict(record))
    assert message in str(problem.value)


def test_all_problems_are_reported_at_once() -> None:
    with pytest.raises(ConfigError) as problem:
        config.make({"plan": {"rate": 2, "clipp": 1}, "train": {"epochs": 0}})
    for name in ("plan.rate", "plan.clipp", "train.epochs"):
        assert name in str(problem.value)


@pytest.mark.parametrize("override", ["plan.rounds", "seed.x=3"])
def test_overrides_that_make_no_sense(override: str) -> None:
    with pytest.raises(ConfigError, match="-c "):
        config.make({"seed": 1}, [override])


def test_steps_take_the_place_of_epochs(tmp_path: Path) -> None:
    made = config.make({"train": {"steps": 5, "schedule": "decay:0.5"}})
    assert (made.train.epochs, made.train.steps) == (0, 5)
    path = tmp_path / "config.toml"
    path.write_text(made.to_toml(), encoding="utf-8")
    assert config.read(path) == made
    assert config.make({"train": {"epochs": 3, "steps": 0}}).train.epochs == 3


def test_where_a_run_is_done_decides_nothing() -> None:
    one = config.make({}, ["train.threads=1", "train.workers=3", "train.device=cpu"])
    assert one != config.Config() and one.deciding() == config.Config().deciding()
    assert config.make({}, ["train.steps=2"]).deciding() != config.Config().deciding()


def test_where_files_are_decides_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    record = {"ledger": "a.sqlite", "population": {"csv": "a.csv"}, "data": {"name": "csv", "path": "b.csv"}}
    said = set()
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        monkeypatch.chdir(tmp_path / folder)
        said.add(config.make(record).anchored().identity())
    assert len(said) == 1
    assert config.make(record, ["seed=1"]).identity() not in said


def test_how_clients_are_reached_decides_nothing_but_what_they_miss_does() -> None:
    usual = config.Config().identity()
    assert config.make({}, ["clients.timeout=5", "clients.where=flower"]).identity() == usual
    assert config.make({}, ["clients.missing=discard"]).identity() != usual


@pytest.mark.parametrize("value", ["true", '"5"', "5.0"])
def test_a_number_is_a_number(value: str) -> None:
    with pytest.raises(ConfigError, match="plan.rounds: expected a whole number, found"):
        config.make({}, [f"plan.rounds={value}"])
    assert config.make({"plan": {"clip": 1}}).plan.clip == 1.0


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read"):
        config.read(tmp_path / "nothing.toml")
    broken = tmp_path / "broken.toml"
    # a line in a comment is no setting, and numbers and lists have an end
    for content in ("[plan\nrounds = 3", "# see\rseed = 3", "seed = " + "1" * 5000, "seed = " + "[" * 5000):
        broken.write_bytes(content.encode())
        with pytest.raises(ConfigError, match="not valid TOML"):
            config.read(broken)


def test_who_does_it_and_why_decides_nothing_and_is_shown() -> None:
    made = config.make({"about": {"operator": "Ward 4", "contact": "/home/officer"}})
    assert made.identity() == config.Config().identity()
    assert (
        made.anchored().public()["about"]["contact"] == "/home/officer"
    )  # words, even if they look like a path
    assert "[about]" in config.template()
    with pytest.raises(ConfigError, match="about.purpose: string should have at most 300"):
        config.make({"about": {"purpose": "x" * 301}})


def test_where_test_records_come_from_is_a_word_or_a_path() -> None:
    held_out, table = (
        config.make({"data": {"test": test}}).anchored().data for test in ("held-out", "a.csv")
    )
    assert (held_out.test, held_out.test_file) == ("held-out", "")
    assert table.test == table.test_file == str(Path("a.csv").absolute())


def test_how_a_table_is_written_does_not_name_a_run() -> None:
    """The same records in another spreadsheet's form are the same run."""
    form = {"label_column": "a", "client_column": "b", "encoding": "cp1252", "decimal": ",", "hold_out": 0.1}
    assert set(form) == set(config.READING)
    assert config.make({"data": form}).identity() == config.make({}).identity()
    assert config.make({"data": {"alpha": 2.0}}).identity() != config.make({}).identity()
