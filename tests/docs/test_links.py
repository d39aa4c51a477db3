"""Relative links in Markdown lead to files of the repository, and to headings in them."""

import re
import subprocess
from pathlib import Path

import pytest

from fedprox_docs.gallery import ORDER

ROOT = Path(__file__).parents[2]

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^(`{3,}|~{3,}).*?^\1\s*$", re.MULTILINE | re.DOTALL)
INCLUDED = re.compile(r"^`{3,}\{include\} (\S+)$", re.MULTILINE)
CODE = re.compile(r"`[^`\n]*`")


def pages() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    return [path for line in listed.stdout.splitlines() if (path := ROOT / line).is_file()]


def broken(page: Path) -> list[str]:
    """The relative links of a page that lead nowhere."""
    text = CODE.sub("", FENCE.sub("", page.read_text(encoding="utf-8")))
    found = []
    for link in LINK.findall(text):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, heading = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if (
            not target.exists()
            or ROOT not in (target, *target.parents)
            or (heading and target.suffix == ".md" and heading not in slugs(target))
        ):
            found.append(link)
    return found


GENERATED = {
    *("experiment-keys.md", "node-file.md", "command.md"),
    *(f"gallery/{name}.rst" for name in ("index", *ORDER)),
    *(
        f"gallery/images/{name}.png"
        for each in ORDER
        for name in (f"sphx_glr_{each}_001", f"panel_{each}")
    ),
}
"""Pages that are made at build time, or their headings, which then checks them."""


def slugs(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and MyST make them."""
    text = page.read_text(encoding="utf-8")
    for path in INCLUDED.findall(text):
        text += (page.parent / path).read_text(encoding="utf-8")
    text = FENCE.sub("", text)
    found: set[str] = set(re.findall(r"^\(([\w-]+)\)=$", text, re.MULTILINE))
    for heading in re.findall(r"^#+ +(.*)$", text, re.MULTILINE):
        shown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\s-]", "", shown.replace("`", "").strip().lower()).replace(" ", "-")
        number = 1
        unique = slug
        while unique in found:
            unique = f"{slug}-{number}"
            number += 1
        found.add(unique)
    return found


def test_relative_links_lead_somewhere() -> None:
    generated = re.compile("|".join(map(re.escape, GENERATED)))
    found = {
        (str(page.relative_to(ROOT)), link)
        for page in pages()
        for link in broken(page)
        if not generated.search(link.partition("#")[0])
    }
    assert found == set()


def test_links_that_lead_nowhere_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.docs.test_links.ROOT", tmp_path)
    (tmp_path / "b.md").write_text("# A heading\n")
    page = tmp_path / "a.md"
    page.write_text("[a](b.md#a-heading) [b](c.md) [c](b.md#no) `[d](e.md)` [f](https://x.org)\n")
    assert broken(page) == ["c.md", "b.md#no"]
