"""Where an HTML page would fetch something from outside itself."""

from __future__ import annotations

import re

from bs4 import BeautifulSoup

_FETCHES = {
    "script": ("src",),
    "link": ("href",),
    "img": ("src", "srcset"),
    "iframe": ("src",),
    "object": ("data",),
    "embed": ("src",),
    "source": ("src", "srcset"),
    "video": ("src", "poster"),
    "audio": ("src",),
    "image": ("href", "xlink:href"),
    "use": ("href", "xlink:href"),
    "form": ("action",),
}


def parse(html: str) -> BeautifulSoup:
    return BeautifulSoup(html, "html.parser")


def resources(html: str) -> list[str]:
    """Every address the page loads by itself, but for data: and fragments of its own."""
    soup = parse(html)
    found = [
        str(tag[name])
        for kind, names in _FETCHES.items()
        for tag in soup.find_all(kind)
        for name in names
        if tag.has_attr(name)
    ]
    styles = [tag.get_text() for tag in soup.find_all("style")]
    styles += [str(tag["style"]) for tag in soup.find_all(style=True)]
    for style in styles:
        found += re.findall(r"url\(\s*['\"]?([^'\")]+)", style)
        found += re.findall(r"@import\s+['\"]([^'\"]+)", style)
    return [address for address in found if not address.startswith(("data:", "#"))]


def policy(html: str) -> str:
    tag = parse(html).find("meta", attrs={"http-equiv": "Content-Security-Policy"})
    return str(tag["content"]) if tag else ""


def visible_text(html: str) -> str:
    """What a reader sees, without code."""
    soup = parse(html)
    for tag in soup.find_all(["script", "style", "code", "pre", "template"]):
        tag.decompose()
    return soup.get_text(" ")
