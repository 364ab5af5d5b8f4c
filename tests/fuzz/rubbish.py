"""Rubbish of all sorts: lines and files of text, values, names and words, as hypothesis strategies."""

import gzip
import lzma
from typing import Any

from hypothesis import strategies as st

ODD_LINES = (
    b"",
    b"   \t ",
    b"\x00",
    b"a\x00b\tc",
    b"\xed\xa0\x80 half\tof a pair",
    b"\xff\xfe",
    b"\xfe\xff",
    b"\xc3",
    b"caf\xe9\tcoffee",
    b"\xef\xbb\xbfmark\tmark",
    "one\u2028two\tthree\u2029four".encode(),
    "next\x85line\tvertical\x0btab\x0cfeed".encode(),
    "\u202eright to left\u202c\t\u2066isolate\u2069".encode(),
    "a\u0301\u0301\u0301\t\ufb01\u212b".encode(),
    "\u2581 \ue000\ue001\t<unk> </s> <0x0A>".encode(),
    "\U0001f469\u200d\U0001f680\t\U000e0001".encode(),
    b"carriage\rreturn\talone\r",
    b"\x1b[31mred\x1b[0m\tbell\x07",
    b"a\tb\tc\td",
    b"\t",
    b"{",
    b"{}",
    b'{"source": "a", "target": "b"}',
    b'{"source": 1, "target": null}',
    b'{"source": "\\ud800", "target": "x"}',
    b'{"source": "a", "source": "b", "target": 1e999}',
    b'{"source": NaN, "target": [' + b"[" * 30 + b"]",
    b'{"source": "a", "target": ' + b"[" * 100_000,
    b'{"source": ' + b"9" * 5000 + b', "target": "b"}',
    b'["source", "target"]',
)
LONG = (b"a", b" ", b"a b ", b"\t", b"\x00", "\u00e9".encode(), b"{", b"x\ty ", b"\r")
ENDS = (b"\n", b"\n", b"\n", b"\r\n", b"\r", b"\n\n", b"")
WORDS = ("cat", "dog", "sees", "a", "the", "\u00e9t\u00e9", "bird", "and", "K AE T", "sings", "\u4e16\u754c")


def plain_lines(sides: int) -> st.SearchStrategy[bytes]:
    """A line as it should be, of one or two sides."""
    side = st.lists(st.sampled_from(WORDS), min_size=1, max_size=4).map(" ".join)
    return st.lists(side, min_size=sides, max_size=sides).map(lambda parts: "\t".join(parts).encode())


def odd_lines() -> st.SearchStrategy[bytes]:
    """A line as it should not be; now and then it is a megabyte long."""
    long = st.tuples(st.sampled_from(LONG), st.sampled_from((1000, 70_000, 1_000_000))).map(
        lambda one: (one[0] * one[1])[: one[1]]
    )
    choices = [st.sampled_from(ODD_LINES)] * 5 + [st.binary(max_size=40)] * 2 + [st.text(max_size=30).map(_encoded)]
    return st.one_of(*choices, long)


@st.composite
def files(draw: st.DrawFn, sides: int = 1) -> bytes:
    """The bytes of a file of lines, most of them plain or none, perhaps compressed, perhaps cut off."""
    lines = draw(st.lists(plain_lines(sides), max_size=6))
    lines = lines * draw(st.sampled_from((1, 1, 5)))
    for line in draw(st.lists(odd_lines(), max_size=draw(st.sampled_from((0, 1, 3))))):
        lines.insert(draw(st.integers(0, len(lines))), line)
    end = draw(st.sampled_from(ENDS))
    data = draw(st.sampled_from((b"",) * 6 + (b"\xef\xbb\xbf", b"\xff\xfe"))) + end.join(lines)
    data += draw(st.sampled_from((end, end, b"")))
    packing = draw(st.sampled_from(("",) * 8 + ("gzip", "xz", "zstd", "pretended")))
    if packing:
        data = packed(packing, data)
        if draw(st.booleans()):
            data = data[: draw(st.integers(0, len(data)))]
    return data


def packed(packing: str, data: bytes) -> bytes:
    """Data in a compressed form, or with no more of it than its first bytes."""
    import zstandard

    match packing:
        case "gzip":
            return gzip.compress(data, 1, mtime=0)
        case "xz":
            return lzma.compress(data, preset=0)
        case "zstd":
            return zstandard.ZstdCompressor(level=1).compress(data)
    return b"\x1f\x8b\x08" + data


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


NESTED: Any = []
for _ in range(60):
    NESTED = [NESTED]

VALUES: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    -1,
    1,
    3,
    10**6,
    10**12,
    2**63,
    10**400,
    0.0,
    -0.5,
    0.5,
    1e-320,
    1e300,
    float("inf"),
    float("-inf"),
    float("nan"),
    "",
    "x",
    "-",
    "none",
    "bpe",
    "../outside/precious",
    "/etc/passwd",
    "/dev/zero",
    "a\x00b",
    "\x1b[2J",
    "\u202e",
    "x" * 3000,
    [],
    [1, "a", None],
    ["<url>", "<url>", "", " "],
    NESTED,
    {},
    {"kind": "none"},
    {"kind": ["bpe"]},
    {"kind": "cosine", "warmup": -3, "what": 1},
    {"a": {"b": {"c": {}}}},
)
"""Values that few settings expect."""
