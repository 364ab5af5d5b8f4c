"""Writes docs/rules from the rules themselves, a page for each and the list of all: `make docs`."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from surd.audit.report.rule_page import rule_page
from surd.audit.rule import named, names, titles

FOLDER = Path(__file__).parent / "rules"
KINDS: Mapping[str, tuple[str, ...]] = {
    "Tying": ("weight-tying",),
    "Attention scale": ("attention-scale",),
    "Low precision": ("precision-headroom", "constant-rounding", "rope-precision"),
    "Norms and the residual path": ("norm-epsilon", "norm-gain-convention", "residual-path"),
    "Embedding scale": ("embedding-scale",),
    "Masks": ("mask-leak", "mask-fill", "causality", "empty-rows"),
    "Initialisation and depth": ("init-std", "residual-growth", "cloned-layers"),
    "Loss and padding": ("loss-padding-invariance", "label-smoothing-mass", "double-softmax", "padding-row"),
    "Logits": ("logit-scale", "soft-cap", "head-bias", "vocab-rows"),
    "First loss": ("initial-loss", "tied-init-std"),
    "Heads and axes": ("head-layout", "softmax-axis", "batch-isolation"),
    "Entropy and growth of attention": (
        "attention-entropy",
        "softmax-saturation",
        "attention-logit-max",
        "qk-norm-growth",
    ),
    "Positions": ("position-ratio", "position-axis"),
    "Dropout": ("eval-determinism",),
    "Counting": ("parameter-count",),
}
"""All rules by the kind of the fault, in the order of how often people meet it."""
HEAD = """# Rules

What [`surd check`](../check.md) looks for. Each page is also printed by `surd check --rule NAME`: the fault, why the
healthy range is what it is, when it matters, an example that has it, and the cure. Examples and cures are run by the
tests: the example is found for this one reason, the cure has no finding. The pages are written from
`src/surd/audit/rules` by `make docs`; a new file there is a new rule.

A rule *reads* weights and declarations alone, or *runs* a forward, and perhaps a backward, on a small batch, or
*compares* two ways through the model that must lead to the same."""
LOOKS = {"static": "reads", "probe": "runs", "comparison": "compares"}


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    found = pages()
    for path in FOLDER.glob("*.md"):
        if path.name not in found:
            path.unlink()
    for name, text in found.items():
        (FOLDER / name).write_text(text, encoding="utf-8")


def pages() -> dict[str, str]:
    """Every page by the name of its file."""
    return {"README.md": index()} | {f"{name}.md": f"{rule_page(named(name))}\n" for name in names()}


def index() -> str:
    """The list of all rules, by kind."""
    return "\n".join([HEAD, *rows(dict(titles()))]) + "\n"


def rows(title: Mapping[str, str]) -> Iterator[str]:
    """A table for each kind."""
    if strange := title.keys() - {name for kind in KINDS.values() for name in kind}:
        raise SystemExit(f"{__file__}: KINDS lacks {', '.join(sorted(strange))}")
    for kind, members in KINDS.items():
        if present := [name for name in members if name in title]:
            yield from ("", f"## {kind}", "", "| rule | fault | looks by | judges |", "|---|---|---|---|")
            for name in present:
                rule = named(name)
                models = "all models" if rule.models == "both" else f"{rule.models} models"
                yield f"| [{name}]({name}.md) | {title[name]} | {LOOKS[rule.needs]} | {models} |"


if __name__ == "__main__":
    main()
