"""Formulas as MathML, which browsers show by themselves: no script and no font from elsewhere."""

import re
from typing import Any

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError

Translator = Any

ALIGNED = re.compile(r"(?<!\\)&|\\\\")
"""What makes a displayed formula one of several aligned lines."""

REPLACED = (
    (re.compile(r"\\(begin|end)\{(aligned|align\*?)\}"), r"\\\1{split}"),
    (re.compile(r"\\arg(?![a-zA-Z])"), r"\\operatorname{arg}"),
    (re.compile(r"\\[bB]igg?[lr]?\s*\\\|"), r"\\|"),
)
"""Commands that latex2mathml does not know, and ones that it knows."""

UNKNOWN = re.compile(r">(\\[a-zA-Z|]+)<")
"""A command that was left as it is."""


def to_mathml(latex: str, *, display: bool) -> str:
    """A formula as an element `<math>`.

    Raises:
        ExtensionError: The formula cannot be converted.
    """
    text = " ".join(latex.split())
    for pattern, replacement in REPLACED:
        text = pattern.sub(replacement, text)
    if display and ALIGNED.search(text) and r"\begin" not in text:
        text = rf"\begin{{split}} {text} \end{{split}}"
    try:
        made = convert(text, display="block" if display else "inline")
    except Exception as error:  # latex2mathml raises errors of many kinds
        raise ExtensionError(f"formula {latex!r}: {error!r}") from error
    unknown = UNKNOWN.search(made)
    if unknown:
        raise ExtensionError(f"formula {latex!r}: {unknown[1]} is not known")
    return made


def _inline(self: Translator, node: nodes.math) -> None:
    self.body.append(to_mathml(node.astext(), display=False))
    raise nodes.SkipNode


def _block(self: Translator, node: nodes.math_block) -> None:
    self.body.append(self.starttag(node, "div", CLASS="math"))
    self.body.append(to_mathml(node.astext(), display=True))
    self.body.append("</div>\n")
    raise nodes.SkipNode


def setup(app: Sphinx) -> None:
    """Register the renderer `mathml`."""
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))
