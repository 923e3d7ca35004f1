"""Names of clients and runs: which are allowed, since files are called after them and people read them."""

import re
import reprlib
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterable

LONGEST, LONGEST_BYTES = 100, 200  # a file's name may have 255 bytes, ending included
_PLAIN = re.compile(rf"[A-Za-z0-9_][A-Za-z0-9_.-]{{0,{LONGEST - 1}}}")  # nearly all names: allowed at once
_RULES: tuple[tuple[str, Callable[[str], bool]], ...] = (
    ("text that is not empty", bool),
    (
        f"at most {LONGEST} characters, and {LONGEST_BYTES} bytes in UTF-8",
        lambda name: len(name) <= LONGEST and len(name.encode(errors="replace")) <= LONGEST_BYTES,
    ),
    ("no space at either end", lambda name: name == name.strip()),
    ("printable characters", str.isprintable),
    ("composed characters (Unicode NFC)", lambda name: name == unicodedata.normalize("NFC", name)),
    ("no slash and no backslash", lambda name: not {"/", "\\"} & set(name)),
    ("no dot and no dash at the start", lambda name: name[0] not in ".-"),
)
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = LONGEST + 2


def expected_of(name: object) -> str:
    """Return what a name should be and is not; empty if the name is allowed.

    Guarantees:
        An allowed name, as part of a path, is a file of the folder it is put in and of no other one.
        As a word of a command, an allowed name is no option.
    """
    if not isinstance(name, str):
        return _RULES[0][0]
    if _PLAIN.fullmatch(name):
        return ""
    return next((expected for expected, holds in _RULES if not holds(name)), "")


def bad_names(names: Iterable[object], what: str = "client") -> list[str]:
    """Return a sentence on each name that is not allowed."""
    judged = ((name, expected_of(name)) for name in names)
    return [f"found {what} name {_SHORT.repr(name)}, expected {why}" for name, why in judged if why]


def allowed(name: str) -> str:
    """Return the name; raise `ValueError`, as pydantic wants it, if it is not allowed."""
    if why := expected_of(name):
        raise ValueError(f"found name {_SHORT.repr(name)}, expected {why}")
    return name


def same_files(names: Iterable[str], taken: Iterable[str] = ()) -> list[str]:
    """Return a sentence on each group of names that some file systems take for one file's.

    `taken` has the names of files that are in the same folder.
    """
    groups = defaultdict[str, list[str]](list)
    for name in names:
        groups[_folded(name)].append(name)
    others = {_folded(name): name for name in taken}
    return [
        f"found client name {group[0]!r}, expected another than that of the file {others[key]}"
        for key, group in groups.items()
        if key in others
    ] + [
        f"found client names {', '.join(map(repr, group))}, expected names that differ in more than case"
        for group in groups.values()
        if len(group) > 1
    ]


def _folded(name: str) -> str:
    return unicodedata.normalize("NFC", name.casefold())
