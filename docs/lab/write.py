"""Writes the pages of docs/lab by running the experiments: `python docs/lab/write.py`, or with the names of some."""

import re
import sys
from pathlib import Path

from surd.lab.experiment import named, names, questions, run
from surd.lab.markdown import markdown

FOLDER = Path(__file__).parent
SEEDS = 5


def main(chosen: list[str]) -> None:
    for name in chosen or names():
        (FOLDER / f"{name}.md").write_text(markdown(run(named(name), SEEDS)), encoding="utf-8")
    readme = FOLDER / "README.md"
    readme.write_text(index(readme.read_text(encoding="utf-8")), encoding="utf-8")


def index(text: str) -> str:
    """The list of experiments as their files have it, with the verdicts that their pages tell."""
    begin, end = "<!-- experiments: written by docs/lab/write.py -->\n", "<!-- end of experiments -->"
    rows = ["| experiment | question | often said, and refuted |", "|---|---|---|"]
    for name, question in questions():
        page = (FOLDER / f"{name}.md").read_text(encoding="utf-8")
        refuted = re.findall(r"^> (.*) \(.*\)\n\n\*\*refuted", page, flags=re.MULTILINE)
        rows.append(f"| [{name}]({name}.md) | {question} | {' '.join(f'“{claim}”' for claim in refuted)} |")
    before, _, rest = text.partition(begin)
    return before + begin + "\n".join(rows) + "\n" + end + rest.partition(end)[2]


if __name__ == "__main__":
    main(sys.argv[1:])
