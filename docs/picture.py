"""Draws the picture of the README from the journals of real runs: docs/picture.py OUT.svg TITLE=RUN [TITLE=RUN …]."""

import json
import sys
from pathlib import Path
from typing import Any

from matplotlib import pyplot as plt
from matplotlib.axes import Axes

INK, FAINT = "#1f4e79", "#9aa5b1"


def main(out: str, *runs: str) -> None:
    plt.rcParams["svg.hashsalt"] = "surd"  # the same runs give the same file
    figure, panels = plt.subplots(1, len(runs), figsize=(4.5 * len(runs), 3), squeeze=False, layout="constrained")
    for panel, run in zip(panels[0], runs, strict=True):
        title, _, folder = run.partition("=")
        draw(panel, title, journal(Path(folder)))
    figure.savefig(out, metadata={"Date": None} if out.endswith(".svg") else None)


def journal(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


def draw(panel: Axes, title: str, events: list[dict[str, Any]]) -> None:
    """One training: the score that selects its checkpoints, over the minutes that it took."""
    minutes = {event["step"]: event["seconds"] / 60 for event in events if event["event"] == "update"}
    looks = [event for event in events if event["event"] == "evaluation" and event["scores"]]
    first, per_step = looks[0]["scores"][0], max(minutes.values()) / max(minutes)
    values = [look["scores"][0]["value"] for look in looks]
    panel.plot([minutes.get(look["step"], per_step * look["step"]) for look in looks], values, color=INK)
    best = max(values) if first["higher_is_better"] else min(values)
    panel.axhline(best, color=FAINT, linewidth=0.8, linestyle=":")
    panel.text(0.02, best, f"{best:.1f}", transform=panel.get_yaxis_transform(), va="bottom", color=INK)
    panel.set(title=title, xlabel="minutes", xlim=(0, None), ylabel=f"{first['name']}, held out")
    panel.spines[["top", "right"]].set_visible(False)


if __name__ == "__main__":
    main(*sys.argv[1:])
