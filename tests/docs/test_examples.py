"""Every Python example in the documents runs as it is printed."""

from __future__ import annotations

import html
import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.backend.harness import Dashboard, dashboard, environment
from tests.docs.examples import EXAMPLES
from tests.docs.markdown import Block, blocks
from tests.loader.support import Script, Template, wait_until

PYTHON = [block for block in blocks() if block.language == "python"]


def needed(name: str) -> pytest.MarkDecorator:
    package = EXAMPLES[name].package
    return pytest.mark.skipif(importlib.util.find_spec(package) is None, reason=f"{package} is not installed")


@pytest.fixture(scope="module")
def template() -> Iterator[Template]:
    made = Template()
    yield made
    made.close()


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Dashboard]:
    """The dashboard of this user on this machine, as far as the example can see."""
    with dashboard(tmp_path, "--data", ":memory:") as running:
        yield running


def block_of(name: str) -> Block:
    (found,) = (block for block in PYTHON if block.mark == name)
    return found


def test_each_example_is_known_here() -> None:
    assert {block.mark for block in PYTHON} == set(EXAMPLES), "a block without a comment `<!-- test: name -->`?"


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=needed(name)) for name in EXAMPLES if not EXAMPLES[name].loader]
)
def test_the_example_runs(name: str, template: Template) -> None:
    run(template, EXAMPLES[name].before, block_of(name).text, EXAMPLES[name].after)


def test_a_watched_loader_of_torchs_is_on_the_dashboard(template: Template, running: Dashboard, tmp_path: Path) -> None:
    variables = {name: value for name, value in environment(tmp_path).items() if name.startswith("XDG_")}
    example = EXAMPLES["watch"]
    run(
        template, f"import os; os.environ.update({variables})\n" + example.before, block_of("watch").text, example.after
    )
    wait_until(lambda: names_on(running) == [example.loader], "the loader on the dashboard")


@needed("notebook")
def test_a_notebook_shows_a_link_to_the_loaders_page(
    running: Dashboard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import nbclient
    import nbformat

    for variable, value in environment(tmp_path).items():
        monkeypatch.setenv(variable, value)
    example = EXAMPLES["notebook"]
    notebook = nbformat.v4.new_notebook()
    notebook.cells = [nbformat.v4.new_code_cell(source) for source in (example.before, block_of("notebook").text)]
    nbclient.NotebookClient(notebook, timeout=100, kernel_name="python3").execute()
    (shown,) = (output["data"] for output in notebook.cells[-1].outputs if output.output_type == "execute_result")
    link = re.search(r'href="([^"]+)"', shown["text/html"])
    assert link is not None
    with running.http() as client:
        (row,) = wait_until(lambda: client.get("/api/loaders").json(), "the loader on the dashboard")
    base = running.link.partition("/#")[0]
    assert html.unescape(link[1]) == f"{base}/#/loader/{row['id'].replace(':', '%3A')}"
    assert "token" not in shown["text/html"], "notebooks are passed on"
    assert "16 batches" in shown["text/html"]


def run(template: Template, *parts: str) -> None:
    script = Script(template, "\n".join([*parts, "\nprint('reached the end')"]))
    try:
        said, complaints = script.finish()
    finally:
        script.end()
    assert said.rstrip().endswith("reached the end"), complaints
    assert script.status == 0, complaints


def names_on(running: Dashboard) -> list[str]:
    with running.http() as client:
        return [row["identity"]["name"] for row in client.get("/api/loaders").json()]
