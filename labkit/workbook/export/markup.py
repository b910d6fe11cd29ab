"""What a notebook's cells hold, as HTML that needs nothing but the file it stands in.

Markdown goes through nbconvert's own parser (so maths, tables and attachments mean what they mean
in JupyterLab), formulas become MathML, figures become data that :file:`plots.js` draws. What would
run or fetch is taken out (:mod:`labkit.workbook.export.clean`, last of all) and reported.
"""

from __future__ import annotations

import base64
import functools
import json
import mimetypes
import re
from collections.abc import Callable, Mapping
from html import escape, unescape
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote
from xml.etree import ElementTree

from labkit.files import encoded
from labkit.kit import page
from labkit.workbook import notebooks
from labkit.workbook.export import clean
from labkit.workbook.notebooks import PLOTLY_MIME, WIDGET_VIEW, joined
from labkit.workbook.review import tally
from labkit.workbook.review.claims import CLAIMS_MIME, records_in

if TYPE_CHECKING:
    from bs4 import BeautifulSoup, Tag
    from nbformat import NotebookNode

_IMAGES = ("image/svg+xml", "image/png", "image/jpeg", "image/gif", "image/webp")
_ADDRESS = re.compile(r"(https?://[^\s<>\"']*[^\s<>\"'.,;:)\]])")
_TAGS = frozenset(map(str.lower, clean.TAGS))
_SVG = 'xmlns="http://www.w3.org/2000/svg"'
_FETCHING_ATTRIBUTES = ("src", "srcset", "poster", "background", "data", "xlink:href")
PACKAGE = "labkit.workbook.export"
LIBRARIES = ("latex2mathml", "mistune", "nbconvert", "nh3", "sphinx-revealjs")
"""The distributions that a page is made with, besides those of the kit's frame."""
_WHY_NOT = {"style": "it would restyle the whole page; use style attributes"}


class Markup:
    """Turns parts of one notebook into HTML; what could not be kept is told in ``problems``."""

    def __init__(self, folder: Path, page_of: Callable[[str], str | None]) -> None:
        """``folder`` is where the notebook's images are relative to: its own, in ``notebooks/``.

        ``page_of`` gives the page of another paper's notebook by key, or None for none.
        """
        self.folder = folder
        self.page_of = page_of
        self.problems: list[str] = []
        self._cell = ""

    def markdown(self, cell: NotebookNode) -> str:
        self._cell = str(cell.get("id", ""))
        return self.text(cell.source, cell.get("attachments", {}))

    def text(self, source: str, attachments: Mapping[str, Any] | None = None) -> str:
        """Markdown that may stand in no cell."""
        markdown, renderer = _markdown()
        parser = markdown(renderer=renderer(self, attachments or {}))
        return self._clean(str(parser.render(source)))

    def line(self, source: str) -> str:
        """One line of Markdown, without a paragraph around it; it begins no list."""
        source = re.sub(r"^(\d+)([.)]) ", r"\1\\\2 ", source)
        return self.text(source).strip().removeprefix("<p>").removesuffix("</p>")

    def outputs(self, cell: NotebookNode) -> list[str]:
        """The cell's outputs, each in its richest form that works without a kernel."""
        self._cell = str(cell.get("id", ""))
        parts = []
        for output in cell.get("outputs", []):
            try:
                parts.append(self._output(output))
            except Exception as error:  # what a stranger stores can be wrong in any way
                self._report(f"an output was left out, since it is malformed: {error!r}")
        return [part for part in parts if part]

    def formula(self, tex: str, *, display: bool) -> str:
        try:
            mathml = to_mathml(tex, display=display)
        except ValueError as error:
            self._report(f"the formula {' '.join(tex.split())!r} cannot be typeset: {error}")
            return f'<code class="bad-formula">{escape(tex)}</code>'
        return f'<div class="formula">{mathml}</div>\n' if display else mathml

    def _report(self, problem: str) -> None:
        self.problems.append(f"cell {self._cell!r}: {problem}")

    def _output(self, output: Mapping[str, Any]) -> str:
        kind = output["output_type"]
        if kind == "stream":
            name = escape(output.get("name", "stdout"))
            return f'<pre class="stream {name}">{_ansi(output.get("text", ""))}</pre>'
        if kind == "error":
            return f'<pre class="stream error">{_ansi(chr(10).join(output["traceback"]))}</pre>'
        return self._display(output.get("data", {}))

    def _display(self, data: Mapping[str, Any]) -> str:
        if PLOTLY_MIME in data:
            return self._plot(data[PLOTLY_MIME])
        if WIDGET_VIEW in data:
            return '<p class="note">A live control stands here in JupyterLab.</p>'
        if CLAIMS_MIME in data:
            return self._claims(data)
        if "text/html" in data:
            return f'<div class="rich">{self._clean(joined(data["text/html"]))}</div>'
        for mime in _IMAGES:
            if mime in data:
                return self._image(mime, joined(data[mime]), joined(data.get("text/plain", "")))
        if "text/markdown" in data:
            return f'<div class="rich">{self.text(joined(data["text/markdown"]))}</div>'
        if "text/latex" in data:
            tex = joined(data["text/latex"]).strip().strip("$")
            return self._clean(self.formula(tex, display=True))
        text = joined(data.get("text/plain", ""))
        return f'<pre class="stream stdout">{_ansi(text)}</pre>' if text else ""

    def _claims(self, data: Mapping[str, Any]) -> str:
        """Claims in five columns; the notebook's own table, with the rules, unfolds."""
        whole = self._clean(joined(data.get("text/html", "")))
        rows = [tally.row(claim) for claim in records_in(data[CLAIMS_MIME])]
        return render("claims.html.j2", claims=rows, whole=whole, legend=tally.LEGEND)

    def _plot(self, figure: Mapping[str, Any]) -> str:
        if not notebooks.is_figure(figure):
            raise ValueError("not Plotly's form of a figure")
        layout = figure["layout"]
        if "$" in json.dumps([layout.get("title"), layout.get("annotations")]):
            self._report("a figure's title or annotation has $…$, which needs a script to typeset")
        return page.plot(clean.figure(figure))

    def _image(self, mime: str, content: str, label: str) -> str:
        """A picture; a drawing too, since a browser runs and fetches nothing for an ``<img>``."""
        if mime == "image/svg+xml":
            named = content if _SVG in content else content.replace("<svg", f"<svg {_SVG}", 1)
            picture = encoded(named)
        else:
            picture = base64.b64decode("".join(content.split()), validate=True)
        source = f"data:{mime};base64,{base64.b64encode(picture).decode()}"
        return f'<img alt="{escape(label)}" src="{source}">'

    def _clean(self, html: str) -> str:
        """``html`` without what fetches or runs; links to other notebooks lead to their pages."""
        from bs4 import BeautifulSoup

        soup = BeautifulSoup(html, "html.parser")
        self._report_lost(soup)
        for tag in soup.find_all(True):
            self._embed_pictures(tag)
        for text in soup.find_all(string=_ADDRESS):
            if text.find_parent("td") and not text.find_parent(["a", "code", "pre"]):
                text.replace_with(*_linked(soup, str(text)))
        for link in soup.find_all("a", href=True):
            self._relink(link)
        for table in soup.find_all("table"):
            table.wrap(soup.new_tag("div", attrs={"class": "table"}))
        return clean.clean(str(soup))

    def _report_lost(self, soup: BeautifulSoup) -> None:
        """Say what cleaning takes away; a style sheet that pandas puts by its table is no loss."""
        for tag in soup.find_all(lambda tag: tag.name not in _TAGS):
            if tag.name != "style" or not tag.has_attr("scoped"):
                why = _WHY_NOT.get(tag.name, "a page shows a notebook and runs nothing of it")
                self._report(f"<{tag.name}> was left out: {why}")
        for tag in soup.find_all(clean.DROPPED):
            tag.decompose()
        for tag in soup.find_all(True):
            for name in [name for name in tag.attrs if name.startswith("on")]:
                self._report(f"{name} of <{tag.name}> was left out: a page runs nothing")
            if "url(" in str(tag.get("style", "")).lower():
                self._report(f"a style of <{tag.name}> that fetches was left out")

    def _embed_pictures(self, tag: Tag) -> None:
        for name in _FETCHING_ATTRIBUTES:
            value = str(tag.get(name, ""))
            if not value or value.startswith(("data:", "#")):
                continue
            if tag.name == "img" and name == "src" and (image := self._embedded(value)):
                tag["src"] = image
            else:
                self._report(f"{name}={value!r} was left out: embed it in the notebook")
                del tag[name]
                if tag.name == "img":
                    tag.replace_with(str(tag.get("alt", "")))

    def _embedded(self, address: str) -> str:
        """An image file that stands in the notebook's folder, as a data address; "" for others."""
        try:
            path = (self.folder / unquote(address)).resolve()
            inside = path.is_file() and path.is_relative_to(self.folder.resolve())
        except (OSError, ValueError):  # no name that a file can have
            return ""
        mime = mimetypes.guess_type(path.name)[0] or ""
        if not inside or not mime.startswith("image/"):
            return ""
        return f"data:{mime};base64,{base64.b64encode(path.read_bytes()).decode()}"

    def _relink(self, link: Tag) -> None:
        address = str(link["href"])
        if re.match(r"https?://", address):
            link["rel"] = "noopener noreferrer"
            link["target"] = "_blank"
            return
        path, _, fragment = address.partition("#")
        if not path:
            return
        page = self.page_of(Path(path).stem) if path.endswith(".ipynb") else None
        if page is None:
            link.unwrap()
        else:
            link["href"] = page + (f"#{fragment}" if fragment else "")


# ---------------------------------------------------------------- pieces


def render(template: str, **values: Any) -> str:
    """The page ``template`` of the workbook, on the kit's frame, filled with ``values``."""
    page.environment(PACKAGE).globals["symbols"] = tally.SYMBOLS
    return page.render(template, package=PACKAGE, **values)


def highlighted(source: str) -> str:
    """Python ``source`` with its words in spans, coloured by the page's style sheet."""
    from pygments import highlight
    from pygments.formatters import HtmlFormatter
    from pygments.lexers.python import PythonLexer

    return str(highlight(source, PythonLexer(), HtmlFormatter(cssclass="highlight")))


def anchor(text: str) -> str:
    """The id JupyterLab gives a heading, so that its links work here too; without %, an escape.

    >>> anchor("Claims &amp; what is <em>measured</em>: 1 %")
    'Claims-&-what-is-measured:-1'
    """
    return "-".join(re.sub(r'["%]', "", unescape(re.sub(r"<[^>]+>", "", text))).split())


def _linked(soup: BeautifulSoup, text: str) -> list[Any]:
    """A table cell's text with each address in it as a link, as a reader expects of sources."""
    parts = _ADDRESS.split(text)
    for place in range(1, len(parts), 2):
        link = soup.new_tag("a", href=parts[place])
        link.string = parts[place]
        parts[place] = link
    return [part for part in parts if part]


def _ansi(text: Any) -> str:
    from nbconvert.filters.ansi import ansi2html

    return str(ansi2html(joined(text)))


@functools.cache
def _markdown() -> tuple[Any, Any]:
    """nbconvert's parser, and its renderer with formulas as MathML.

    Made on first use: the import takes seconds.
    """
    from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath

    class Renderer(IPythonRenderer):
        def __init__(self, markup: Markup, attachments: Mapping[str, Any]) -> None:
            super().__init__(escape=False, exclude_anchor_links=True, attachments=dict(attachments))
            self.markup = markup

        def image(self, text: str, url: str, title: str | None = None) -> str:
            if url.removeprefix("attachment:") not in (url, *self.attachments):
                self.markup._report(f"{url} is not attached to the cell")
                return escape(text)
            return str(super().image(text, url, title))

        def block_math(self, body: str) -> str:
            return self.markup.formula(body, display=True)

        def inline_math(self, body: str) -> str:
            return self.markup.formula(body, display=False)

        def latex_environment(self, name: str, body: str) -> str:
            tex = f"\\begin{{{name}}}{body}\\end{{{name}}}"
            return self.markup.formula(tex, display=True)

        def heading(self, text: str, level: int, **attrs: Any) -> str:
            return f'<h{level} id="{escape(anchor(text))}">{text}</h{level}>\n'

    return MarkdownWithMath, Renderer


# ---------------------------------------------------------------- formulas

_NAMESPACE = "http://www.w3.org/1998/Math/MathML"
_ARITY = dict.fromkeys(("mfrac", "mroot", "msub", "msup", "munder", "mover"), 2)
_ARITY |= dict.fromkeys(("msubsup", "munderover"), 3)
_LIMITS_BELOW = frozenset({"argmax", "argmin", "inf", "lim", "max", "min", "sup"})
# Spellings that latex2mathml does not know, by ones that it does and that look the same.
_SAME = (
    (re.compile(r"\\(begin|end)\{(?:aligned|gathered)\}"), r"\\\1{split}"),
    (re.compile(r"\\label\{[^}]*\}|\\(?:nonumber|notag)(?![A-Za-z])"), ""),
    (re.compile(r"\\arg\s*\\(min|max)(?![A-Za-z])"), r"\\operatorname{arg\1}"),
)


def to_mathml(tex: str, *, display: bool) -> str:
    r"""``tex`` (without its dollars) as a ``<math>`` element, on a line of its own if ``display``.

    Browsers typeset MathML by themselves: no script, no fonts to fetch.

    Raises:
        ValueError: it is unbalanced, or uses a command that is not known.

    >>> to_mathml(r"x^2", display=False)
    '<math display="inline"><mrow><msup><mi>x</mi><mn>2</mn></msup></mrow></math>'
    """
    from latex2mathml.converter import convert

    braces = re.sub(r"\\.", "", tex, flags=re.DOTALL)
    if braces.count("{") != braces.count("}"):
        raise ValueError("its braces do not pair")
    for pattern, replacement in _SAME:
        tex = pattern.sub(replacement, tex)
    try:
        mathml = convert(tex, display="block" if display else "inline")
    except Exception as error:  # the library raises a dozen kinds, all for one fault
        raise ValueError(f"{type(error).__name__} {error}".strip()) from None
    if unknown := re.search(r"<m[io]>(\\[A-Za-z]+\*?)", mathml):
        raise ValueError(f"the command {unknown[1]} is not known")
    return _checked(mathml, display=display)


def _checked(mathml: str, *, display: bool) -> str:
    """``mathml`` with limits under their operators, refused where a part of it is missing."""
    try:
        tree = ElementTree.fromstring(mathml)
    except ElementTree.ParseError:
        raise ValueError("a stray & or an unknown environment") from None
    for element in tree.iter():
        name = element.tag = element.tag.removeprefix(f"{{{_NAMESPACE}}}")  # HTML names it so
        if len(element) != _ARITY.get(name, len(element)):
            raise ValueError("an argument, a base or a script is missing")
        if display and name == "msub" and element[0].text in _LIMITS_BELOW:
            element.tag = "munder"
    return ElementTree.tostring(tree, encoding="unicode")
