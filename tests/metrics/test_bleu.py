"""BLEU and chrF equal what sacreBLEU's own interface says, signature included."""

import sacrebleu

from surd.metrics.bleu import BLEU, ChrF, reference_streams

HYPOTHESES = ["The cat sat on the mat.", "A dog runs through the tall grass .", "Two men are talking", ""]
FIRST = ["The cat sat on a mat.", "A dog runs through tall grass.", "Two men talk.", "Nothing here."]
SECOND = ["A cat was on the mat.", "The dog is running through the grass.", "Two men are talking.", "There is nothing."]


def test_one_reference_equals_sacrebleu() -> None:
    score = BLEU()(HYPOTHESES, [[line] for line in FIRST])
    reference = sacrebleu.BLEU()
    assert score.value == reference.corpus_score(HYPOTHESES, [FIRST]).score > 10
    assert score.signature == str(reference.get_signature())
    assert score.signature.startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:")


def test_several_references_and_settings_equal_sacrebleu() -> None:
    references = [list(pair) for pair in zip(FIRST, SECOND, strict=True)]
    score = BLEU(lowercase=True, tokenize="none")(HYPOTHESES, references)
    reference = sacrebleu.BLEU(lowercase=True, tokenize="none")
    assert score.value == reference.corpus_score(HYPOTHESES, [FIRST, SECOND]).score
    assert "nrefs:2|case:lc" in score.signature and "tok:none" in score.signature
    chrf = ChrF()(HYPOTHESES, references)
    assert chrf.value == sacrebleu.CHRF().corpus_score(HYPOTHESES, [FIRST, SECOND]).score
    assert chrf.signature.startswith("nrefs:2|case:mixed|eff:yes|nc:6|nw:0|space:no|version:")
    assert chrf.name == "chrF2" and chrf.higher_is_better


def test_lines_may_have_different_numbers_of_references() -> None:
    references = [[FIRST[0], SECOND[0]], [FIRST[1]], [FIRST[2], SECOND[2]], [FIRST[3]]]
    assert reference_streams(references)[1] == [SECOND[0], None, SECOND[2], None]
    score = BLEU()(HYPOTHESES, references)
    assert score.value == sacrebleu.BLEU().corpus_score(HYPOTHESES, reference_streams(references)).score
    assert score.signature.startswith("nrefs:var|")


def test_the_references_themselves_score_100() -> None:
    assert round(BLEU()(FIRST, [[line] for line in FIRST]).value, 6) == 100
    assert round(ChrF()(FIRST, [[line] for line in FIRST]).value, 6) == 100
