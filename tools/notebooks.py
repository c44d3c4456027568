"""Run, clean and check the chapters.

    python tools/notebooks.py run NOTEBOOK…     execute in place, then clean
    python tools/notebooks.py clean NOTEBOOK…   drop pictures and volatile metadata
    python tools/notebooks.py check NOTEBOOK…   say what is wrong, by notebook and cell

What belongs in the repository: cells executed in order, their text outputs, nothing else. `make notebooks` runs
this for every chapter; `tests/test_notebooks.py` checks the result.
"""

import argparse
import copy
import re
import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

KEPT_OUTPUT = ("text/plain", "text/latex")
KEPT_CELL_METADATA = ("tags", "mystnb")
SECTIONS = ("What you will see", "Try it yourself", "What readers ask", "Back and forward")
EXERCISES = 3


def execute(path: Path) -> None:
    """Run a notebook in place, from its own folder."""
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": path.parent}}
    )
    try:
        client.execute()
    except CellExecutionError as error:
        raise SystemExit(f"{path.name}: {error}") from error
    nbformat.write(clean(notebook), path)


def clean(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Return a copy without pictures, widgets and everything that changes from run to run."""
    notebook = copy.deepcopy(notebook)
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    notebook.metadata = nbformat.from_dict({"kernelspec": kernel, "language_info": {"name": "python"}})
    for cell in notebook.cells:
        cell.metadata = {key: cell.metadata[key] for key in KEPT_CELL_METADATA if key in cell.metadata}
        if cell.cell_type == "code":
            cell.outputs = _merged(cell.outputs)
        for output in cell.get("outputs", []):
            if "data" in output:
                output.data = {kind: output.data[kind] for kind in KEPT_OUTPUT if kind in output.data}
                output.metadata = {}
    return notebook


def _merged(outputs: list) -> list:
    """Join what a cell printed in pieces, which depends on timing."""
    result = []
    for output in outputs:
        if result and output.output_type == result[-1].output_type == "stream" and output.name == result[-1].name:
            result[-1].text += output.text
        else:
            result.append(output)
    return result


def problems(path: Path, *, chapter: bool = True) -> list[str]:
    """Return what is wrong with a notebook, one line each, naming notebook and cell."""
    notebook = nbformat.read(path, as_version=4)
    found = []

    def report(number: int, what: str) -> None:
        source = notebook.cells[number].source.strip()
        first = source.splitlines()[0] if source else "empty"
        found.append(f"{path.name}, cell {number + 1} ({first[:60]!r}): {what}")

    executed = 0
    for number, cell in enumerate(notebook.cells):
        if cell.cell_type == "markdown":
            for what in _markdown_problems(cell.source, path):
                report(number, what)
            continue
        if cell.cell_type != "code" or not cell.source.strip():
            report(number, "is neither text nor code")
            continue
        executed += 1
        if cell.execution_count != executed:
            report(number, f"was not executed in order (count {cell.execution_count}, expected {executed})")
        for output in cell.outputs:
            if output.output_type == "error":
                report(number, f"raised {output.ename}: {output.evalue}")
            elif output.output_type == "stream" and output.name == "stderr":
                report(number, f"wrote to stderr: {output.text.strip()[:80]!r}")
            elif "data" in output:
                bare = output.data.get("text/plain", "").startswith("<Figure size")
                picture = bare or any(kind.startswith("image/") for kind in output.data)
                if picture and not cell.metadata.get("mystnb", {}).get("image", {}).get("alt"):
                    report(number, "shows a picture without alt text; return plot.picture(…, alt=…)")
    cleaned = clean(notebook)
    for number, (cell, kept) in enumerate(zip(notebook.cells, cleaned.cells, strict=True)):
        if cell != kept:
            report(number, "holds pictures or volatile metadata; run `make notebooks`")
    if notebook.metadata != cleaned.metadata:
        found.append(f"{path.name}: holds volatile metadata; run `make notebooks`")
    if chapter:
        found += _chapter_problems(notebook, path)
    return found


def _markdown_problems(source: str, path: Path) -> list[str]:
    found = []
    for alt, target in re.findall(r"!\[([^\]]*)\]\(([^)\s]+)", source):
        if not alt.strip():
            found.append(f"shows the picture {target} without alt text")
    for target in re.findall(r"\]\(([^)\s]+)\)", source):
        if re.match(r"[a-z]+:", target) or target.startswith("#"):
            continue
        file, _, anchor = target.partition("#")
        linked = (path.parent / file).resolve()
        if not linked.is_file():
            found.append(f"links to {target}, but there is no such file")
        elif anchor and anchor not in _anchors(linked):
            found.append(f"links to {target}, but {linked.name} has no heading #{anchor}")
    return found


def _anchors(path: Path) -> set[str]:
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        text = "\n\n".join(c.source for c in nbformat.reads(text, as_version=4).cells if c.cell_type == "markdown")
    headings = re.findall(r"^#+ (.+?)\s*$", text, flags=re.M)
    return {re.sub(r"[^\w\- ]", "", h.lower()).strip().replace(" ", "-") for h in headings}


def _chapter_problems(notebook: nbformat.NotebookNode, path: Path) -> list[str]:
    text = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    found = [f"{path.name}: has no section '{s}'" for s in SECTIONS if not re.search(rf"^## {s}", text, flags=re.M)]
    exercises = set(re.findall(r"^[`:]+\{exercise(?:-start)?\}.*\n:label: (\S+)", text, flags=re.M))
    solved = set(re.findall(r"^[`:]+\{solution-start\} (\S+)\n:class: dropdown", text, flags=re.M))
    if len(exercises) < EXERCISES:
        found.append(f"{path.name}: has {len(exercises)} exercises, expected at least {EXERCISES}")
    found += [f"{path.name}: exercise {name} has no folded solution that runs" for name in exercises - solved]
    outputs = [o for cell in notebook.cells for o in cell.get("outputs", []) if "data" in o]
    if not any(o.data.get("text/plain", "").startswith("[figure]") for o in outputs):
        found.append(f"{path.name}: has no interactive figure")
    return found


def main() -> int:
    """Run one of the three commands."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("run", "clean", "check"))
    parser.add_argument("notebooks", nargs="+", type=Path)
    arguments = parser.parse_args()
    found = []
    for path in arguments.notebooks:
        if arguments.command == "run":
            print(f"running {path.name}", flush=True)
            execute(path)
        elif arguments.command == "clean":
            nbformat.write(clean(nbformat.read(path, as_version=4)), path)
        else:
            found += problems(path)
    print("\n".join(found), end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
