"""Line counts of docs/reviewing.md, the page on what a privacy reviewer reads.

`python scripts/site/reviewing.py` counts again and rewrites the tables of the page. A row names a file of
src/discretion; to add a file, add a row and run the command.
"""

import ast
import io
import re
import tokenize
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "docs" / "reviewing.md"
SOURCE = ROOT / "src" / "discretion"
ROW = re.compile(r"^\| `(?P<file>[\w/]+\.py)` \| [\d,]* \| [\d,]* \|(?P<rest>.*)$")
TOTAL = re.compile(r"^\| \*\*together\*\* \| [\d,]* \| [\d,]* \|(?P<rest>.*)$")
LAYOUT = {
    tokenize.COMMENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
    tokenize.INDENT,
    tokenize.NEWLINE,
    tokenize.NL,
}


def counted(page: str) -> str:
    """Return the page with today's line counts in every row of its tables."""
    made, lines, code = [], 0, 0
    for line in page.splitlines():
        if row := ROW.match(line):
            text = (SOURCE / row["file"]).read_text(encoding="utf-8")
            of_file = len(text.splitlines()), code_lines(text)
            lines, code = lines + of_file[0], code + of_file[1]
            line = f"| `{row['file']}` | {of_file[0]} | {of_file[1]} |{row['rest']}"
        elif total := TOTAL.match(line):
            line = f"| **together** | {lines:,} | {code:,} |{total['rest']}"
            lines = code = 0
        made.append(line)
    return "\n".join(made) + "\n"


def code_lines(text: str) -> int:
    """Count the lines of a module without blank lines, comments and docstrings."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    prose: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, documented) and ast.get_docstring(node) is not None:
            prose |= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    spans = (range(t.start[0], t.end[0] + 1) for t in tokens if t.type not in LAYOUT)
    return len({line for span in spans for line in span} - prose)


if __name__ == "__main__":
    PAGE.write_text(counted(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
