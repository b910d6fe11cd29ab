"""Formulas: what a notebook may write becomes MathML, what it may not is refused with a reason."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from labkit.workbook.export.markup import to_mathml


@pytest.mark.parametrize(
    ("tex", "text"),
    [
        (r"\frac{S-1}{M+S-1}", "S−1M+S−1"),
        (r"34 + 5\frac{as}{h}", "34+5ash"),
        (r"\eta E + (1-\eta) P_{\max} T", "ηE+(1−η)PmaxT"),
        (r"\lceil d_0/n \rceil", "⌈d0/n⌉"),
        (r"\begin{aligned} a &= b \\ c &\le d \end{aligned}", "a=bc≤d"),
        (r"\arg\min_b C(b)", "argminbC(b)"),
        (r"\text{if } x < y", "if x<y"),
        (r"10\,\text{GB} \approx 2^{33}", "10GB≈233"),
        (r"x \label{eq} \nonumber", "x"),
    ],
)
@pytest.mark.parametrize("display", [False, True])
def test_formulas_say_what_was_written(tex: str, text: str, display: bool) -> None:
    element = ElementTree.fromstring(to_mathml(tex, display=display))
    assert element.tag == "math"
    assert element.get("display") == ("block" if display else "inline")
    said = "".join(element.itertext())
    assert said.replace("\xa0", " ").replace("\u2061", "") == text


def test_limits_stand_below_their_operator_in_display_only() -> None:
    assert "<munder><mo>min</mo>" in to_mathml(r"\min_{t} E", display=True)
    assert "<msub><mo>min</mo>" in to_mathml(r"\min_{t} E", display=False)


@pytest.mark.parametrize(
    ("tex", "reason"),
    [
        (r"\frac{a}{b", "braces"),
        (r"x}", "braces"),
        (r"\nosuchcommand{x}", r"\\nosuchcommand is not known"),
        (r"\frac{a}", "missing|Missing"),
        (r"x^", "Missing|missing"),
        (r"a & b", "stray &"),
    ],
)
def test_a_broken_formula_is_refused_with_a_reason(tex: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        to_mathml(tex, display=False)
