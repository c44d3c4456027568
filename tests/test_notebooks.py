"""The form of the chapters, and proof that a bad notebook is noticed."""

import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).parents[1]
CHAPTERS = sorted((ROOT / "notebooks").glob("*.ipynb"))
sys.path.insert(0, str(ROOT / "tools"))

import notebooks  # noqa: E402


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_chapter_is_in_form(path):
    assert notebooks.problems(path) == []


def test_table_of_contents_lists_every_chapter_and_nothing_else():
    text = (ROOT / "_toc.yml").read_text(encoding="utf-8")
    listed = re.findall(r"file: (notebooks/\S+)", text)
    assert listed == [f"notebooks/{path.stem}" for path in CHAPTERS]
    for page in re.findall(r"(?:file|root): (book/\S+)", text):
        assert (ROOT / f"{page}.md").is_file()


@pytest.fixture
def chapter(tmp_path):
    """A good chapter, copied to where it may be spoiled; links to its neighbours still lead somewhere."""
    for path in CHAPTERS:
        (tmp_path / path.name).write_bytes(path.read_bytes())
    notebook = nbformat.read(CHAPTERS[0], as_version=4)
    return notebook, tmp_path / CHAPTERS[0].name


def cell_with(notebook, words):
    return next(cell for cell in notebook.cells if words in cell.source)


def first_code(notebook):
    return next(cell for cell in notebook.cells if cell.cell_type == "code")


def unexecuted(notebook):
    first_code(notebook).execution_count = None


def out_of_order(notebook):
    first_code(notebook).execution_count = 7


def empty_cell(notebook):
    first_code(notebook).source = "   "


def raising(notebook):
    error = nbformat.v4.new_output("error", ename="ValueError", evalue="no such kernel", traceback=[])
    first_code(notebook).outputs = [error]


def warning(notebook):
    first_code(notebook).outputs = [nbformat.v4.new_output("stream", name="stderr", text="a warning")]


def bare_picture(notebook):
    data = {"text/plain": "<Figure size 640x480 with 1 Axes>"}
    first_code(notebook).outputs = [nbformat.v4.new_output("display_data", data=data)]


def stored_picture(notebook):
    data = {"text/plain": "x", "image/png": "iVBORw0KGgo="}
    first_code(notebook).outputs = [nbformat.v4.new_output("display_data", data=data)]


def stored_html(notebook):
    first_code(notebook).outputs = [nbformat.v4.new_output("display_data", data={"text/html": "<b>x</b>"})]


def markdown_picture(notebook):
    notebook.cells[0].source += "\n\n![](../book/_static/logo.svg)"


def dead_link(notebook):
    notebook.cells[0].source += "\n\nSee [chapter 99](99_nothing.ipynb)."


def dead_anchor(notebook):
    notebook.cells[0].source += f"\n\nSee [this]({CHAPTERS[0].name}#no-such-heading)."


def timed(notebook):
    notebook.cells[0].metadata["execution"] = {"iopub.execute_input": "2026-01-01"}


def missing_section(notebook):
    cell_with(notebook, "## What readers ask").source = "## Something else"


def unsolved_exercise(notebook):
    cell = cell_with(notebook, "{solution-start} ex-")
    cell.source = cell.source.replace(":class: dropdown", "")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (unexecuted, r"cell \d+ \('import numpy as np'\): was not executed in order \(count None, expected 1\)"),
        (out_of_order, r"cell \d+ \('import numpy as np'\): was not executed in order \(count 7, expected 1\)"),
        (empty_cell, r"cell \d+ \('empty'\): is neither text nor code"),
        (raising, r"cell \d+ \('import numpy as np'\): raised ValueError: no such kernel"),
        (warning, r"cell \d+ \('import numpy as np'\): wrote to stderr: 'a warning'"),
        (bare_picture, r"cell \d+ \('import numpy as np'\): shows a picture without alt text"),
        (stored_picture, r"cell \d+ \('import numpy as np'\): shows a picture without alt text"),
        (stored_html, r"cell \d+ \('import numpy as np'\): holds pictures or volatile metadata"),
        (markdown_picture, r"cell 1 \('# .*'\): shows the picture ../book/_static/logo.svg without alt text"),
        (dead_link, r"cell 1 \('# .*'\): links to 99_nothing.ipynb, but there is no such file"),
        (dead_anchor, r"cell 1 \('# .*'\): links to .*, but .* has no heading #no-such-heading"),
        (timed, r"cell 1 \('# .*'\): holds pictures or volatile metadata"),
        (missing_section, r": has no section 'What readers ask'"),
        (unsolved_exercise, r": exercise ex-\S+ has no folded solution that runs"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_bad_notebook_is_named_with_its_cell(chapter, spoil, message):
    notebook, path = chapter
    (path.parent.parent / "book" / "_static").mkdir(parents=True, exist_ok=True)
    (path.parent.parent / "book" / "_static" / "logo.svg").touch()
    spoil(notebook)
    nbformat.write(notebook, path)
    found = notebooks.problems(path)
    assert any(re.search(rf"^{re.escape(path.name)},? ?{message}", line) for line in found), found


def test_cleaning_keeps_text_and_drops_the_rest(chapter):
    notebook, _ = chapter
    cell = first_code(notebook)
    cell.metadata = nbformat.from_dict({"tags": ["nbval-check-output"], "execution": {"x": 1}})
    data = {"text/plain": "words", "text/html": "<b>words</b>", "image/png": "iVBORw0KGgo="}
    cell.outputs = [nbformat.v4.new_output("execute_result", data=data, execution_count=1)]
    kept = first_code(notebooks.clean(notebook))
    assert kept.outputs[0].data == {"text/plain": "words"}
    assert kept.metadata == {"tags": ["nbval-check-output"]}
    assert cell.outputs[0].data == data, "the original stays as it is"


def test_a_changed_number_and_an_exception_go_red(chapter):
    """The command of the Makefile must fail, and name notebook and cell, when a quoted number is not what runs."""
    notebook, path = chapter
    quoted = next(c for c in notebook.cells if "nbval-check-output" in c.metadata.get("tags", []))
    assert re.search(r"\d", quoted.outputs[0].text)
    quoted.outputs[0].text = re.sub(
        r"\d", lambda digit: str((int(digit[0]) + 1) % 10), quoted.outputs[0].text, count=1
    )
    broken = nbformat.v4.new_code_cell("raise RuntimeError('broken on purpose')", execution_count=99)
    position = notebook.cells.index(quoted)
    notebook.cells = [*notebook.cells[: position + 1], broken]
    nbformat.write(notebook, path)

    options = re.search(r"-m pytest (.*--nbval-lax.*) \$<", (ROOT / "Makefile").read_text(encoding="utf-8"))[1]
    result = subprocess.run(
        [sys.executable, "-m", "pytest", *options.split(), str(path)], capture_output=True, text=True, check=False
    )
    assert result.returncode == 1, result.stdout + result.stderr
    number = sum(cell.cell_type == "code" for cell in notebook.cells[:position])
    assert re.search(rf"FAILED .*{re.escape(path.name)}::Cell {number}\b", result.stdout), result.stdout
    assert re.search(rf"FAILED .*{re.escape(path.name)}::Cell {number + 1}\b", result.stdout), result.stdout
    assert "broken on purpose" in result.stdout
