"""Documents for others: a record that the registry allows, answers for an evaluator, nothing private."""

import math
import shutil
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import nist as page
import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

from discretion.cli import main
from discretion.errors import InputError
from discretion.export import nist
from discretion.export import opendp_registry as registry
from discretion.plan.population import Population
from discretion.runs.read import read_run
from support.run_folders import BARE, OWN, keep_secret, make_run, run_of, seal

TEXT, NUMBER = {"type": "string"}, {"type": "number"}
# the registry's fields in November 2026, each section closed to others; ANY is not restricted
ANY: dict[str, Any] = {}
NAMES = {"type": "array", "items": TEXT, "minItems": 1}


def one_of(*words: str) -> dict[str, Any]:
    return {"type": "string", "enum": list(words)}


def section(**fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": False, "properties": fields}


def needing(found: dict[str, Any], *names: str) -> dict[str, Any]:
    return found | {"required": list(names)}


BASIC = section(
    name=TEXT,
    data_curators=NAMES,
    description=TEXT,
    intended_use=TEXT,
    data_product_type=one_of(
        "Summary statistics",
        "Machine learning model",
        "Dataset",
        "Synthetic data",
        "Interactive API",
        "SQL queries",
    ),
    data_product_region=TEXT,
    publication_date=TEXT | {"format": "date"},
)
DEPLOYMENT = section(
    basic=needing(BASIC, *BASIC["properties"]),
    dp_variant=section(
        variant_name=one_of("Pure DP", "Approximate DP", "Zero-concentrated DP", "Renyi DP", "Custom"),
        data_domain=TEXT,
        unprotected_quantities=TEXT,
    ),
    privacy_loss=section(
        privacy_unit=TEXT,
        privacy_unit_details=TEXT,
        privacy_parameters=section(epsilon=NUMBER, delta={"type": ["number", "string"]}),
        privacy_parameters_details=ANY,
    ),
    deployment_model=section(
        model_name=one_of("Local", "Central", "Shuffle", "Federated", "Varies"),
        model_name_details=TEXT,
        actors=TEXT,
        release_type=one_of("One release", "Many releases"),
        release_type_details=TEXT,
        data_source_type=one_of("Static", "Dynamic"),
        data_source_type_details=ANY,
        access_type=one_of("Interactive", "Non-interactive"),
        access_type_details=TEXT,
    ),
    accounting=section(post_processing=TEXT, composition=TEXT),
    implementation=section(preprocessing_and_hyperparameter_tuning=TEXT, mechanisms=TEXT, justification=TEXT),
    administrative=needing(section(sources=TEXT, notes=TEXT, registry_authors=NAMES), "registry_authors"),
)
SCHEMA = needing(
    section(
        url_slug=TEXT,
        status=one_of("Converted", "Draft", "Pending", "Changes Required", "Approved"),
        tier={"type": "integer", "enum": [1, 2, 3]},
        deployment=needing(DEPLOYMENT, "basic"),
    ),
    "url_slug",
    "status",
    "tier",
    "deployment",
)
# what is proposed to be added to privacy_loss; docs/registry.md shows it
PROPOSED = yaml.safe_load(
    (Path(__file__).parents[2] / "docs" / "registry.md")
    .read_text(encoding="utf-8")
    .split("```yaml\n")[1]
    .split("```")[0]
)


def problems(record: Any, schema: dict[str, Any]) -> list[str]:
    known = jsonschema.Draft7Validator
    checked = known(schema, format_checker=known.FORMAT_CHECKER)
    return [error.message for error in checked.iter_errors(record)]


@pytest.fixture(scope="module")
def deployed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    about = {"about.project": "Ünder: a “study”\t#1", "about.operator": "Ward 4", "about.purpose": "to learn"}
    path = tmp_path_factory.mktemp("documents") / "run"
    return keep_secret(make_run(path, OWN, settings={**about, "clients.where": "guards"}))


def test_the_registry_allows_the_record(
    deployed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(main.app, ["export", str(deployed), "--to", "registry"])
    assert done.exit_code == 0, done.output
    found = sorted(path.name for path in tmp_path.iterdir())
    assert found == ["nder_a_study_1_2026.yaml", "nder_a_study_1_2026_by_group.yaml"]
    named = CliRunner().invoke(main.app, ["export", str(deployed), "--to", "registry", "--out", "reg"])
    assert named.exit_code == 0 and Path("reg.yaml").read_bytes() == Path(found[0]).read_bytes()
    assert Path("reg_by_group.yaml").read_bytes() == Path(found[1]).read_bytes() and not Path("reg").exists()
    plain, more = (yaml.safe_load(Path(name).read_text(encoding="utf-8")) for name in found)
    run = read_run(deployed)
    assert plain == registry.record_of(run) and problems(plain, SCHEMA) == []
    fields = {name: set(part) for name, part in plain["deployment"].items()}
    assert fields == {name: set(part["properties"]) for name, part in DEPLOYMENT["properties"].items()}
    assert all(text for part in plain["deployment"].values() for text in part.values())
    loss = plain["deployment"]["privacy_loss"]
    spent = float(run.certificate.spent.max())
    assert spent <= loss["privacy_parameters"]["epsilon"] <= spent * 1.001
    assert plain["deployment"]["basic"]["name"] == run.config.about.project
    # the extension is the only thing that the registry does not know yet
    (odd,) = problems(more, SCHEMA)
    assert "privacy_parameters_by_group" in odd
    known = DEPLOYMENT["properties"]["privacy_loss"]["properties"] | PROPOSED
    wider = DEPLOYMENT["properties"] | {"privacy_loss": section(**known)}
    assert problems(more["deployment"], section(**wider)) == []
    groups = more["deployment"]["privacy_loss"]["privacy_parameters_by_group"]
    assert [each["epsilon_allowed"] for each in groups] == [1.0, 2.0, 4.0]
    assert sum(each["units"] for each in groups) == len(run.population)
    assert all(each["epsilon_spent"] <= each["epsilon_allowed"] for each in groups)


def test_no_client_is_named(deployed: Path) -> None:
    run = read_run(deployed)
    texts = [registry.to_yaml(registry.extended(registry.record_of(run), run)), nist.to_markdown(run)]
    for text in texts:
        assert not any(f"{name} " in text or f'"{name}"' in text for name in run.population.client)
        assert str(deployed) not in text


@pytest.mark.parametrize("method", [OWN, BARE])
def test_what_is_no_deployment_is_refused(method: str, tmp_path: Path) -> None:
    run = read_run(make_run(tmp_path / "run", method, finished=False))
    with pytest.raises(InputError, match="simulation .* not finished") as refused:
        registry.record_of(run)
    assert ("it protects nobody" in str(refused.value)) == (method == BARE)
    over = read_run(keep_secret(make_run(tmp_path / "over", method, noise=3.0)))
    with pytest.raises(InputError, match="overspend|protects nobody"):
        registry.record_of(over)


def test_a_budget_without_a_limit_is_not_the_largest_that_was_spent(tmp_path: Path) -> None:
    crowd = Population.of([1.0, 4.0, math.inf], 1e-5, 7)
    run = read_run(keep_secret(make_run(tmp_path / "run", OWN, population=crowd)))
    record = registry.extended(registry.record_of(run), run)
    loss = yaml.safe_load(registry.to_yaml(record))["deployment"]["privacy_loss"]
    assert loss["privacy_parameters"]["epsilon"] <= 4.0
    assert loss["privacy_parameters_by_group"][-1]["epsilon_allowed"] == math.inf
    assert "| public data | 1 | no limit |" in nist.to_markdown(run)


def test_signs_that_yaml_reads_otherwise_are_written_by_their_numbers() -> None:
    odd = {
        "text": 'a "b" \\ c\n\u2028\x85\x00\ufeff: # - é 😀',
        "small": 1e-05,
        "list": [{"a": 1.5, "b": "x"}],
    }
    assert yaml.safe_load(registry.to_yaml(odd)) == odd


QUESTIONS = (
    *("What decides", "Who does it", "How large are epsilon", "Which definition", "What is the unit"),
    *("How do costs add up", "Which algorithm", "What is the result good for", "Who has to be trusted"),
    *("Which side channels", "Who has access", "What was exposed when data were collected"),
    *("What is not promised", "How can this be verified"),
)


def test_every_question_is_answered_from_plan_and_ledger(deployed: Path, tmp_path: Path) -> None:
    out = tmp_path / "answers.md"
    done = CliRunner().invoke(main.app, ["export", str(deployed), "--to", "nist", "-o", str(out)])
    assert done.exit_code == 0
    run = read_run(deployed)
    found = dict(nist.answers(run))
    assert len(found) == len(QUESTIONS) and all(map(str.startswith, found, QUESTIONS))
    assert all(answer.strip() for answer in found.values())
    text = out.read_text(encoding="utf-8")
    assert text == nist.to_markdown(run) and all(f"## {question}\n" in text for question in found)
    assert run.certificate.plan in text and "Operator: Ward 4" in text
    spent = float(np.max(run.certificate.spent))
    assert (
        f"The largest epsilon spent is {math.ceil(spent * 1e4) / 1e4:.4f}"
        in found["How large are epsilon and delta"]
    )
    assert "The clients keep their records" in found["What was exposed when data were collected"]


def test_answers_on_runs_that_keep_no_promise(tmp_path: Path) -> None:
    bare = nist.to_markdown(read_run(make_run(tmp_path / "bare", BARE, accuracy=())))
    assert "No privacy: this plan protects nobody" in bare and "It was not evaluated." in bare
    odd = run_of(tmp_path / "odd", "dp_fedavg")
    shutil.copy(make_run(tmp_path / "other") / "certificate.json", odd)
    seal(odd)
    assert "Nothing is proved: the certificate is of another plan" in nist.to_markdown(read_run(odd))
    with pytest.raises(InputError, match="found 2 runs: a document for nist is of one run"):
        words = ["export", str(odd), str(tmp_path / "bare"), "--to", "nist"]
        CliRunner().invoke(main.app, words, catch_exceptions=False)


def test_markup_in_settings_stays_text(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", settings={"about.contact": "<b>*a*</b> | [x](y)"})
    assert r"Contact: \<b\>\*a\*\</b\> \| \[x\](y)" in nist.to_markdown(read_run(run))


def test_the_page_shows_the_answers_for_the_run_that_is_kept() -> None:
    text = page.PAGE.read_text(encoding="utf-8")
    assert page.written(text) == text, "run: python scripts/site/nist.py"
