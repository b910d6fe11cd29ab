"""A workbook by somebody who wishes us ill: every field and output carries a script.

What runs sets ``window.pwned`` or opens a dialog; a cell or a YAML tag that runs writes a file.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode
from nbformat.v4 import new_output, new_raw_cell

from labkit.workbook.notebooks import PLOTLY_MIME
from labkit.workbook.review.claims import CLAIMS_MIME
from labkit.workbook.review.tables import SHARED_MIME
from tests.export import synthetic

CALL = "window.pwned=1"
SCRIPT = f"</script></style></title><script>{CALL}</script>"
BREAKOUT = f"\"'><img src=x onerror={CALL}>{SCRIPT}"
"""Ends whatever it stands in, an attribute too."""
LINK = f"javascript:{CALL};alert(1)"
DATA_LINK = f"data:text/html,<script>{CALL};opener.{CALL}</script>"
SVG = (
    f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 9 9" onload="{CALL}"><script>{CALL}'
    f'</script><a href="{LINK}"><rect class="payload" width="9" height="9"/></a>'
    f'<animate attributeName="href" values="{LINK}" onbegin="{CALL}"/><foreignObject>'
    f'<iframe srcdoc="<script>parent.{CALL}</script>"></iframe></foreignObject></svg>'
)
HTML = f"""<div class="plot" onmouseover="{CALL}"><b onclick="{CALL}">payload</b></div>
<script>{CALL}</script><img src=x onerror="{CALL}"><svg onload="{CALL}"></svg>
<a href="{LINK}">payload</a> <a href=" java&#9;script:{CALL}">payload</a>
<a href='{DATA_LINK}'>payload</a> <marquee onstart="{CALL}">payload</marquee>
<iframe srcdoc="<script>parent.{CALL}</script>"></iframe><iframe src="{LINK}"></iframe>
<object data="{LINK}"></object><embed src="{LINK}"><base href="https://example.org/">
<meta http-equiv="refresh" content="0;url={LINK}"><link rel="stylesheet" href="data:text/css,*{{}}">
<form action="{LINK}"><button formaction="{LINK}">payload</button>
<input autofocus onfocus="{CALL}"></form><x-y onclick="{CALL}" tabindex=0>payload</x-y>
<details open ontoggle="{CALL}"><summary>payload</summary></details>
<style>body {{ display: none }} @import "https://example.org/x.css";</style>
<p style="position:fixed;inset:0;z-index:99;background:url(https://example.org/x)">payload</p>
<math><mtext><table><mglyph><style><!--</style>
<img title="--&gt;&lt;img src=x onerror={CALL}&gt;"></table></math>
<noscript><p title="</noscript><img src=x onerror={CALL}>"></noscript>
<math href="{LINK}"><mi href="{LINK}">payload</mi></math>
<template shadowrootmode="open"><script>{CALL}</script></template>
<section data-background-iframe="{LINK}"><img data-src="x" onerror="{CALL}"></section>
<aside class="notes" data-markdown><script>{CALL}</script></aside>
<video src=x onerror="{CALL}"></video><svg>{SVG}</svg>"""
MARKDOWN = f"""[payload]({LINK}) [payload](<java\tscript:{CALL}>) ![x]({LINK})
[payload](<{DATA_LINK}>) ![p](attachment:a.png) ![q](<x" onerror="{CALL}>)
![gone](attachment:none.png) <{LINK}>

| a | b |
|---|---|
| {BREAKOUT.replace("|", "")} | $\\href{{{LINK}}}{{x}} \\text{{{SCRIPT}}}$ |

```python"onmouseover="{CALL}
{SCRIPT}
```

{HTML}
"""
FIGURE: dict[str, Any] = {
    "data": [
        {"type": "scatter", "mode": "lines+text", "x": [1, 2], "y": [2, 1], "name": BREAKOUT,
         "text": [f'<a href="{LINK}">payload</a>', HTML], "hovertemplate": HTML,
         "line": {"color": f'red" onload="{CALL}'}},
        {"type": "bar", "x": [SCRIPT, LINK], "y": [2, 3], "customdata": [HTML]},
    ],
    "layout": {
        "height": 450, "meta": HTML,
        "title": {"text": f'<a href="{LINK}" popup="x" target="{BREAKOUT}">payload</a> {HTML}'},
        "images": [{"source": f"data:text/html,{SCRIPT}", "xref": "paper", "yref": "paper"}],
        "annotations": [{"text": f'<span style="color:red" onclick="{CALL}">payload</span> '
                         f'<a href="java\tscript:{CALL}">payload</a>', "x": 1, "y": 1}],
        "updatemenus": [{"buttons": [{"label": HTML, "method": "update", "args": [{}, {}]}]}],
        "sliders": [{"currentvalue": {"prefix": HTML}, "steps": [
            {"label": BREAKOUT, "method": "restyle", "args": [{"name": [HTML]}, [0]]}]}],
    },
}  # fmt: skip
OUTPUTS: list[dict[str, Any]] = [
    {"text/html": HTML},
    {"image/svg+xml": SVG},
    {"image/png": f'x"onerror="{CALL}"'},
    {"text/markdown": MARKDOWN},
    {"text/latex": f"$\\href{{{LINK}}}{{x}} \\class{{{BREAKOUT}}}{{y}}$"},
    {"application/javascript": CALL, "text/plain": SCRIPT},
    {"application/vnd.jupyter.widget-view+json": {"model_id": BREAKOUT}, "text/html": HTML},
    {PLOTLY_MIME: FIGURE},
    {PLOTLY_MIME: {"data": BREAKOUT, "layout": {"height": BREAKOUT}}},
    {PLOTLY_MIME: {"data": [{"y": [1, 2]}], "layout": {"sliders": [{"steps": []}]}}},
]


def claims() -> str:
    """``claims.yaml`` whose every text is a payload."""
    text = synthetic.CLAIMS
    for words in ("Energy saving with four stages", "§6.2, Fig. 10", "the lowest clock everywhere"):
        text = text.replace(f'"{words}"', words).replace(words, json.dumps(f"{words} {BREAKOUT}"))
    return text


def make(root: Path, mark: Path) -> Path:
    """The workbook under ``root``; ``mark`` is the file that exists once a cell has run."""
    synthetic.make(root)
    queue = synthetic.QUEUE
    for words in ("its idle time is our free energy", "superseded", "presenter: Ada"):
        value = words.removeprefix("presenter: ")
        queue = queue.replace(words, words.replace(value, json.dumps(f"{value} {BREAKOUT}")))
    bib = synthetic.BIBLIOGRAPHY.replace("https://example.org/alpha", LINK)
    bib = bib.replace("Alpha: Idle", f"{BREAKOUT} Alpha: Idle").replace("Ada}", f"Ada {SCRIPT}}}")
    asked = {"date": "2026-03-14", "by": BREAKOUT, "text": HTML, "state": "answered"}
    files = {
        "reading_queue.yaml": queue,
        "data/papers.bib": bib,
        "data/papers/alpha/claims.yaml": claims(),
        "data/papers/alpha/questions.yaml": json.dumps({"questions": [asked | {"answer": HTML}]}),
        "data/papers/beta/claims.yaml": claims(),
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")
    for key in ("alpha", "beta"):
        path = root / "notebooks" / "energy" / f"{key}.ipynb"
        path.write_text(nbformat.writes(notebook(root, key, mark)), encoding="utf-8")
    return root


def notebook(root: Path, key: str, mark: Path) -> NotebookNode:
    """The synthetic notebook with payloads in each cell, its sections kept so that all show."""
    hostile = synthetic.notebook(root)
    png = {"image/png": f'x" onerror="{CALL}'}
    for cell in hostile.cells:
        if cell.cell_type == "markdown":
            head, _, rest = cell.source.partition("\n")
            cell.source = f"{head} {BREAKOUT}\n{rest}\n\n{MARKDOWN}"
            cell.attachments = {"a.png": png, BREAKOUT: png}
        elif cell.metadata.tags != ["parameters"]:
            cell.source = f"open({str(mark)!r}, 'w')  # {SCRIPT}"
            cell.metadata[BREAKOUT] = HTML
        if cell.metadata.tags == ["judged"]:
            for record in cell.outputs[0].data[CLAIMS_MIME]:
                record |= {"paper": key, "statement": HTML, "source": BREAKOUT, "unit": BREAKOUT}
            cell.outputs[0].data["text/html"] = HTML
        if cell.metadata.tags == ["hostile"]:
            cell.outputs = [synthetic.shown_as(data) for data in OUTPUTS]
            cell.outputs.append(new_output("stream", name=BREAKOUT, text=f"\x1b[31m{SCRIPT}"))
            cell.outputs.append(new_output("error", ename="E", evalue="", traceback=[HTML]))
        if cell.metadata.tags == ["frontier"]:
            cell.outputs = [synthetic.shown_as({PLOTLY_MIME: FIGURE})]
    shared = {"paper": key, "input": BREAKOUT, "method": HTML, "measure": "energy_j", "value": 1.0}
    hostile.cells[-2].outputs = [synthetic.shown_as({SHARED_MIME: [shared | {"standin": False}]})]
    hostile.cells.insert(2, new_raw_cell(HTML))
    hostile.cells[0].id = "payload"
    hostile.metadata |= {"title": BREAKOUT, "authors": [{"name": HTML}]}
    hostile.metadata["labkit"]["paper"] = key
    return hostile
