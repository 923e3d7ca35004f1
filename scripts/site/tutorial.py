"""The tutorial notebook as a page with its outputs.

`python scripts/site/tutorial.py docs/tutorial.ipynb` runs the notebook and replaces its outputs.
"""

import sys
from itertools import groupby
from pathlib import Path

import nbformat
from nbclient import NotebookClient

HEAD = "[Get this page as a notebook](tutorial.ipynb){ .md-button }"
SECONDS = 300  # for one cell, on a busy machine


def page(path: Path) -> str:
    cells = nbformat.read(path, as_version=4).cells
    title, *rest = (_cell(cell) for cell in cells)
    heading, _, text = title.partition("\n")
    return "\n\n".join([heading, text.strip(), HEAD, *rest]) + "\n"


def _cell(cell: nbformat.NotebookNode) -> str:
    if cell.cell_type == "markdown":
        return str(cell.source)
    return "\n\n".join([f"```python\n{cell.source}\n```", *(_output(output) for output in cell.outputs)])


def _output(output: nbformat.NotebookNode) -> str:
    if output.output_type == "stream":
        return f"```text\n{output.text.rstrip()}\n```"
    return f'<div class="chart">{output.data["image/svg+xml"].strip()}</div>'


def executed(path: Path) -> nbformat.NotebookNode:
    """Run a copy of the notebook and return it; what a cell prints in parts becomes one output."""
    made = nbformat.read(path, as_version=4)
    NotebookClient(made, kernel_name="python3", timeout=SECONDS).execute()
    for number, cell in enumerate(made.cells):
        cell.metadata = {}
        if cell.cell_type == "code":
            cell.outputs = [
                merged for key, same in groupby(cell.outputs, _kind) for merged in _merged(key, [*same])
            ]
            cell.id = f"cell-{number}"
    result: nbformat.NotebookNode = made
    return result


def _kind(output: nbformat.NotebookNode) -> str | None:
    return output.name if output.output_type == "stream" else None


def _merged(name: str | None, outputs: list[nbformat.NotebookNode]) -> list[nbformat.NotebookNode]:
    if name is None:
        return outputs
    return [nbformat.v4.new_output("stream", name=name, text="".join(output.text for output in outputs))]


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        nbformat.write(executed(Path(argument)), argument)
