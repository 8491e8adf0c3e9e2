"""Every Markdown file: its links, headings, paths, modules, and `msedge` commands and options exist."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import click
import pytest
import typer

from edge.cli.app import app
from edge.gateway.operate.sources import entries

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = (ROOT / "docs", ROOT / "examples", ROOT / "deploy")
PAGES = sorted([*ROOT.glob("*.md"), *(path for folder in FOLDERS for path in folder.rglob("*.md"))])
NAMES = [path.relative_to(ROOT).as_posix() for path in PAGES]
LINK = re.compile(r"\]\(([^)\s]+)\)")
FENCE = re.compile(r"(?ms)^ *```[^\n]*\n(.*?)^ *```")
INLINE = re.compile(r"`(msedge [^`]+)`")


def prose(text: str) -> str:
    """A page without its fenced blocks and inline code, which hold no links."""
    return re.sub(r"`[^`\n]*`", "", FENCE.sub("", text))


@cache
def anchors(path: Path) -> frozenset[str]:
    """The names under which GitHub offers a page's headings."""
    headings = re.findall(r"(?m)^#+ (.+)$", FENCE.sub("", path.read_text("utf-8")))
    return frozenset(re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings)


def broken(page: Path, target: str) -> str:
    """What is wrong with a link of a page; "" if nothing is."""
    where, _, anchor = target.partition("#")
    path = (page.parent / where).resolve() if where else page
    if not path.is_relative_to(ROOT) or not path.exists():
        return f"{target}: no such file"
    if anchor and path.suffix == ".md" and anchor not in anchors(path):
        return f"{target}: no such heading; there are {', '.join(sorted(anchors(path)))}"
    return ""


@pytest.mark.parametrize("name", NAMES)
def test_relative_links_lead_somewhere(name: str) -> None:
    page = ROOT / name
    targets = LINK.findall(prose(page.read_text("utf-8")))
    relative = [target for target in targets if not re.match(r"[a-z]+:", target)]
    assert [found for target in relative if (found := broken(page, target))] == []


def test_a_broken_link_is_found() -> None:
    page = ROOT / "README.md"
    assert "no such file" in broken(page, "docs/nothing.md")
    assert "no such file" in broken(page, "../elsewhere.md")
    assert "no such heading" in broken(page, "README.md#nothing-of-the-kind")


def test_every_document_is_in_the_index() -> None:
    """Each page of docs/ is linked from docs/README.md."""
    index = ROOT / "docs" / "README.md"
    linked = {(index.parent / target.partition("#")[0]).resolve() for target in LINK.findall(index.read_text("utf-8"))}
    pages = {page for page in index.parent.rglob("*.md") if page != index}
    assert sorted(page.name for page in pages - linked) == []


# -- names of code -----------------------------------------------------------------------------------------------------

TOPS = "benchmarks|cloud|converter|deploy|docs|edge|examples|federated|lite_runtime|tests|wheels"


def missing(name: str) -> bool:
    """Whether a path or a dotted name, as pages write them, names nothing there is.

    A dotted name is a module, or a module and a name in it. Names are looked up in the text: nothing is imported.
    """
    if "/" in name:
        return not (ROOT / name).exists()
    path, parts = ROOT, name.split(".")
    while parts and (path / parts[0]).is_dir():
        path /= parts.pop(0)
    found = bool(parts) and (path / f"{parts[0]}.py").exists()
    source = path / (f"{parts.pop(0)}.py" if found else "__init__.py")
    return bool(parts) and not (source.exists() and re.search(rf"\b{parts[0]}\b", source.read_text("utf-8")))


@pytest.mark.parametrize("name", NAMES)
def test_paths_and_modules_exist(name: str) -> None:
    text = (ROOT / name).read_text("utf-8")
    paths = re.findall(rf"`((?:{TOPS})/[\w./-]+?\.?\w*/?)`", text)
    dotted = re.findall(rf"`((?:{TOPS})(?:\.\w+)+)[`(]", text)
    modules = re.findall(rf"python -m ((?:{TOPS})(?:\.\w+)*)", text)
    assert sorted({found for found in (*paths, *dotted, *modules) if missing(found)}) == []


@pytest.mark.parametrize("name", NAMES)
def test_tests_that_documents_name_exist(name: str) -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", (ROOT / name).read_text("utf-8"))
    files = {path: ROOT / path for path, _ in named}
    texts = {path: file.read_text("utf-8") if file.exists() else "" for path, file in files.items()}
    assert [f"{path}::{test}" for path, test in named if f"\ndef {test}(" not in texts[path]] == []


def test_a_missing_name_is_found() -> None:
    assert missing("cloud/nothing.py") and missing("cloud.nothing") and missing("lite_runtime.bundle.reading.nothing")
    assert not missing("lite_runtime/bundle/") and not missing("lite_runtime.bundle.reading.read")


# -- commands ----------------------------------------------------------------------------------------------------------


def commands(text: str) -> Iterator[list[str]]:
    """The words of every `msedge …` line in the fenced blocks, and of `msedge …` as inline code."""
    for block in FENCE.findall(text):
        for line in re.sub(r"\\\n", " ", block).splitlines():
            line = line.strip().removeprefix("$ ")
            if line.startswith("msedge "):
                yield shlex.split(line, comments=True)[1:]
    for code in INLINE.findall(FENCE.sub("", text)):
        yield re.sub(r"\s+", " ", code).split(" ")[1:]


@cache
def root() -> click.Command:
    return typer.main.get_command(app)


def wrong(words: list[str]) -> str:
    """What is not a command or an option of msedge in a command's words; "" if all of it is.

    Words with an ellipsis and names in capitals are placeholders; values are not looked at.
    """
    command = root()
    path = "msedge"
    rest = list(words)
    while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
        name = rest.pop(0)
        if "…" in name or name.isupper():
            return ""
        # `msedge train/runs` names several commands at once
        found = [command.commands.get(one) for one in name.split("/")]
        if None in found:
            return f"{path}: no command {name!r}"
        command, path = found[0], f"{path} {name}"  # type: ignore[assignment]
    known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    if path == "msedge serve":  # its settings are flags that it reads itself
        known |= {entry.flag for entry in entries().values()}
    for word in rest:
        if re.match(r"--?[A-Za-z]", word):
            for option in word.split("/"):
                if option.partition("=")[0] not in known | {"--help"}:
                    return f"{path}: no option {option!r}"
    return ""


@pytest.mark.parametrize("name", NAMES)
def test_commands_and_options_exist(name: str) -> None:
    text = (ROOT / name).read_text("utf-8")
    assert [f"{' '.join(words)}: {found}" for words in commands(text) if (found := wrong(words))] == []


def test_there_are_commands_to_check() -> None:
    assert len(list(commands((ROOT / "docs" / "cli.md").read_text("utf-8")))) >= 20


@pytest.mark.parametrize("words", ["convert m.onnx --no-such-option", "no-such-command", "token no-such-command"])
def test_a_wrong_command_is_found(words: str) -> None:
    assert "no " in wrong(words.split())
