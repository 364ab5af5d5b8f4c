"""Language: running text that goes on, in characters or subwords; nats a token select, bits a byte stand beside."""

from math import inf
from typing import ClassVar

from surd.tasks.task import TextTask


class Language(TextTask):
    """A text of any sort, as a whole or line by line."""

    name: ClassVar[str] = "language"
    sizes: ClassVar[tuple[tuple[float, str], ...]] = ((10_000_000, "characters"), (inf, "language"))
