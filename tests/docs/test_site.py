"""The site is complete, all its links lead somewhere, and reading it asks nothing of the network."""

import re
import subprocess
import sys
from html import unescape
from pathlib import Path

import pytest
import typer.main
import write

import discretion as dn
from discretion.cli import main
from discretion.cli.methods import protection
from discretion.methods import METHODS
from discretion.runs import config

ROOT = Path(__file__).parents[2]
BUILD = """
import logging
import sys
from mkdocs.commands.build import build
from mkdocs.config import load_config
logging.basicConfig(level=logging.WARNING)
build(load_config(sys.argv[1], docs_dir=sys.argv[2], site_dir=sys.argv[3]))
"""


def build(settings: Path, sources: Path, site: Path) -> tuple[int, str]:
    """Exit code, and all that is wrong."""
    words = [sys.executable, "-c", BUILD, str(settings), str(sources), str(site)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    return done.returncode, done.stderr


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    write.write(folder / "docs")
    code, wrong = build(ROOT / "mkdocs.yml", folder / "docs", folder / "site")
    assert code == 0, wrong
    return folder / "site"


def text_of(page: Path) -> str:
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", page.read_text(encoding="utf-8"))).split())


def test_every_method_has_a_page_with_all_of_it(site: Path) -> None:
    written = {path.stem for path in (ROOT / "docs" / "methods").glob("*.md")}
    assert "index" in written and written - {"index"} <= set(METHODS)
    overview = text_of(site / "methods" / "index.html")
    for name, method in METHODS.items():
        page = text_of(site / "methods" / f"{name}.html")
        by_hand = ("What it does", "When to take it") if name in written else ()
        for part in (*by_hand, "Who is protected from whom", "An example"):
            assert page.count(part) >= 2, f"{name}: {part}"  # heading, and table of contents
        assert method.idea in page and protection(method) in page and method.idea in overview
        for parameter in method.parameters.values():
            assert f"{parameter.meaning} {parameter.expected}" in page
        assert f'href="{name}.html"' in (site / "methods" / "index.html").read_text(encoding="utf-8")
        assert re.search(rf"{name}: 20 rounds, \S+ clients", page)


def test_every_command_option_setting_and_public_name_is_there(site: Path) -> None:
    commands = text_of(site / "reference" / "commands.html")
    group = typer.main.get_command(main.app)
    for name, command in group.commands.items():  # type: ignore[attr-defined]
        assert f"discretion {name}" in commands
        for parameter in command.params:
            assert parameter.param_type_name == "argument" or parameter.opts[0] in commands
    settings = text_of(site / "reference" / "settings.html")
    for section, field in config.Config.model_fields.items():
        if field.description:
            assert section in settings and field.description.replace("`", "")[:40] in settings
        else:
            assert f"[{section}]" in settings
    names = text_of(site / "reference" / "python.html")
    assert all(re.search(rf"\b{name}\b", names) for name in dn.__all__)


def test_reading_it_needs_no_network(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > len(METHODS) + 10
    loads = re.compile(r"<(?:script|img|link|iframe|source)\b[^>]*\b(?:src|href)=[\"']?(?:https?:)?//[^>]*>")
    for page in pages:
        assert not loads.search(page.read_text(encoding="utf-8")), page
    for sheet in site.rglob("*.css"):
        assert not re.search(r"url\([\"']?(?:https?:)?//", sheet.read_text(encoding="utf-8")), sheet


def test_a_broken_link_is_an_error(tmp_path: Path) -> None:
    settings = tmp_path / "mkdocs.yml"
    nav = re.compile(r"^(?:nav|hooks):\n(?: .*\n)+", re.M)
    settings.write_text(nav.sub("", (ROOT / "mkdocs.yml").read_text(encoding="utf-8")), encoding="utf-8")
    (tmp_path / "docs").mkdir()
    for link in ("nowhere.md", "index.md#nothing"):
        (tmp_path / "docs" / "index.md").write_text(f"# Home\n\n[a link]({link})\n", encoding="utf-8")
        code, wrong = build(settings, tmp_path / "docs", tmp_path / "site")
        assert code == 1 and re.search(r"nowhere\.md|'#?nothing'|#nothing", wrong)
