"""Result files: what was run, on which machine, what came out; JSON to compare, Markdown to read."""

import importlib.metadata
import platform
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from surd.device import processors
from surd.files import write_json

RESULTS = Path(__file__).parent / "results"


def machine() -> dict[str, Any]:
    """What the figures depend on besides the code: processor, threads, versions."""
    packages = ("torch", "sentencepiece", "sacrebleu", "transformers", "sacremoses", "ctranslate2")
    versions = {}
    for name in packages:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "processor": processor(),
        "processors": processors(),
        "system": platform.system(),
        "python": ".".join(map(str, sys.version_info[:3])),
        **versions,
    }


def processor() -> str:
    """The processor's name as the system gives it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def write(name: str, title: str, result: Mapping[str, Any], table: str, folder: Path = RESULTS) -> None:
    """Writes `name`.json and `name`.md; the table stands above the machine in the second."""
    folder.mkdir(parents=True, exist_ok=True)
    here = machine()
    record = {"written": datetime.now(UTC).isoformat(timespec="seconds"), **result, "machine": here}
    write_json(folder / f"{name}.json", record)
    told = ", ".join(f"{key} {value}" for key, value in here.items())
    page = f"# {title}\n\n{table.strip()}\n\nMachine: {told}.\nWritten {record['written']}.\n"
    (folder / f"{name}.md").write_text(page, encoding="utf-8")
    print(page)


def markdown_table(heads: tuple[str, ...], rows: list[tuple[Any, ...]]) -> str:
    """A table of Markdown; a bar inside a cell, as signatures have, is escaped."""
    lines = [heads, tuple("---" for _ in heads), *rows]
    return "\n".join("| " + " | ".join(str(cell).replace("|", r"\|") for cell in line) + " |" for line in lines)
