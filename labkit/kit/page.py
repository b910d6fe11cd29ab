"""The frame of every page: templates, style, scripts, and the policy that forbids fetching."""

from __future__ import annotations

import base64
import functools
import hashlib
import importlib.util
import json
import re
from collections.abc import Mapping
from html import escape
from importlib import metadata, resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labkit import __version__
from labkit.errors import LabkitError
from labkit.files import encoded
from labkit.quantities import is_finite_number, number, plain

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

# Figures drawn by WebGL compile their shaders' wrappers, which the policy must then allow.
_WEBGL = ('"scattergl"', '"scatter3d"', '"surface"', '"mesh3d"', '"splom"', '"parcoords"', '"cone"')
# A file opened from disk has no origin of its own, so 'self' alone would not match it.
_SELF = ["'self'", "file:"]
_OWN_SCRIPTS = "OWN-SCRIPTS"  # in a policy until its page is rendered: their hashes
_MOST_SERIES = 12  # that a figure's text names
# plotly.js, as the templates call it. Source: https://plotly.com; under the MIT licence.
_CARRIED = {"plotly_script": ("plotly", "package_data/plotly.min.js")}
_LIBRARIES = ("jinja2", "plotly")


def render(template: str, *, package: str = "labkit.kit", **values: Any) -> str:
    """Fill the page ``template`` with ``values``; text is escaped, HTML is not (``Markup``).

    Templates are those of ``package`` and, below them, the kit's. The page's policy allows the
    scripts that its template writes by ``script(…)`` and no other.

    Args:
        template: the file's name.
        package: where it lies.
        values: what it may name.
    """
    hashes: dict[str, None] = {}

    def script(*texts: str) -> Markup:
        """Write an inline script that the policy allows."""
        from markupsafe import Markup

        hashes[_hash(text := "".join(texts))] = None
        return Markup(f"<script>{text}</script>")

    html = environment(package).get_template(template).render(script=script, **values)
    return html.replace(_OWN_SCRIPTS, " ".join(hashes), 1)


def with_script(html: str, text: str) -> str:
    """Put one more script at the end of the rendered page ``html``, whose policy allows it."""
    before, _, after = html.rpartition("</body>")
    allowed = before.replace("script-src ", f"script-src {_hash(text)} ", 1)
    return f"{allowed}<script>{text}</script></body>{after}"


@functools.lru_cache(maxsize=32)
def _hash(text: str) -> str:
    """How a policy names the inline script ``text``.

    >>> _hash("")
    "'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='"
    """
    return f"'sha256-{base64.b64encode(hashlib.sha256(encoded(text)).digest()).decode()}'"


def json_for_script(value: Any) -> str:
    """Write ``value`` as JSON that may stand inside a ``<script>`` of an HTML page.

    >>> json_for_script({"text": "</script>", "y": [1, float("nan")]})
    '{"text":"\\\\u003c/script>","y":[1,null]}'
    """
    text = json.dumps(plain(value), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c")


def plot(figure: Mapping[str, Any]) -> str:
    """Write the HTML of a figure (Plotly's JSON) that :file:`plots.js` draws, and its text in
    words.
    """
    layout = figure.get("layout", {})
    controls = bool(layout.get("sliders") or layout.get("updatemenus"))
    role = "group" if controls else "img"
    label = escape(figure_text(figure))
    return (
        f'<figure class="plot" style="--height:{layout.get("height") or 450:g}px" '
        f'data-controls="{_has_states(layout):d}">'
        f'<script type="application/json">{json_for_script(figure)}</script>'
        f'<div class="canvas" role="{role}" aria-label="{label}"></div></figure>'
    )


def _has_states(layout: Mapping[str, Any]) -> bool:
    """Tell whether the controls are those of ``workbook.explore``, which :file:`explore.js`
    replaces.
    """
    try:
        (slider,) = layout["sliders"]
        menus = layout.get("updatemenus") or []
        buttons = [button for menu in menus for button in menu["buttons"]]
        rows = [button["args"][1]["sliders[0].steps"] for button in buttons] or [slider["steps"]]
        states = [(step["label"], len(step["args"])) for row in rows for step in row]
        prefix = slider["currentvalue"]["prefix"]
    except (KeyError, IndexError, TypeError, ValueError):
        return False
    return len(menus) < 2 and isinstance(prefix, str) and all(num == 2 for _, num in states)


def figure_text(figure: Mapping[str, Any]) -> str:
    """Say a figure in words, for readers who do not see it: title, axes, each series with its
    range.

    >>> figure_text({"layout": {"title": {"text": "It falls"}, "yaxis": {"title": {"text": "J"}}},
    ...              "data": [{"name": "ours", "x": [1, 2], "y": [7.25, 3]}]})
    'Figure: It falls. Vertical axis: J. ours: 2 points, 3 to 7.25.'
    """
    layout = figure.get("layout", {})
    title = _words(layout) or "without a title"
    axes = (("Horizontal", "xaxis"), ("Vertical", "yaxis"))
    named = [f"{way} axis: {text}" for way, axis in axes if (text := _words(layout.get(axis, {})))]
    series = [
        _series(trace) for trace in figure.get("data", []) if trace.get("visible") is not False
    ]
    shown = list(dict.fromkeys(filter(None, series)))
    rest = [f"and {len(shown) - _MOST_SERIES} more series"] if len(shown) > _MOST_SERIES else []
    return ". ".join([f"Figure: {title}", *named, *shown[:_MOST_SERIES], *rest]) + "."


def _words(titled: Mapping[str, Any]) -> str:
    """Read a title without its markup."""
    title = titled.get("title") or ""
    text = title.get("text") or "" if isinstance(title, dict) else title
    return " ".join(re.sub(r"<[^>]+>", " ", text).split())


def _series(trace: Mapping[str, Any]) -> str:
    """Say a trace's name, how many points it has, and the range of what it measures."""
    values = trace.get("x" if trace.get("orientation") == "h" else "y")
    values = values if isinstance(values, (list, tuple)) else ()
    numbers = list(filter(is_finite_number, values))
    if not numbers:
        return str(trace.get("name") or "")
    low = number(min(numbers), 3)
    high = number(max(numbers), 3)
    span = low if low == high else f"{low} to {high}"
    points = f"{len(values)} point{'s' if len(values) > 1 else ''}"
    return f"{trace.get('name') or 'one series'}: {points}, {span}"


def policy(
    body: str = "",
    *,
    own_files: bool = False,
    framed: str = "",
    scripts: str = _OWN_SCRIPTS,
) -> str:
    """Write the content security policy: it allows the page's own scripts, or files beside it too.

    Args:
        body: the page's figures, some of which compile their shaders.
        own_files: allow files beside the page.
        framed: the HTML of a page that shows this one in frames, and may run its own scripts.
        scripts: which inline scripts may run; :func:`render` fills them in.

    >>> policy(scripts="'sha256-xyz'")
    "default-src 'none'; script-src 'sha256-xyz'; style-src 'unsafe-inline'; \
img-src data: blob:; font-src data:; base-uri 'none'; form-action 'none'"
    """
    sources = [scripts]
    if own_files:
        sources += _SELF
    if any(kind in body for kind in _WEBGL):
        sources.append("'unsafe-eval'")
    sources += map(_hash, re.findall(r"<script>(.*?)</script>", framed, re.DOTALL))
    frames = f"frame-src {' '.join(_SELF)}; " if framed else ""
    return (
        f"default-src 'none'; {frames}script-src {' '.join(sources)}; style-src 'unsafe-inline'; "
        "img-src data: blob:; font-src data:; base-uri 'none'; form-action 'none'"
    )


@functools.cache
def carried(package: str, *names: str) -> str:
    """Read scripts or style sheets that an installed package carries, to stand inside a page.

    Nothing in them begins or ends a ``<script>``.
    """
    text = "\n".join(package_file(package, name) for name in names)
    return text.replace("</script", "\\x3c/script").replace("<!--", "\\x3c!--")


def package_file(package: str, name: str) -> str:
    """Find a file that an installed package carries, without importing the package."""
    spec = importlib.util.find_spec(package)
    for folder in (spec.submodule_search_locations or []) if spec else []:
        path = Path(folder) / name
        if path.is_file():
            return path.read_text(encoding="utf-8")
    raise LabkitError(f"{package} does not carry {name}: reinstall labkit's requirements")


@functools.cache
def code_style(*, dark: bool = True) -> str:
    """Write the colours of highlighted code, for a light page and, with ``dark``, for a dark one
    too.
    """
    from pygments.formatters import HtmlFormatter

    light = HtmlFormatter(style="xcode").get_style_defs(".highlight")
    if not dark:
        return str(light)
    night = HtmlFormatter(style="github-dark").get_style_defs('[data-theme="dark"] .highlight')
    return f"{light}\n@media screen {{\n{night}\n}}"


@functools.cache
def fingerprint(*packages: str, libraries: tuple[str, ...] = ()) -> str:
    """Hash what a page comes out of besides its content: code and libraries.

    ``packages`` are those whose code and templates make the page, besides the kit's; ``libraries``
    the distributions that they make it with, besides the kit's.
    """
    digest = hashlib.sha256(__version__.encode())
    for package in ("labkit.kit", *packages):
        folder = Path(str(resources.files(package)))
        for path in sorted((*folder.glob("*.py"), *folder.glob("templates/*.*"))):
            digest.update(path.name.encode() + path.read_bytes())
    for name in sorted({*_LIBRARIES, *libraries}):
        digest.update(f"{name}={metadata.version(name)}".encode())
    return digest.hexdigest()


@functools.cache
def environment(package: str) -> Environment:
    """Load the templates of ``package`` over the kit's; its pages may add globals of their own."""
    from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

    places = dict.fromkeys((package, "labkit.kit"))
    loader = ChoiceLoader([PackageLoader(place, "templates") for place in places])
    environment = Environment(
        loader=loader,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    environment.globals.update(
        {name: functools.partial(carried, *files) for name, files in _CARRIED.items()},
        asset=lambda name: loader.get_source(environment, name)[0],  # a style sheet or a script
        code_style=code_style,
        version=__version__,
    )
    return environment
