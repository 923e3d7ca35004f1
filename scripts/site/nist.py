"""Example of docs/nist.md: the answers for the deployment that tests/golden keeps.

`python scripts/site/nist.py` writes them anew into the page.
"""

from pathlib import Path

from discretion.export.nist import to_markdown
from discretion.runs.read import read_run

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "docs" / "nist.md"
RUN = ROOT / "tests" / "golden" / "folders" / "deployment"
BEGIN, END = "<!-- answers: begin -->\n", "<!-- answers: end -->\n"


def written(page: str) -> str:
    """Return the page with today's answers between its marks, each heading one level down."""
    before, _, rest = page.partition(BEGIN)
    answers = to_markdown(read_run(RUN)).replace("\n## ", "\n### ").replace("# ", "## ", 1)
    return f"{before}{BEGIN}\n{answers}\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
