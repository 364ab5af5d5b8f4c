"""The pages of docs/learn are run: they print what stands on them, their pictures are current, their prose agrees."""

import re
import runpy
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent.parent
LEARN = runpy.run_path(str(ROOT / "docs" / "learn.py"))
FOLDER = ROOT / "docs" / "learn"
PAGES = sorted(FOLDER.glob("*.md"))
PICTURES = [(page, name) for page in PAGES for name in LEARN["PICTURE"].findall(page.read_text(encoding="utf-8"))]
of_name = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)


@cache
def executed(page: Path) -> tuple[dict[str, Any], dict[int, str]]:
    """What the blocks of a page define, and what each prints; those for Keras are run beside the parity tests."""
    names: dict[str, Any] = {}
    return names, LEARN["run"](page, names)


def blocks(page: Path) -> list[re.Match[str]]:
    return list(LEARN["BLOCK"].finditer(page.read_text(encoding="utf-8")))


@of_name
def test_every_block_prints_what_stands_beneath_it(page: Path) -> None:
    _, printed = executed(page)
    assert len(printed) >= 10
    for block in blocks(page):
        if block.start() in printed:
            assert LEARN["agrees"](block["printed"] or "", printed[block.start()]), (
                f"{printed[block.start()]}\nrun: python docs/learn.py"
            )


@of_name
def test_every_block_of_code_is_one_that_runs(page: Path) -> None:
    """A fence with another head, or an output that stands apart, would be shown and never checked."""
    text = page.read_text(encoding="utf-8")
    assert len(re.findall(r"^```py", text, re.MULTILINE)) == len(blocks(page))
    assert text.count("\n```text\n") == sum(block["printed"] is not None for block in blocks(page))
    assert {block["needs"] for block in blocks(page)} <= {None, "keras"}


@pytest.mark.parametrize(("page", "name"), PICTURES, ids=lambda value: getattr(value, "stem", value))
def test_pictures_show_what_the_page_computes(page: Path, name: str) -> None:
    names, _ = executed(page)
    kept = (FOLDER / f"{name}.svg").read_text(encoding="utf-8")
    assert LEARN["agrees"](kept, LEARN["picture"](names[name])), "run: python docs/learn.py"
    assert len(kept) < 60_000
    assert "prefers-color-scheme: dark" in kept


def test_every_picture_is_shown() -> None:
    assert {path.stem for path in FOLDER.glob("*.svg")} == {name for _, name in PICTURES}


@of_name
def test_numbers_in_the_prose_stand_in_the_code_or_beneath_it(page: Path) -> None:
    """Decimals only: a prose number is one that was printed or written in code, perhaps rounded further."""
    text = page.read_text(encoding="utf-8")
    known = {number for block in blocks(page) for number in decimals(block[0])}
    prose = re.sub(r"sections? [\d., and()√a-z_]*\d", "", LEARN["BLOCK"].sub("", text))
    prose = re.sub(r"arXiv [\d.]+", "", prose)
    for number in decimals(prose):
        digits = len(number.partition(".")[2])
        assert any(f"{float(other):.{digits}f}" == number for other in known if len(other) >= len(number)), number


def decimals(text: str) -> set[str]:
    return set(re.findall(r"(?<![\w.])\d+\.\d+(?![\w.]*\d)", text))


def test_each_line_of_the_encoder_has_the_size_that_was_predicted() -> None:
    _, printed = executed(FOLDER / "encoder.md")
    found = re.findall(r"^(.*) rms +([\d.]+) +predicted +([\d.]+)$", "".join(printed.values()), re.MULTILINE)
    assert len(found) >= 15
    for line, measured, predicted in found:
        assert float(measured) == pytest.approx(float(predicted), rel=0.06), line


def check(*claims: tuple[str, Callable[[dict[str, Any]], bool]]) -> Any:
    return pytest.mark.parametrize("holds", [holds for _, holds in claims], ids=[text for text, _ in claims])


@check(
    ("q·k grows as the root of d_k", lambda page: near(page["raw"], [d_k**0.5 for d_k in page["widths"]], 0.03)),
    ("q·q grows as d_k", lambda page: near(page["itself"], page["widths"], 0.03)),
    ("about 28 keys share the weight", lambda page: abs(page["scaled"][64].effective_keys.mean() - 28) < 1),
    ("the mean norm is larger without the factor at 64", lambda page: page["norm"][2] > 1.05),
    ("and smaller at 256", lambda page: page["norm"][3] < 0.95),
    ("one row in six is dead at 64", lambda page: 0.13 < 1 - page["alive"][2] < 0.2),
    ("the trace collapses at 64", lambda page: page["trace"][2] < 0.3),
    ("no row is dead at 4", lambda page: page["alive"][0] > 0.999),
    ("the gradient at the query is 12 times as large", lambda page: 11 < page["ratio"][64] < 12.5),
    ("and more in wider heads", lambda page: page["ratio"][16] < page["ratio"][64] < page["ratio"][256]),
    ("scores do not grow with d_model", lambda page: near(page["same"], [8.0] * 6, 0.05)),
    ("but with wider heads", lambda page: near(page["wider"], [(d / 8) ** 0.5 for d in page["models"]], 0.06)),
    ("the loss is that of the integral", lambda page: abs(page["losses"][2] - page["exact"](1.0)) < 0.1),
    ("half a nat at 1", lambda page: abs(page["exact"](1.0) - 0.5) < 0.01),
    ("over a thousand branches", lambda page: 1 / page["added"] > 1000),
)
def test_what_two_roots_says_in_words(holds: Callable[[dict[str, Any]], bool]) -> None:
    names = dict(executed(FOLDER / "two-roots.md")[0])
    assert holds(names)


def near(found: list[float], expected: list[float], share: float) -> bool:
    return found == pytest.approx(expected, rel=share)


def test_numbers_agree_up_to_their_last_digit() -> None:
    agrees = LEARN["agrees"]
    assert agrees("rms 0.499 (8 rows)", "rms 0.500 (8 rows)")
    assert not agrees("rms 0.499", "rms 0.501")
    assert not agrees("8 rows", "9 rows")
    assert not agrees("rms 0.5", "std 0.5")
    assert not agrees("1 2", "1 2 3")
