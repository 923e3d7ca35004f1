"""Sources of the site: docs, with a page for each method and reference pages made from the code.

    python scripts/site/write.py build/docs

mkdocs builds the site from them (mkdocs.yml).
"""

import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import method_pages
import reference
import tutorial

from discretion.methods import METHODS

ROOT = Path(__file__).parent.parent.parent
HEAD = """# Results

Accuracy in the settings of the papers, trained with the code of this repository. Each page says what was
run, with how many seeds, what is not finished, and where it differs from the paper.
"""
DOCS, RESULTS = ROOT / "docs", ROOT / "results"
HOSPITALS = ROOT / "examples" / "hospitals" / "README.md"


def write(folder: Path) -> None:
    """Make the folder anew."""
    if folder.exists():
        shutil.rmtree(folder)
    shutil.copytree(DOCS, folder)
    shutil.copytree(RESULTS, folder / "results", ignore=_not_shown)
    for path, text in _pages():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")


def _pages() -> Iterator[tuple[str, str]]:
    for path in DOCS.glob("*.md"):
        yield path.name, _at_the_root(path.read_text(encoding="utf-8"))
    for name in ("CONTRIBUTING", "SECURITY"):
        yield f"{name.lower()}.md", _at_the_root((ROOT / f"{name}.md").read_text(encoding="utf-8"))
    yield "hospitals.md", _at_the_root(HOSPITALS.read_text(encoding="utf-8"))
    index = DOCS / "methods" / "index.md"
    yield "methods/index.md", index.read_text(encoding="utf-8") + method_pages.overview()
    for name in METHODS:
        yield f"methods/{name}.md", method_pages.page(name)
    yield "tutorial.md", tutorial.page(DOCS / "tutorial.ipynb")
    yield "reference/settings.md", reference.settings()
    yield "reference/commands.md", reference.commands()
    yield "results/index.md", _results()


def _at_the_root(page: str) -> str:
    """Return a page with its links as on the site, where docs, results and all others are one folder."""
    page = re.sub(r"\]\((?:\.\./)?(CONTRIBUTING|SECURITY)\.md", lambda m: f"]({m[1].lower()}.md", page)
    page = re.sub(r"\[([^]]+)\]\((?:\.\./)?CHANGELOG\.md\)", r"\1", page)
    page = page.replace("](../examples/hospitals/README.md", "](hospitals.md").replace("](../../docs/", "](")
    return page.replace("](../results/", "](results/").replace("](docs/", "](")


def _not_shown(folder: str, names: list[str]) -> set[str]:
    """Of results: all but tables and figures."""
    here = Path(folder)
    shown = {".md", ".svg"}
    cells = {"cells"} & set(names)
    return cells | {name for name in names if (here / name).is_file() and Path(name).suffix not in shown}


def _results() -> str:
    lines = [HEAD]
    for table in sorted(RESULTS.glob("*/table.md")):
        title = re.sub("^# ", "", table.read_text(encoding="utf-8").partition("\n")[0])
        lines.append(f"- [{title}]({table.parent.name}/table.md)")
    lines.append("- [Figures that need no training](figures.md)")
    lines += ["", "`discretion experiment` lists the settings; `discretion experiment NAME` runs one."]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    write(Path(sys.argv[1]))
