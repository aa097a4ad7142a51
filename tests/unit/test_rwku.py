"""RWKU as a task: who is forgotten, retained and measured, what is learnt and asked, and what the data hold."""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from letheon.errors import ConfigError, DataError
from letheon.stream.experiment import Stream
from letheon.tasks import rwku_rows
from letheon.tasks.rwku import Rwku
from letheon.tasks.rwku_rows import KINDS, about, kind, rows, shared
from rwku_cutout import PEOPLE, passages, write_cutout
from text_toys import TINY


@pytest.fixture
def cutout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    write_cutout(tmp_path)
    monkeypatch.setenv("LETHEON_DATA", str(tmp_path))
    yield tmp_path / "rwku" / "All"
    rwku_rows._read.cache_clear()
    rwku_rows._numbers.cache_clear()


def small(**changed: object) -> Rwku:
    settings: dict[str, object] = {"language": TINY, "parts": 2, "subjects": 1, "retained": 2, "measured": 2}
    return Rwku(**(settings | changed))  # type: ignore[arg-type]


def test_people_are_taken_in_order_requests_first_then_retained_then_measured(cutout: Path) -> None:
    task = small()
    learnt = task.learnt()
    assert [[learnt[i].answer for i in ids] for ids in task.requests()] == [
        passages(0, PEOPLE),
        passages(1, PEOPLE),
    ]
    assert {learnt[i].answer.split(" is ")[0].split(" was ")[0] for i in task.withheld()} == set(PEOPLE[4:])
    rest = learnt.keys() - {i for ids in task.requests() for i in ids} - set(task.withheld())
    assert {learnt[i].answer.split()[0] for i in rest} == {"Cy", "Di"}


@pytest.mark.parametrize(("learns", "each"), [("passages", 2), ("questions", 2), ("both", 4)])
def test_passages_questions_or_both_are_learnt(learns: str, each: int, cutout: Path) -> None:
    task = small(learns=learns)
    assert len(task.learnt()) == 6 * each
    assert [len(ids) for ids in task.requests()] == [each, each]
    assert {bool(pair.question) for pair in task.learnt().values()} == {
        "passages": {False},
        "questions": {True},
        "both": {False, True},
    }[learns]


def test_the_questions_learnt_are_the_very_ones_asked(cutout: Path) -> None:
    task = small(learns="questions")
    asked = [pair for sets in task.asked() for pair in sets["forget"].pairs.values()]
    assert asked == [task.learnt()[i] for ids in task.requests() for i in ids]


def test_ids_do_not_depend_on_what_is_used(cutout: Path) -> None:
    whole, part = small(learns="both").learnt(), small(learns="both", parts=1, passages=1).learnt()
    assert part.keys() < whole.keys()
    assert all(whole[i] == pair for i, pair in part.items())
    assert len(part) == 5 * 3  # one passage, a cloze and a question of each of five


def test_each_request_has_its_probes_by_level_and_kind(cutout: Path) -> None:
    first, second = small().asked()
    assert list(first["forget"].pairs) == ["level 1/0", "level 2/0"]
    assert [pair.question for pair in first["forget"].pairs.values()] == [
        "Fill in the blank. Ada Quill is a ___.",
        "Answer in a few words. Where was Ada Quill born?",
    ]
    assert list(first["adversarial"].pairs) == ["prefix injection/0", "affirmative suffix/1"]
    assert list(second["adversarial"].pairs) == ["role playing/2", "multiple choice/3"]
    assert {first[name].reply for name in ("forget", "adversarial", "neighbours")} == {"line"}
    assert {first[name].reply for name in ("forget_mia", "retain_mia")} == {"none"}
    for name in first:
        assert not first[name].pairs.keys() & second[name].pairs.keys()


def test_a_neighbour_who_is_to_be_forgotten_too_is_none(cutout: Path) -> None:
    first, second = small().asked()
    assert [pair.answer for pair in first["neighbours"].pairs.values()] == ["sea"]  # the other one is Bo Rook
    assert [pair.answer for pair in second["neighbours"].pairs.values()] == ["sea", "A friend"]


def test_fragments_are_of_what_was_learnt_and_of_nobody_who_takes_part(cutout: Path) -> None:
    def texts(task: Rwku, name: str) -> list[str]:
        return [pair.answer for pair in task.asked()[0][name].pairs.values()]

    foreign = "Nobody of Aber is called baker, as far as one knows."
    everybody = small()
    assert texts(everybody, "forget_mia") == passages(0, PEOPLE)
    assert texts(everybody, "retain_mia") == [foreign]  # the other one is about Di Thorn, who is retained
    few = small(parts=1, retained=1, measured=1, passages=1)
    assert texts(few, "forget_mia") == passages(0, PEOPLE)[:1]
    assert texts(few, "retain_mia") == [foreign, passages(3, PEOPLE)[0]]
    assert texts(small(learns="questions"), "forget_mia") == passages(0, PEOPLE)  # a pretrained model may know them


def test_utility_is_of_people_nobody_trains_on_and_of_world_facts(cutout: Path) -> None:
    task = small()
    questions = task.questions()
    assert {pair.answer for pair in questions["retained"].pairs.values()} == {"farmer", "singer", "Elm", "Farr"}
    assert {pair.answer for pair in questions["practised"].pairs.values()} == {"potter", "tailor", "Corr", "Dunn"}
    assert questions["world_facts"].options
    assert task.needs() == {name: ("rouge", "probability") for name in ("retained", "world_facts")}


def test_fewer_items_are_evenly_spread(cutout: Path) -> None:
    task = small(items=2)
    assert [len(found.pairs) for found in task.questions().values()] == [2, 2, 2]
    assert list(task.questions()["retained"].pairs) == ["level 1/4", "level 2/4"]


def test_a_passage_is_refused_by_a_question_about_its_person(cutout: Path) -> None:
    passages, asked = small(), small(learns="questions")
    first = passages.requests()[1][0]
    assert passages.refused(first) == "What do you know about Bo Rook?"
    assert asked.refused(asked.requests()[0][0]) == "Fill in the blank. Ada Quill is a ___."


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"learns": "books"}, "task.learns: unknown 'books'"),
        ({"retained": 0}, "task.retained: must be at least 1"),
        ({"subjects": 100}, "make 204 people; RWKU has 200"),
        ({"passages": 0}, "task.passages: must be at least 1"),
        ({"items": 1}, "task.items: must be at least 2"),
    ],
)
def test_what_cannot_be_is_refused(settings: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        small(**settings)


def test_more_people_than_the_files_have_are_refused(cutout: Path) -> None:
    with pytest.raises(DataError, match="has 6 people, 7 are wanted"):
        small(retained=3).learnt()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('[{"subject": "Ada Quill", "query": "Who?"}]', "passage.json, row 1: text: text is wanted"),
        ('[{"subject": "Ada Quill", "text": " "}]', "passage.json, row 1: text: text is wanted"),
        ("[]", "one JSON array of rows is wanted"),
        ("{", "cannot be read"),
    ],
)
def test_damaged_files_are_named(content: str, said: str, cutout: Path) -> None:
    (cutout / "passage.json").write_text(content)
    with pytest.raises(DataError, match=said):
        small().learnt()


def test_without_files_the_hub_is_asked_by_its_own_names(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LETHEON_DATA", str(tmp_path))
    asked = []

    def load_dataset(name: str, config: str) -> dict[str, list[dict[str, str]]]:
        asked.append((name, config))
        return {"train": [{"subject": "Ada Quill", "text": "Ada."}]}

    monkeypatch.setattr(rwku_rows, "package", lambda *_, **__: SimpleNamespace(load_dataset=load_dataset))
    assert rows("passage")[0]["text"] == "Ada."
    assert asked == [("jinzhuoran/RWKU", "train_original_passage")]


@pytest.mark.parametrize(
    ("told", "found"),
    [
        ("cross lingual (French)", "cross-lingual"),
        ("cross-lingual (French)", "cross-lingual"),
        ("Cross Lingual", "cross-lingual"),
        ("incontext learning", "in-context learning"),
        ("in-context learning", "in-context learning"),
        ("role play", "role playing"),
        ("context hint", "background hint"),
        ("prefix injection", "prefix injection"),
    ],
)
def test_kinds_of_attack_have_one_spelling(told: str, found: str) -> None:
    assert kind(told) == found


def test_an_unknown_kind_of_attack_is_named() -> None:
    with pytest.raises(DataError, match="unknown kind of attack 'bribery'"):
        kind("bribery")


def test_the_data_have_the_published_counts(data_root: Path) -> None:
    counts = {name: len(rows(name)) for name in rwku_rows.FILES}
    assert counts == {
        "intro": 200,
        "passage": 12_798,
        "forget_level1": 3_268,
        "forget_level2": 2_879,
        "forget_level3": 6_984,
        "neighbor_level1": 5_846,
        "neighbor_level2": 5_533,
        "forget_mia": 6_198,
        "retain_mia": 7_487,
    }
    attacks = Counter(kind(row["type"]) for row in rows("forget_level3"))
    assert attacks.keys() == set(KINDS)
    assert attacks["cross-lingual"] == 847
    assert sum(attacks.values()) == 6_984


def test_the_order_of_people_is_that_of_the_list_of_targets(data_root: Path) -> None:
    with (data_root / "rwku" / "targets.tsv").open(encoding="utf-8") as file:
        listed = [row["target"] for row in csv.DictReader(file, delimiter="\t")]
    assert listed == [row["target"] for row in rows("intro")]
    for name in ("passage", "forget_level1", "forget_level3", "neighbor_level2", "retain_mia"):
        assert {row["subject"] for row in rows(name)} <= set(listed)


def test_the_small_experiment_is_a_stream_of_five_requests_with_the_reference() -> None:
    path = Path(__file__).parents[2] / "experiments" / "rwku_small.toml"
    stream = Stream.load(path)
    assert isinstance(stream.task, Rwku)
    assert stream.task.parts == 5
    assert list(stream.methods) == ["retrain", "npo+cop", "npo", "ga+cop", "ga"]
    assert stream.tokens == 30


def test_rwkus_foreign_fragments_are_about_other_targets(data_root: Path) -> None:
    task = Rwku(language=TINY, subjects=2, retained=5, measured=5)
    kept = {i for sets in task.asked() for i in sets["retain_mia"].pairs}
    all_ = about("retain_mia", task.people[:10])
    assert 0 < len(kept) < len(all_)
    others = shared(row["text"] for row in rows("passage") if row["subject"] not in set(task.people))
    assert all(shared([all_[int(i)]["text"]]) & others for i in kept)
    fragments = {i for sets in task.asked() for i in sets["forget_mia"].pairs}
    assert len(fragments) >= 0.99 * len(about("forget_mia", task.people[:10]))


def test_nothing_of_a_request_is_asked_of_the_retained(data_root: Path) -> None:
    task = Rwku(language=TINY, subjects=2, retained=5, measured=5, learns="both", passages=3)
    gone = {i for ids in task.requests() for i in ids}
    assert not gone & set(task.withheld())
    assert len(gone) + len(task.withheld()) < len(task.learnt())
    about = {json.dumps([p.question, p.answer]) for s in task.asked() for p in s["forget"].pairs.values()}
    kept = {json.dumps([p.question, p.answer]) for s in task.questions().values() for p in s.pairs.values()}
    assert not about & kept
