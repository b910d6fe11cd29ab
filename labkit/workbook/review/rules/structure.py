"""What a notebook is made of: sections, tags, metadata, parameters."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from labkit.errors import LabkitError, did_you_mean
from labkit.workbook import notebooks
from labkit.workbook.review.anatomy import (
    CELL_TAGS,
    OPTIONAL,
    SECTIONS,
    SIZES,
    TODO,
    WAYS,
    Cell,
    Subject,
)
from labkit.workbook.review.rules.rule import Remark, rule

OTHER_TAGS = (
    "nbval-ignore-output",
    "nbval-skip",
    "nbval-check-output",
    "nbval-raises-exception",
    "raises-exception",
    *(f"{verb}-{what}" for verb in ("hide", "remove") for what in ("input", "output", "cell")),
)
NOTEBOOK_METADATA = {"kernelspec", "language_info", "labkit"}
OURS = {"paper", "size", "datasets", "outputs"}
CELL_METADATA = {"tags", "slideshow", "jupyter"}

_GENERATED_ID = re.compile(r"^(?=.*\d)[0-9a-f]{8}(-?[0-9a-f]{4}){0,3}(-?[0-9a-f]{12})?$")


@rule("format", "a valid notebook of format 4.5 or later, every cell with an id")
def format_is_valid(subject: Subject) -> Iterator[Remark]:
    import nbformat

    if subject.notebook.nbformat_minor < 5:
        problem = f"notebook format 4.{subject.notebook.nbformat_minor} has no cell ids"
        yield Remark(None, problem, "save it with a current JupyterLab")
        return
    try:
        nbformat.validate(subject.notebook)
    except nbformat.ValidationError as error:
        yield Remark(None, f"not a valid notebook: {error.message}", "what nbformat's schema asks")


@rule("todo", f"nothing says {TODO} any more")
def nothing_left_to_write(subject: Subject) -> Iterator[Remark]:
    for cell in subject.cells:
        for line in cell.source.splitlines():
            if TODO in line:
                task = line.partition(TODO)[2].strip(" :*_|#)->") or "write this"
                yield Remark(cell, f"still to be written: {task}", f"the text or code, no {TODO}")


@rule("sections", "every section of the anatomy is there, in order")
def sections_in_order(subject: Subject) -> Iterator[Remark]:
    present = [section.tag for section in subject.sections]
    for tag in SECTIONS:
        if tag not in present and tag not in OPTIONAL:
            yield Remark(None, f"no cell is tagged {tag!r}", f"the section {tag!r}: {_place(tag)}")
    latest = -1
    for section in subject.sections:
        index = SECTIONS.index(section.tag)
        if present.count(section.tag) > 1 and section.tag != "figure" and index <= latest:
            yield Remark(section.first, f"section {section.tag!r} starts twice", "one of each")
        elif section.tag in OPTIONAL:
            continue
        elif index < latest:
            problem = f"section {section.tag!r} comes after {SECTIONS[latest]!r}"
            yield Remark(section.first, problem, _place(section.tag))
        latest = max(latest, index)


def _place(tag: str) -> str:
    index = SECTIONS.index(tag)
    after = f"after {SECTIONS[index - 1]!r}" if index else "at the top"
    before = f", before {SECTIONS[index + 1]!r}" if index + 1 < len(SECTIONS) else ""
    return after + before


@rule("preface", "nothing stands before the title")
def title_first(subject: Subject) -> Iterator[Remark]:
    if subject.sections and subject.sections[0].first.number != 1:
        yield Remark(subject.cells[0], "a cell before the first section", "the title cell first")


@rule("tags", "tags are the anatomy's, or ones our tools know")
def tags_are_known(subject: Subject) -> Iterator[Remark]:
    known = (*SECTIONS, *CELL_TAGS, *WAYS, *OTHER_TAGS)
    for cell in subject.cells:
        for tag in cell.tags:
            hint = "" if tag in known else did_you_mean(tag, known, most=1)
            if hint:
                yield Remark(cell, f"unknown tag {tag!r}", hint)
        if sum(tag in SECTIONS for tag in cell.tags) > 1:
            yield Remark(cell, f"tags of two sections: {', '.join(cell.tags)}", "one section each")


@rule("setup", "imports and open_paper stand in a code cell tagged 'setup' after the parameters")
def setup_follows_parameters(subject: Subject) -> Iterator[Remark]:
    cells = subject.cells
    setups = [cell for cell in cells if "setup" in cell.tags]
    right = "a code cell tagged 'setup', right after 'parameters', that calls workbook.open_paper"
    if len(setups) != 1:
        yield Remark(setups[1] if setups else None, f"{len(setups)} cells tagged 'setup'", right)
        return
    setup = setups[0]
    before = cells[setup.number - 2] if setup.number > 1 else None
    if not setup.is_code or before is None or before.section_tag != "parameters":
        yield Remark(setup, "the 'setup' cell is not right after the parameters", right)
    opened = [_text(call) for call in setup.calls("open_paper")]
    if opened != [subject.key]:
        said = f"opens {opened[0]!r}" if opened else "opens no paper"
        yield Remark(setup, f"the 'setup' cell {said}", f"workbook.open_paper({subject.key!r})")


def _text(call: ast.Call) -> str:
    first = call.args[0] if call.args else None
    return str(first.value) if isinstance(first, ast.Constant) else ""


@rule(
    "imports",
    "the 'setup' cell holds imports and `paper = workbook.open_paper(KEY)`, nothing else",
)
def setup_only_imports(subject: Subject) -> Iterator[Remark]:
    for cell in subject.tagged("setup"):
        body = cell.tree.body if cell.tree else []
        if more := [node for node in body if not _imports_or_opens(node)]:
            line = ast.unparse(more[0]).splitlines()[0]
            fix = "a cell of its own, after a sentence that says what it is for"
            yield Remark(cell, f"more than imports: {line[:60]}", fix)


def _imports_or_opens(node: ast.stmt) -> bool:
    opens = isinstance(node, ast.Assign) and any(notebooks.calls(node, "open_paper"))
    return opens or isinstance(node, ast.Import | ast.ImportFrom)


@rule("python", "code cells are plain Python: no magics, no shell; classes in the mechanism alone")
def plain_python(subject: Subject) -> Iterator[Remark]:
    mechanism = subject.section("mechanism")
    for cell in subject.code:
        for line in cell.magics:
            yield Remark(cell, f"not Python: {line}", "plain Python, which tests can read too")
        if cell.tree is None:
            yield Remark(cell, "the code does not parse", "valid Python")
        for node in ast.walk(cell.tree) if cell.tree else ():
            shown = mechanism is not None and cell in mechanism.cells
            if isinstance(node, ast.ClassDef) and not shown:
                fix = "classes belong into labkit, or into the mechanism where they are its idea"
                yield Remark(cell, f"defines class {node.name}", fix)


@rule("metadata", "metadata hold the kernel, {paper, size, datasets, outputs}, tags")
def lean_metadata(subject: Subject) -> Iterator[Remark]:
    metadata = subject.notebook.metadata
    for name in sorted(set(metadata) - NOTEBOOK_METADATA):
        yield Remark(None, f"notebook metadata {name!r}", "remove it (`labkit refresh` does)")
    if metadata.get("kernelspec", {}).get("name") != "python3":
        yield Remark(None, "the kernel is not 'python3'", "kernelspec.name: python3")
    if "version" in metadata.get("language_info", {}):
        yield Remark(None, "language_info.version is kept", "remove it (`labkit refresh` does)")
    ours = metadata.get("labkit", {})
    if ours.get("paper") != subject.key:
        yield Remark(None, f"labkit.paper is {ours.get('paper')!r}", f"{subject.key!r}")
    for name in sorted(set(ours) - OURS):
        yield Remark(None, f"metadata labkit.{name}", f"only {', '.join(sorted(OURS))}")
    if not subject.size:
        problem = f"labkit.size is {ours.get('size')!r}"
        yield Remark(None, problem, f"{' or '.join(map(repr, SIZES))}: the amounts follow from it")
    for cell in subject.cells:
        for name in sorted(set(cell.node.metadata) - CELL_METADATA):
            yield Remark(cell, f"cell metadata {name!r}", "remove it (`labkit refresh` does)")
        if cell.node.metadata.get("tags") == []:
            yield Remark(cell, "an empty list of tags", "no tags at all")


@rule("cell-ids", "cell ids are short slugs that stay")
def readable_ids(subject: Subject) -> Iterator[Remark]:
    for cell in subject.cells:
        if _GENERATED_ID.match(cell.id):
            yield Remark(cell, f"generated cell id {cell.id!r}", "a slug such as 'fig3'")


@rule("parameters", "parameters are annotated scalar literals, each with a comment")
def typed_parameters(subject: Subject) -> Iterator[Remark]:
    for cell in (cell for cell in subject.cells if cell.section_tag == "parameters"):
        if not cell.is_code:
            yield Remark(cell, "the parameters are not code", "a code cell of `name: type = value`")
            continue
        for node in cell.tree.body if cell.tree else ():
            yield from _parameter(cell, node)


@rule("parameters", "no later cell gives a parameter another value, which a run would not know of")
def parameters_stay(subject: Subject) -> Iterator[Remark]:
    names = set(subject.parameter_names)
    for cell in subject.cells:
        if cell.section_tag == "parameters" or not cell.is_code or cell.tree is None:
            continue
        for name in sorted(names & set(_assigned(cell.tree))):
            problem = f"parameter {name!r} is given another value"
            yield Remark(cell, problem, "another name: a run records the parameter's own value")


def _assigned(tree: ast.Module) -> Iterator[str]:
    """Names that a cell's own statements bind, those inside functions left out."""
    pending: list[ast.AST] = list(tree.body)
    while pending:
        node = pending.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            continue
        if isinstance(node, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
            continue  # its own names
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        pending.extend(ast.iter_child_nodes(node))


def _parameter(cell: Cell, node: ast.stmt) -> Iterator[Remark]:
    right = "`name: int = 8  # what it is, unit, §`, with type int, float, str or bool"
    line = ast.get_source_segment(cell.source, node) or ""
    if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
        yield Remark(cell, f"not a typed parameter: {line}", right)
        return
    kind = notebooks.SCALARS.get(ast.unparse(node.annotation))
    try:
        value = ast.literal_eval(node.value) if node.value else None
    except ValueError:
        value = None
    fits = isinstance(value, kind or ()) and (kind is bool or not isinstance(value, bool))
    if not fits and not (kind is float and type(value) is int):
        yield Remark(cell, f"not a scalar literal of its type: {line}", right)
    lines = ["", *cell.source.splitlines()]
    above = lines[node.lineno - 1]
    beside = lines[node.end_lineno or node.lineno][node.end_col_offset or 0 :]
    if "#" not in beside and not above.startswith("#"):
        yield Remark(cell, f"{node.target.id!r} has no comment, beside it or above it", right)


@rule("datasets", "labkit.datasets names known data sets, and all that the code opens")
def datasets_are_declared(subject: Subject) -> Iterator[Remark]:
    from labkit import datasets

    declared = notebooks.dataset_names(subject.notebook)
    for name in declared:
        try:
            datasets.needed([name], subject.root)
        except LabkitError as error:
            yield Remark(None, f"labkit.datasets: {error}", "a name of data/datasets.yaml")
    names = {name.partition("/")[0] for name in declared}
    for cell in subject.code:
        for call in cell.calls("data"):
            if (opened := _text(call)) and opened.partition("/")[0] not in names:
                yield Remark(
                    cell,
                    f"opens data set {opened!r}, which the metadata do not declare",
                    f"metadata labkit.datasets: [{opened}]",
                )
