"""Token ids by a tokenizer's own file, which is made here."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedprox as fp

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "sun", "sea"]


def file_of(words: list[str]) -> dict[str, Any]:
    """A tokenizer of words between two special tokens, which pads to six by itself."""
    ids = {word: i for i, word in enumerate(words)}
    special = [{"id": ids[w], "content": w} for w in ("[CLS]", "[SEP]")]
    sides = [{"SpecialToken": {"id": s["content"], "type_id": 0}} for s in special]
    text = {"Sequence": {"id": "A", "type_id": 0}}
    return {
        "version": "1.0",
        "padding": {
            "strategy": {"Fixed": 6},
            "direction": "Right",
            "pad_to_multiple_of": None,
            "pad_id": 1,
            "pad_type_id": 0,
            "pad_token": "[UNK]",
        },
        "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [sides[0], text, sides[1]],
            "pair": [text],
            "special_tokens": {
                s["content"]: {"id": s["content"], "ids": [s["id"]], "tokens": [s["content"]]}
                for s in special
            },
        },
        "model": {"type": "WordLevel", "vocab": ids, "unk_token": "[UNK]"},
    }


def test_texts_become_padded_ids(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers", reason="an optional extra")
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(file_of(WORDS)))
    tokens = fp.datasets.tokenizer(tmp_path, length=4)
    found = tokens(iter(["the sun", "the moon the sun", ""]))
    assert found.dtype == np.int32
    assert found.tolist() == [[2, 4, 5, 3], [2, 4, 1, 3], [2, 3, 0, 0]]
    assert tokens([]).shape == (0, 4)
    with pytest.raises(fp.InputError, match=r"tokenizer: one text; give a list of texts"):
        tokens("the sun")
    with pytest.raises(fp.InputError, match=r"tokenizer: NoneType where a text is due"):
        tokens([None])  # type: ignore[list-item]
    path.write_text(json.dumps(file_of(WORDS[1:])))
    with pytest.raises(fp.InputError, match=r"json: token 0 is '\[UNK\]'; it must be padding"):
        fp.datasets.tokenizer(path, length=4)(["moon"])
    for length in (0, 1.5):
        with pytest.raises(fp.InputError, match=f"tokenizer.length = {length}"):
            fp.datasets.tokenizer(path, length=length)  # type: ignore[arg-type]
    for content in ("", "{}", "[" * 10**5):
        path.write_text(content)
        with pytest.raises(fp.InputError, match=r"json: not a tokenizer's file: "):
            fp.datasets.tokenizer(path, length=4)
    path.unlink()
    with pytest.raises(fp.InputError, match=r"tokenizer.json: no such file"):
        fp.datasets.tokenizer(tmp_path / "tokenizer.json", length=4)


def test_without_the_library_one_line_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(fp.InputError, match=r"the package tokenizers is not installed: .*tokeniz"):
        fp.datasets.tokenizer("tokenizer.json", length=4)
