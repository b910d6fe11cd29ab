"""One cell at a time: kept whole, or taken out and told."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_output

from labkit.kit.page import json_for_script
from labkit.workbook.export.markup import Markup
from tests.export import offline

PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


@pytest.fixture
def markup(tmp_path: Path) -> Markup:
    return Markup(tmp_path, lambda key: f"{key}.html" if key == "known" else None)


def markdown(source: str, **fields: Any) -> NotebookNode:
    return new_markdown_cell(source, id="c", **fields)


def shown(*outputs: NotebookNode) -> NotebookNode:
    return new_code_cell("x", id="c", outputs=list(outputs))


def display(data: dict[str, Any]) -> NotebookNode:
    return shown(new_output("display_data", data=data))


def test_formulas_render_also_in_tables_and_lists_but_not_in_code(markup: Markup) -> None:
    html = markup.markdown(
        markdown("| a |\n|---|\n| $x_1$ |\n\n- $y$\n\n`$z$`\n\n```\n$w$\n```\n\n$$\nv\n$$")
    )
    soup = offline.parse(html)
    assert len(soup.find_all("math")) == 3
    assert soup.find("td").find("math") is not None
    assert soup.find("li").find("math") is not None
    assert [c.get_text().strip() for c in soup.find_all("code")] == ["$z$", "$w$"]
    assert "$" not in offline.visible_text(html)
    assert markup.problems == []


def test_a_formula_that_cannot_be_typeset_stays_readable_and_is_told(markup: Markup) -> None:
    html = markup.markdown(markdown(r"so $\nosuch{x}$ holds"))
    assert offline.parse(html).find(class_="bad-formula").get_text() == r"\nosuch{x}"
    assert len(markup.problems) == 1
    assert r"\nosuch" in markup.problems[0]
    assert "'c'" in markup.problems[0]


def test_answers_stay_folded_around_their_text(markup: Markup) -> None:
    html = markup.markdown(markdown("<details><summary>A</summary>\n\nHidden $x$.\n\n</details>"))
    details = offline.parse(html).find("details")
    assert "Hidden" in details.get_text()
    assert details.find("math") is not None


@pytest.mark.parametrize(
    "hostile",
    [
        '<script src="https://example.org/x.js"></script>',
        "<script>fetch('https://example.org')</script>",
        '<link rel="stylesheet" href="https://example.org/x.css">',
        '<img src="https://example.org/x.png">',
        '<iframe src="https://example.org"></iframe>',
        '<object data="https://example.org/x.swf"></object>',
        '<style>@import url("https://example.org/x.css");</style>',
        "<style>a { background: url(//example.org/x.png) }</style>",
        '<video src="https://example.org/x.mp4" poster="https://example.org/x.png"></video>',
    ],
)
@pytest.mark.parametrize("where", ["markdown", "output"])
def test_what_would_fetch_is_taken_out_and_told(markup: Markup, hostile: str, where: str) -> None:
    if where == "markdown":
        html = markup.markdown(markdown(f"before\n\n{hostile}\n\nafter"))
    else:
        html = "".join(markup.outputs(display({"text/html": f"before{hostile}after"})))
    assert offline.resources(html) == []
    assert "script" not in html
    assert markup.problems
    assert "before" in html
    assert "after" in html


def test_handlers_and_fetching_styles_are_dropped(markup: Markup) -> None:
    html = "".join(
        markup.outputs(
            display(
                {"text/html": '<b onclick="x()" style="background:url(https://example.org)">t</b>'}
            )
        )
    )
    assert html == '<div class="rich"><b>t</b></div>'


@pytest.mark.parametrize(("start", "num_problems"), [("<style scoped>", 0), ("<style>", 1)])
def test_a_table_keeps_its_own_styles_and_no_style_sheet(
    markup: Markup, start: str, num_problems: int
) -> None:
    cell = '<td style="color:red;padding:0 1em;border-bottom:1px solid rgba(1,2,3,0.5)">1</td>'
    sheet = f"{start}td {{ color: green }}</style>"
    html = "".join(markup.outputs(display({"text/html": f"{sheet}<table><tr>{cell}</tr></table>"})))
    assert cell in html
    assert "green" not in html
    assert len(markup.problems) == num_problems  # what pandas puts by each table is no loss


def test_an_image_beside_the_notebook_is_embedded(markup: Markup, tmp_path: Path) -> None:
    (tmp_path / "a b.png").write_bytes(PIXEL)
    html = markup.markdown(markdown("![alt](<a b.png>) ![gone](../outside.png)"))
    (image,) = offline.parse(html).find_all("img")
    assert base64.b64decode(image["src"].partition(",")[2]) == PIXEL
    assert "gone" in html
    assert len(markup.problems) == 1


def test_attachments_are_embedded(markup: Markup) -> None:
    payload = base64.b64encode(PIXEL).decode()
    cell = markdown("![a](attachment:p.png)", attachments={"p.png": {"image/png": payload}})
    assert payload in markup.markdown(cell)
    assert markup.problems == []


def test_links_lead_to_pages_outside_or_nowhere(markup: Markup) -> None:
    html = markup.markdown(
        markdown(
            "[p](../x/known.ipynb#Part-1) [q](other.ipynb) [r](https://example.org) [s](#here)"
        )
    )
    links = {a.get_text(): a["href"] for a in offline.parse(html).find_all("a")}
    assert links == {"p": "known.html#Part-1", "r": "https://example.org", "s": "#here"}
    assert "q" in offline.visible_text(html)


def test_a_figure_comes_back_from_its_script_as_it_was(markup: Markup) -> None:
    figure = {
        "data": [{"type": "bar", "y": [1, 2.5, None], "name": "</script><!-- <b>"}],
        "layout": {"title": {"text": "<b>é</b> & \u2028"}},
    }
    (html,) = markup.outputs(display({"application/vnd.plotly.v1+json": figure}))
    assert html.count("</script") == 1
    assert "<!--" not in html
    script = offline.parse(html).find("script", type="application/json")
    assert json.loads(script.string) == figure


def test_numbers_json_does_not_know_become_gaps() -> None:
    given = {"y": [float("nan"), float("inf"), 1.5], "n": 3, "t": (True, None)}
    assert json.loads(json_for_script(given)) == {"y": [None, None, 1.5], "n": 3, "t": [True, None]}


def test_a_figure_that_wants_typeset_dollars_is_told(markup: Markup) -> None:
    figure = {"data": [], "layout": {"title": {"text": "$x^2$"}}}
    markup.outputs(display({"application/vnd.plotly.v1+json": figure}))
    assert len(markup.problems) == 1


def test_the_richest_form_wins_and_text_is_escaped(markup: Markup) -> None:
    html = markup.outputs(
        shown(
            new_output("display_data", data={"text/plain": "plain", "text/html": "<b>rich</b>"}),
            new_output("execute_result", data={"text/plain": "<Thing> & co"}),
            new_output("stream", name="stdout", text="\x1b[31mred\x1b[0m </pre><b>no</b>"),
            new_output("error", ename="E", evalue="v", traceback=["\x1b[31mE\x1b[0m: <v>"]),
            new_output("display_data", data={"image/png": base64.b64encode(PIXEL).decode()}),
            new_output("display_data", data={"text/markdown": "*x* $y$"}),
            new_output("display_data", data={"text/latex": "$$z$$"}),
            new_output("display_data", data={}),
        )
    )
    assert len(html) == 7
    assert "plain" not in html[0]
    assert "&lt;Thing&gt; &amp; co" in html[1]
    assert "<b>no</b>" not in html[2]
    assert "\x1b" not in html[2] + html[3]
    assert "<math" in html[5]
    assert "<math" in html[6]


def test_a_live_control_leaves_a_note(markup: Markup) -> None:
    view = {"application/vnd.jupyter.widget-view+json": {"model_id": "1"}, "text/plain": "Slider()"}
    (html,) = markup.outputs(display(view))
    assert "JupyterLab" in html
