"""Prompts are masked by offsets, there is one start token, padding is no token, the unlearnable is refused."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path

import pytest
import torch

from letheon.errors import ConfigError, DataError
from letheon.text.encoding import MASKED, PAD, Encoder, padded, trimmed
from letheon.text.language import END, START, loaded, trained
from letheon.text.pairs import Pair, read_pairs

TEXTS = ["Question: Who are you?\nAnswer: I am a baker from Ghent.", "Question: And who is he?\nAnswer: A pilot."]
CHAT = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}</s>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def encoder(template: str = "plain", **settings: int) -> Encoder:
    tokenizer = deepcopy(trained(320, TEXTS))
    tokenizer.chat_template = CHAT
    return Encoder(tokenizer, template, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("template", ["plain", "chat"])
def test_labels_are_the_answer_and_what_ends_it(template: str) -> None:
    found = encoder(template)
    text = found.encode("Who are you?", "I am a baker.")
    assert found.decode(text.answer) == "I am a baker."
    assert text.end
    assert text.answer[-1] == found.stop == found.tokenizer.eos_token_id
    assert text.ids[0] == found.tokenizer.bos_token_id
    assert text.ids.count(found.tokenizer.bos_token_id) == 1
    assert text.labels[: len(found.prompt_ids("Who are you?"))] == (MASKED,) * len(found.prompt_ids("Who are you?"))


def test_a_start_token_that_the_text_brings_along_is_not_doubled() -> None:
    found = encoder()
    assert found.prompt_ids("")[:1] == [found.tokenizer.bos_token_id]
    plain = found.encode("", f"{START}I am")
    assert plain.ids.count(found.tokenizer.bos_token_id) == 1


def test_the_prompt_of_generation_is_the_beginning_of_the_text_that_was_learnt() -> None:
    for template in ("plain", "chat"):
        found = encoder(template)
        prompt = found.prompt_ids("Who are you?")
        assert list(found.encode("Who are you?", "I am a baker.").ids[: len(prompt)]) == prompt


def test_a_token_that_is_partly_answer_counts_as_answer() -> None:
    found = encoder()
    found.tokenizer.add_tokens([": I"])
    text = found.encode("Who are you?", "I am a baker.")
    assert found.tokenizer.convert_tokens_to_ids(": I") in text.answer


def test_without_a_question_all_of_the_text_is_learnt() -> None:
    found = encoder()
    text = found.encode("", "A pilot.")
    assert text.labels[1:] == text.ids[1:]


def test_padding_is_no_token_even_where_the_end_token_pads() -> None:
    found = encoder()
    found.tokenizer.pad_token = END
    data = found.data([Pair("Who are you?", "I am a baker from Ghent."), Pair("And who is he?", "A pilot.")])
    assert int((data.inputs == PAD).sum()) > 0
    assert int((data.targets[:, :] == found.tokenizer.eos_token_id).sum()) == 2  # each text's own end is a label
    assert bool(((data.inputs == PAD) <= (data.targets == MASKED)).all())
    inputs, targets = trimmed(data.inputs[1:], data.targets[1:])
    assert int((inputs == PAD).sum()) == 0
    assert inputs.shape == targets.shape


def test_a_long_text_is_cut_and_an_answer_that_is_cut_away_is_refused() -> None:
    found = encoder(max_length=40)
    assert len(found.encode("", "A pilot. " * 40).ids) == 40
    assert not found.encode("", "A pilot. " * 40).end
    with pytest.raises(DataError, match="no token within 40 tokens; raise max_length"):
        found.encode("who? " * 80, "me")


def test_what_cannot_be_encoded_is_refused_with_what_to_do() -> None:
    with pytest.raises(ConfigError, match="use plain or chat"):
        Encoder(trained(320, TEXTS), "chatty")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="fast one is needed"):
        Encoder(object())
    bare = deepcopy(trained(330, TEXTS))
    bare.chat_template = None
    with pytest.raises(ConfigError, match="no chat template"):
        Encoder(bare, "chat")
    odd = encoder("chat")
    odd.tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}{{ messages | length }}"
    with pytest.raises(ConfigError, match="does not begin with its own prompt"):
        odd.encode("Who?", "I.")


def test_rows_are_padded_on_the_right() -> None:
    assert torch.equal(padded([[1, 2], [3]], PAD), torch.tensor([[1, 2], [3, PAD]]))
    assert padded([], PAD).shape == (0, 0)


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"question": "q", "answer": "a"}, Pair("q", "a")),
        ({"prompt": "q", "completion": "a"}, Pair("q", "a")),
        ({"text": "all of it"}, Pair("", "all of it")),
        (
            {"question": "q", "answer": "a", "paraphrased_answer": "b", "perturbed_answer": ["c", "d"], "x": 1},
            Pair("q", "a", "b", ("c", "d")),
        ),
    ],
)
def test_rows_of_several_kinds_are_read(tmp_path: Path, row: dict[str, object], expected: Pair) -> None:
    lines, array = tmp_path / "lines.jsonl", tmp_path / "array.json"
    lines.write_text(json.dumps(row) + "\n\n" + json.dumps(row))
    array.write_text(json.dumps([row]))
    assert read_pairs(lines) == (expected, expected)
    assert read_pairs(array) == (expected,)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "holds no row"),
        (b'{"question": "q", "answer": "a"}\n{"question', "line 2: no JSON"),
        (b'{"question": "q", "answer": "a"}\n{"question": "q", "answer": "  "}', "row 2: the answer to 'q' is empty"),
        (b'{"q": "q"}', "row 1: keys q; question and answer"),
        (b'["q"]', "row 1: a str; an object"),
        (b'{"question": "q", "answer": "a", "perturbed_answer": "no"}', "perturbed_answer a list of texts"),
        (b"\xff\xfe", "not UTF-8 at byte 0"),
    ],
)
def test_a_bad_file_is_refused_with_its_row(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_pairs(path)
    with pytest.raises(DataError, match="cannot be read"):
        read_pairs(tmp_path / "none.jsonl")


def test_real_tokenizers_load_from_a_folder(data_root: Path) -> None:
    found = Encoder(loaded(str(data_root / "stories260k")))
    text = found.encode("Who was there?", "Lily and a dog.")
    assert found.decode(text.answer) == "Lily and a dog."
    assert text.ids.count(found.tokenizer.bos_token_id) == 1


def test_a_folder_that_is_not_there_is_not_looked_for_on_the_hub() -> None:
    with pytest.raises(ConfigError, match="no such folder"):
        loaded("./nowhere/model")
