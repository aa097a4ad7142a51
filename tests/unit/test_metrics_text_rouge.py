"""ROUGE-L recall and the stemmer under it."""

from __future__ import annotations

import pytest

from letheon.metrics.measurement import Undefined
from letheon.metrics.text.porter import stem
from letheon.metrics.text.rouge import common, rouge_l_recall, rouge_l_recalls, words

STEMS = """
    caresses:caress ponies:poni ties:tie caress:caress cats:cat feed:feed agreed:agre plastered:plaster
    bled:bled motoring:motor sing:sing conflated:conflat troubled:troubl sized:size hopping:hop tanned:tan
    falling:fall hissing:hiss fizzed:fizz failing:fail filing:file happy:happi sky:sky relational:relat
    conditional:condit rational:ration valenci:valenc hesitanci:hesit digitizer:digit conformabli:conform
    radicalli:radic differentli:differ vileli:vile analogousli:analog vietnamization:vietnam predication:predic
    operator:oper feudalism:feudal decisiveness:decis hopefulness:hope callousness:callous formaliti:formal
    sensitiviti:sensit sensibiliti:sensibl triplicate:triplic formative:form formalize:formal electriciti:electr
    electrical:electr hopeful:hope goodness:good revival:reviv allowance:allow inference:infer airliner:airlin
    gyroscopic:gyroscop adjustable:adjust defensible:defens irritant:irrit replacement:replac adjustment:adjust
    dependent:depend adoption:adopt homologou:homolog communism:commun activate:activ angulariti:angular
    homologous:homolog effective:effect bowdlerize:bowdler probate:probat rate:rate cease:ceas controll:control
    roll:roll dying:die news:news died:die tied:tie enjoy:enjoy by:by says:say ion:ion biology:biolog
    theology:theolog spied:spi skies:sky employ:employ writing:write universally:univers awfully:aw owed:owe
    age:age aged:age using:use eed:eed
"""
"""Porter's examples and words of the dialect, with the stems that NLTK's stemmer gives."""


@pytest.mark.parametrize(("word", "stemmed"), [tuple(entry.split(":")) for entry in STEMS.split()])
def test_the_stemmer_is_the_fields(word: str, stemmed: str) -> None:
    assert stem(word) == stemmed


def test_words_are_lower_case_letters_and_digits_and_short_ones_are_not_stemmed() -> None:
    assert words("Hsiao Yun-Hwa's 3 BOOKS; was") == ["hsiao", "yun", "hwa", "s", "3", "book", "was"]
    assert words("été") == ["t"]


@pytest.mark.parametrize(
    ("first", "second", "length"),
    [("abcd", "abcd", 4), ("abcd", "badc", 2), ("abc", "", 0), ("", "abc", 0), ("aab", "ab", 2), ("xay", "bab", 1)],
)
def test_the_longest_common_subsequence_by_hand(first: str, second: str, length: int) -> None:
    assert common(list(first), list(second)) == length


def test_recall_is_over_the_reference() -> None:
    assert rouge_l_recall("The writer lives in Rome today", "The writer lived in Paris") == pytest.approx(4.0 / 5.0)
    assert rouge_l_recall("Paris in lived writer the", "The writer lived in Paris") == pytest.approx(1.0 / 5.0)
    assert rouge_l_recall("Well, it is Paris I think", "Paris") == 1.0


def test_perfect_repetition_and_nothing_are_the_two_ends() -> None:
    assert rouge_l_recall("Jaime Vasquez.", "Jaime Vasquez") == 1.0
    assert rouge_l_recall("I do not know", "Jaime Vasquez") == 0.0


def test_generations_without_words_score_0_and_are_counted() -> None:
    """B016: other packages stop with an error."""
    found = rouge_l_recalls({"1": "", "2": ".", "3": "a b"}, {"1": "a b", "2": "a b", "3": "a b"})
    assert found.scores.values == {"1": 0.0, "2": 0.0, "3": 1.0}
    assert found.empty.value == pytest.approx(200.0 / 3.0)


def test_a_reference_without_words_has_no_recall() -> None:
    assert rouge_l_recall("a", "日本") == Undefined("the reference has no words")
