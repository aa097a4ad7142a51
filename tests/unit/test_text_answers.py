"""Reading and answering: padding and batches change nothing, greedy is greedy, the end token is no word."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from letheon.errors import DataError
from letheon.metrics.measurement import Undefined
from letheon.metrics.text.of_ratios import known, of_ratios
from letheon.runtimes.alone import threads
from letheon.tasks.text import Questions
from letheon.text import answers as module_under_test
from letheon.text.answers import answers, read
from letheon.text.encoding import MASKED, Encoded
from letheon.text.exam import examine
from letheon.text.pairs import Pair
from text_toys import TINY, Toys, pair

TASK = Toys(language=TINY)
ENCODER = TASK.encoder


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    with threads(1):
        yield


@pytest.fixture(scope="module")
def model() -> Any:
    torch.manual_seed(0)
    return TASK.model().eval()


def texts() -> list[Encoded]:
    return [ENCODER.encode(pair(i).question, pair(i).answer + " And so on." * (i % 4)) for i in range(8)]


def test_a_text_reads_the_same_alone_and_among_longer_ones(model: Any) -> None:
    together = read(model, texts())
    for text, among in zip(texts(), together, strict=True):
        (alone,) = read(model, [text])
        assert alone.labels == among.labels == text.answer
        assert alone.likeliest == among.likeliest
        assert np.allclose(alone.log_probs, among.log_probs, atol=1e-5)


def test_batches_are_bounded_and_lose_no_text(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = read(model, texts())
    monkeypatch.setattr(module_under_test, "TOKENS", 60)
    small = read(model, texts())
    assert [r.labels for r in small] == [r.labels for r in whole]
    assert all(np.allclose(a.log_probs, b.log_probs, atol=1e-5) for a, b in zip(small, whole, strict=True))


def test_losses_are_those_of_the_tasks_own_loss(model: Any) -> None:
    data = ENCODER.data([pair(0)])
    with torch.no_grad():
        expected = float(TASK.loss(model(data.inputs), data.targets))
    (reading,) = read(model, [ENCODER.encode(pair(0).question, pair(0).answer)])
    assert reading.loss == pytest.approx(expected, rel=1e-5)


def test_the_end_token_is_no_word(model: Any) -> None:
    (reading,) = read(model, [ENCODER.encode("Who?", "Ada.")])
    labels, likeliest = reading.words
    assert reading.labels[-1] == ENCODER.stop
    assert ENCODER.stop not in labels
    assert len(labels) == len(likeliest) == len(reading.labels) - 1


def greedy(model: Any, question: str, new: int) -> str:
    ids = ENCODER.prompt_ids(question)
    found: list[int] = []
    for _ in range(new):
        with torch.no_grad():
            likeliest = int(model(torch.tensor([ids + found]))[0, -1].argmax())
        if likeliest == ENCODER.stop:
            break
        found.append(likeliest)
    return ENCODER.decode(found)


def test_answers_are_greedy_whoever_is_asked_beside(model: Any) -> None:
    questions = {str(i): pair(i).question for i in range(5)} | {"long": "What does Ada do all day long?"}
    told = answers(model, ENCODER, questions, new=6)
    assert list(told) == list(questions)
    assert told == {item: greedy(model, question, 6) for item, question in questions.items()}


def test_a_destroyed_model_has_no_numbers_but_a_reason(model: Any) -> None:
    broken = copy.deepcopy(model)
    broken.lm.model.norm.weight.data.fill_(float("nan"))
    (reading,) = read(broken, texts()[:1])
    assert isinstance(reading.loss, Undefined)
    assert reading.loss.status == "collapsed"


def test_min_k_plus_plus_looks_at_each_token_beside_the_models_own_spread(model: Any) -> None:
    texts = {"0": Pair("", "Ada lives in Bergen."), "1": Pair("", "Bo.")}
    exam = examine(model, ENCODER, {"read": Questions(texts, reply="none")}, new=1, identity={"model": "x"})
    for item, text in texts.items():
        encoded = ENCODER.encode(text.question, text.answer)
        logits = model(torch.tensor([encoded.ids]))[0, :-1].detach().double()
        own = [at for at, label in enumerate(encoded.labels[1:]) if label != MASKED]
        standard = []
        for at in own:
            logs = logits[at].log_softmax(0)
            centre = (logs.exp() * logs).sum()
            spread = (logs.exp() * (logs - centre) ** 2).sum().sqrt()
            standard.append(float((logs[encoded.ids[at + 1]] - centre) / spread))
        lowest = sorted(standard)[: max(1, int(len(standard) * 0.2 + 1e-9))]
        found = exam.sets["read"]["mia_min_k_plus_plus"].values[item]
        assert found == pytest.approx(-sum(lowest) / len(lowest), rel=1e-3)


def test_a_destroyed_model_has_no_membership_scores(model: Any) -> None:
    broken = copy.deepcopy(model)
    broken.lm.model.norm.weight.data.fill_(float("nan"))
    asked = {"read": Questions({"0": Pair("", "Ada lives in Bergen.")}, reply="none")}
    row = examine(broken, ENCODER, asked, new=1, identity={"model": "x"}).sets["read"]
    for name, scores in row.items():
        if name.startswith("mia_"):
            (value,) = scores.values.values()
            assert isinstance(value, Undefined), name


def test_truth_ratios_are_examined_in_all_their_definitions(model: Any) -> None:
    asked = pair(0)
    row = examine(model, ENCODER, {"forget": Questions({"0": asked})}, new=1, identity={"model": "x"}).sets["forget"]
    given = [asked.answer, asked.paraphrase, *asked.false]
    losses = [reading.loss for reading in read(model, [ENCODER.encode(asked.question, text) for text in given])]
    p = [math.exp(-float(loss)) for loss in losses]  # type: ignore[arg-type]
    geometric, arithmetic = math.prod(p[2:]) ** (1 / 3), sum(p[2:]) / 3
    assert abs(geometric - arithmetic) > 1e-6 * arithmetic
    found = {name: of_ratios(row, name, "closer").values["0"] for name in known(row)}
    closer = {name: min(r, 1 / r) for name, r in (
        ("truth_ratio", geometric / p[1]), ("arithmetic", arithmetic / p[1]), ("original", geometric / p[0]))}
    assert found == pytest.approx({
        "truth_ratio": closer["truth_ratio"],
        "truth_ratio_arithmetic": closer["arithmetic"],
        "truth_ratio_share": p[1] / (p[1] + geometric),
        "kr": 1 - closer["truth_ratio"],
        "kr_signed": 1 - min(1, geometric / p[1]),
        "kr_original": 1 - closer["original"],
        "above_one": float(geometric > p[1]),
    }, rel=1e-4)  # fmt: skip
    with pytest.raises(DataError, match="kr: is not among what was examined: em"):
        of_ratios({"em": row["em"]}, "kr", "closer")


def test_questions_without_false_answers_have_no_truth_ratio(model: Any) -> None:
    own = Questions({"0": Pair("Who?", "Ada."), "1": Pair("And who?", "Bo.")})
    asked = {"own": own, "toys": Questions({"0": pair(0)})}
    exam = examine(model, ENCODER, asked, new=4, identity={"model": "x"})
    assert "log_ratio" not in exam.sets["own"]
    assert "log_ratio" in exam.sets["toys"]
    assert set(exam.sets["own"]["em"].values) == {"0", "1"}
