"""Seeded mutations of files and messages, for fuzzing: case k of a seed is always the same."""

import random
import re

TOKEN = re.compile(rb'"[^"\n]*"|[\w.+-]+|[^\w\s]')
# what readers stumble over: numbers that are none, too large, or of another type; nesting; odd characters
ODD = (
    *(b"-1", b"0", b"1", b"2", b"0.5", b"-0.0", b"1e-320", b"1e308", b"1e999", b"9007199254740993"),
    *(b"2147483648", b"9223372036854775808", b"18446744073709551616", b"1" * 400, b"1" * 5000),
    *(b"NaN", b"Infinity", b"inf", b'"inf"', b'"nan"', b'"5"', b"true", b"false", b"null", b'""', b"5.0"),
    *(b"[]", b"{}", b"[[]]", b"[" * 5000, b'{"a":' * 2000, b"[1,true]", b'{"a":1,"a":2}', b"1_000"),
    *("１".encode(), "é".encode(), "e\u0301".encode(), "\u2028".encode(), b'"\\ud800"', b"\\u0000"),
    *(b"\x00", b"\xff", b"\xef\xbb\xbf", b"\r", b"\n", b"\n\n", b"\t", b",", b'"', b"'", b"../x", b"=cmd"),
)


def mutated(content: bytes, chance: random.Random, others: tuple[bytes, ...] = ODD) -> bytes:
    """Return the content after one to four changes."""
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        content = chance.choice(CHANGES)(content, chance, others)
    return content


def _flip(content: bytes, chance: random.Random, others: tuple[bytes, ...]) -> bytes:
    if not content:
        return b"\x00"
    at = chance.randrange(len(content))
    return content[:at] + bytes([content[at] ^ 1 << chance.randrange(8)]) + content[at + 1 :]


def _cut(content: bytes, chance: random.Random, others: tuple[bytes, ...]) -> bytes:
    """Leave out a short piece, or all after some place."""
    at = chance.randrange(len(content) + 1)
    return content[:at] + (content[at + chance.randrange(1, 20) :] if chance.random() < 0.7 else b"")


def _insert(content: bytes, chance: random.Random, others: tuple[bytes, ...]) -> bytes:
    at = chance.randrange(len(content) + 1)
    return content[:at] + chance.choice(others) + content[at:]


def _repeat(content: bytes, chance: random.Random, others: tuple[bytes, ...]) -> bytes:
    """Say something twice: a line, a key, a record."""
    first, last = sorted(chance.randrange(len(content) + 1) for _ in range(2))
    last = min(last, first + 200)
    return content[:last] + content[first:last] + content[last:]


def _replace(content: bytes, chance: random.Random, others: tuple[bytes, ...]) -> bytes:
    """Put an odd word, or another word of the file, in the place of one."""
    words = list(TOKEN.finditer(content))
    if not words:
        return chance.choice(others)
    there = chance.choice(words)
    new = chance.choice(others) if chance.random() < 0.7 else chance.choice(words)[0]
    return content[: there.start()] + new + content[there.end() :]


CHANGES = (_flip, _cut, _insert, _repeat, _replace, _replace, _replace)
