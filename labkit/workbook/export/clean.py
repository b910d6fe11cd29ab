"""HTML that is not ours, cleaned: the one place that decides what of it reaches a page.

Notebooks, their outputs and the queue may come from strangers. nh3 parses them as a browser does,
keeps what is listed here and writes it anew. What is listed shows text, tables, pictures and
formulas; none of it runs, fetches, lies over the page, or takes a class that our scripts look for.
"""

from __future__ import annotations

import functools
import re
from typing import Any

from labkit.files import encoded

_HTML = """
    a abbr b bdi bdo blockquote br caption cite code col colgroup dd del details dfn div dl dt em
    figcaption figure h1 h2 h3 h4 h5 h6 hr i img input ins kbd li mark ol p pre q rp rt ruby s samp
    small span strike strong sub summary sup table tbody td tfoot th thead time tr u ul var wbr
"""
_MATHML = """
    math menclose merror mfrac mi mmultiscripts mn mo mover mpadded mphantom mprescripts mroot
    mrow ms mspace msqrt mstyle msub msubsup msup mtable mtd mtext mtr munder munderover
"""
_SVG = """
    svg g path rect circle ellipse line polyline polygon text tspan defs linearGradient
    radialGradient stop clipPath title desc
"""
_GONE = """
    script style iframe frame frameset object embed noscript template textarea select option audio
    video noembed noframes xmp plaintext head
"""
TAGS = frozenset(f"{_HTML} {_MATHML} {_SVG}".split())
DROPPED = frozenset(_GONE.split())
"""Elements that go with all they hold; of others that are not listed the content stays."""

_EVERYWHERE = {"id", "class", "style", "lang", "dir", "title", "aria-label", "aria-hidden"}
_OF_MATHML = """
    accent accentunder columnalign columnspacing depth display displaystyle fence height largeop
    linethickness lspace mathbackground mathcolor mathsize mathvariant maxsize minsize movablelimits
    notation rowalign rowspacing rspace scriptlevel separator stretchy symmetric voffset width
"""
_OF_SVG = """
    clip-path cx cy d dx dy fill fill-opacity fill-rule font-family font-size font-style
    font-weight gradientTransform gradientUnits height offset opacity points preserveAspectRatio r
    rx ry stop-color stop-opacity stroke stroke-dasharray stroke-linecap stroke-linejoin
    stroke-opacity stroke-width text-anchor transform viewBox width x x1 x2 xmlns y y1 y2
"""
_CELL = {"align", "colspan", "headers", "rowspan", "scope", "valign"}
_ATTRIBUTES: dict[str, set[str]] = {
    "*": _EVERYWHERE,
    **{tag: set(_OF_MATHML.split()) for tag in _MATHML.split()},
    **{tag: set(_OF_SVG.split()) for tag in _SVG.split()},
    **dict.fromkeys(("td", "th", "tr"), _CELL),
    "a": {"href"},
    "img": {"src", "alt", "width", "height"},
    "input": {"checked"},
    "details": {"open"},
    "ol": {"start", "type"},
    "table": {"border"},
    "time": {"datetime"},
}
_VALUES = {
    "a": {"target": {"_blank"}, "rel": {"noopener noreferrer"}},
    "input": {"type": {"checkbox"}},  # of Markdown's lists of tasks
    "div": {"role": {"alert", "note", "status"}},
}
_FIXED = {"input": {"disabled": ""}}
_PROPERTY = re.compile(
    r"(background(-color)?|border(-\w+)*|padding(-\w+)?|margin(-\w+)?|color|caption-side|display"
    r"|font-(size|style|weight|variant-numeric)|line-height|list-style-type|(min-|max-)?(width|height)"
    r"|text-(align|decoration)|vertical-align|white-space)"
)
_VALUE = re.compile(r"([\w\s.,%#+!]|-(?![\d.])|\b(rgba?|hsla?)\([\d\s.,%]*\))*")
_LINK = re.compile(r"(https?://|#|[\w.-]+\.html(#|$))", re.IGNORECASE)
_PICTURE = re.compile(
    r"data:image/([\w.+-]+;base64,[\w+/\s]*={0,2}|svg\+xml(;[\w=-]+)?,[^\"<>]*)", re.IGNORECASE
)


def clean(html: str) -> str:
    """``html`` as a fragment of which nothing runs.

    >>> clean('<p onclick="f()" style="color:red;position:fixed">a<script>f()</script>b')
    '<p style="color:red">ab</p>'
    >>> clean('<a href="javascript:f()">a</a> <a href="#b">b</a>')
    '<a>a</a> <a href="#b">b</a>'
    """
    return str(_cleaner().clean(encoded(html).decode()))


@functools.cache
def _cleaner() -> Any:
    import nh3

    return nh3.Cleaner(
        tags=set(TAGS),
        clean_content_tags=set(DROPPED),
        attributes=_ATTRIBUTES,
        tag_attribute_values=_VALUES,
        set_tag_attribute_values=_FIXED,
        attribute_filter=_kept,
        url_schemes={"http", "https", "data"},
        link_rel=None,
    )


def _kept(tag: str, name: str, value: str) -> str | None:
    """An attribute's value as far as it is kept; None: it goes."""
    if name == "class":
        return " ".join(filter(_classes().__contains__, value.split())) or None
    if name == "style":
        return styles(value) or None
    if name in ("href", "src"):
        is_kept = _LINK.match(value) if name == "href" else _PICTURE.fullmatch(value)
        return value if is_kept else None
    return None if re.search(r"url\s*\((?!#)|\\", value, re.IGNORECASE) else value


def styles(text: str) -> str:
    """The declarations of a ``style`` attribute that are listed and fetch nothing.

    >>> styles("color: red; background: url(x.png); position: fixed")
    'color: red'
    """
    kept = []
    for declaration in text.split(";"):
        name, _, value = declaration.partition(":")
        if not declaration.strip() or _is_listed(name, value):
            kept.append(declaration)
    return ";".join(kept) if any(map(str.strip, kept)) else ""


def _is_listed(name: str, value: str) -> bool:
    return bool(_PROPERTY.fullmatch(name.strip().lower()) and _VALUE.fullmatch(value))


@functools.cache
def _classes() -> frozenset[str]:
    """Those that our renderer gives: to highlighted code, formulas and tables."""
    from pygments.token import STANDARD_TYPES

    own = ("bad-formula", "dataframe", "formula", "highlight", "table")
    return frozenset((*filter(None, STANDARD_TYPES.values()), *own))


_OTHER_LINK = re.compile(
    r"""<a\b(?!\s+href\s*=\s*["']https?://[^"'<>]*["']\s*>)[^<>]*>""", re.IGNORECASE
)


_MAPS = re.compile(r"(scatter|choropleth|density)(geo|map|mapbox)|choropleth")
_ALWAYS_FETCH = re.compile(r"(geo|map|mapbox)\d*")
_NAME = re.compile(r"[A-Za-z]+\d*")


def figure(value: Any) -> Any:
    """A figure (Plotly's JSON) that holds pictures as data and links to web pages only.

    Plotly draws texts itself, never as HTML, and knows a few tags, of which only links lead away.
    Maps go whole: their outlines, styles and tiles are fetched whatever a figure says. What a
    slider or a menu would set goes by the same rules, under names such as ``images[0].source``.

    >>> figure(["<a href='javascript:f()'>a</a>", "x <a href='https://b.org'>b</a>"])
    ['a</a>', "x <a href='https://b.org'>b</a>"]
    >>> figure({"images[0].source": "https://b.org/x.png", "geo.visible": True, "x": [1]})
    {'x': [1]}
    """
    if isinstance(value, dict):
        return {name: figure(part) for name, part in value.items() if not _fetches(name, part)}
    if isinstance(value, list):
        return [figure(part) for part in value if not _is_map(part)]
    return _OTHER_LINK.sub("", value) if isinstance(value, str) else value


def _is_map(part: Any) -> bool:
    """Whether an entry of a list is a trace of a map."""
    return isinstance(part, dict) and _is_type_of_map(part.get("type"))


def _is_type_of_map(kind: Any) -> bool:
    """Whether a trace of that type, or of one of several, is drawn on a map."""
    if isinstance(kind, list):
        return any(map(_is_type_of_map, kind))
    return isinstance(kind, str) and bool(_MAPS.fullmatch(kind.lower()))


def _fetches(name: str, value: Any) -> bool:
    """Whether an attribute of that name and value would make Plotly ask another machine."""
    parts = _NAME.findall(name)
    if any(map(_ALWAYS_FETCH.fullmatch, parts)):
        return True
    last = parts[-1] if parts else ""
    if last == "type":
        return _is_type_of_map(value)
    if last not in ("source", "geojson"):
        return False
    sources = value if isinstance(value, list) else [value]
    return any(isinstance(part, str) and not _PICTURE.fullmatch(part) for part in sources)
