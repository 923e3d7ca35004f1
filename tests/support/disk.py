"""Model of a disk: what is in memory and what is durable, after the calls that `faults.c` logged.

A write is durable once its file was flushed; a name once its folder was. Before, after a loss of power, each
sector of a write is there or is not, and of the changes of a folder's names the first few are.
"""

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import NamedTuple

HEAD = struct.Struct("<qciqII")
SECTOR = 512
CHANGING = "cwtrulds"  # kinds of calls after which memory or disk is another
KINDS = {
    "c": "create",
    "o": "open",
    "i": "read",
    "w": "write",
    "t": "truncate",
    "s": "flush",
    "r": "rename",
    "u": "remove",
    "l": "link",
    "d": "make folder",
    "h": "set mode",
}


Names = dict[str, "File | Folder | None"]  # None: no longer there


class Call(NamedTuple):
    """One record of the log; of a mark, `path` is the text."""

    number: int
    kind: str
    fd: int
    offset: int
    path: str
    data: bytes

    @property
    def site(self) -> tuple[str, str]:
        return KINDS.get(self.kind, self.kind), Path(self.path).name


def read_log(path: Path) -> list[Call]:
    content, at, found = path.read_bytes(), 0, []
    while at < len(content):
        number, kind, fd, offset, first, second = HEAD.unpack_from(content, at)
        at += HEAD.size
        text, data = content[at : at + first], content[at + first : at + first + second]
        found.append(Call(number, kind.decode(), fd, offset, text.decode(), data))
        at += first + second
    return found


@dataclass
class File:
    synced: bytes
    pending: list[tuple[int, bytes | None]] = field(default_factory=list)  # None: cut or extended to `offset`

    def content(self, keeps: Callable[[], bool] = lambda: True) -> bytes:
        """Return the bytes, of whose changes since the last flush only those are there that `keeps` says."""
        found = bytearray(self.synced)
        for offset, data in self.pending:
            if data is None:
                if keeps():
                    found[offset:] = bytes(max(0, offset - len(found)))
                continue
            for start in range(0, len(data), SECTOR):
                if keeps():
                    part, place = data[start : start + SECTOR], offset + start
                    found.extend(bytes(max(0, place - len(found))))
                    found[place : place + len(part)] = part
        return bytes(found)

    def sync(self) -> None:
        self.synced, self.pending = self.content(), []


@dataclass
class Folder:
    entries: dict[str, "File | Folder"] = field(default_factory=dict)
    synced: dict[str, "File | Folder"] = field(default_factory=dict)
    pending: list[Names] = field(default_factory=list)

    def change(self, names: Names) -> None:
        self.pending.append(names)
        _change(self.entries, names)

    def sync(self) -> None:
        self.synced, self.pending = dict(self.entries), []

    def names(self, rng: Random) -> dict[str, "File | Folder"]:
        """Return what a loss of power leaves: the first of the changes since the last flush."""
        found = dict(self.synced)
        count = rng.choice((0, len(self.pending), rng.randint(0, len(self.pending))))
        for names in self.pending[:count]:
            _change(found, names)
        return found


def _change(entries: dict[str, File | Folder], names: Names) -> None:
    for name, node in names.items():
        if node is None:
            del entries[name]
        else:
            entries[name] = node


class Disk:
    """A folder and all below it, durable at first."""

    def __init__(self, home: Path) -> None:
        self._home, self._root = home, _loaded(home)
        self._open: dict[int, File | Folder] = {}

    def apply(self, call: Call) -> None:
        match call.kind:
            case "c" | "d":
                node: File | Folder = File(b"") if call.kind == "c" else Folder()
                folder, name = self._place(call.path)
                folder.change({name: node})
                self._open[call.fd] = node
            case "o":
                self._open[call.fd] = self._at(call.path)
            case "x":
                del self._open[call.fd]
            case "w":
                self._file(call.fd).pending.append((call.offset, call.data))
            case "t":
                self._file(call.fd).pending.append((call.offset, None))
            case "s":
                self._open[call.fd].sync()
            case "u":
                folder, name = self._place(call.path)
                folder.change({name: None})
            case "r" | "l":
                (folder, name), (to, new) = self._place(call.path), self._place(call.data.decode())
                gone: Names = {name: None} if call.kind == "r" else {}
                came: Names = {new: folder.entries[name]}
                for place, names in [(folder, came | gone)] if folder is to else [(to, came), (folder, gone)]:
                    place.change(names)

    def image(self, rng: Random | None = None) -> dict[str, bytes | None]:
        """Return the files by path, and None for folders: all of memory, or what a loss of power leaves."""
        chance = 1.0 if rng is None else rng.choice((0.0, 0.5, 1.0))
        keeps = (lambda: True) if rng is None else (lambda: rng.random() < chance)

        def walk(folder: Folder, at: str) -> Iterator[tuple[str, bytes | None]]:
            entries = folder.entries if rng is None else folder.names(rng)
            for name, node in sorted(entries.items()):
                if isinstance(node, File):
                    yield at + name, node.content(keeps)
                else:
                    yield at + name, None
                    yield from walk(node, f"{at}{name}/")

        return dict(walk(self._root, ""))

    def _file(self, fd: int) -> File:
        node = self._open[fd]
        assert isinstance(node, File)
        return node

    def _at(self, path: str) -> File | Folder:
        node: File | Folder = self._root
        for name in Path(path).relative_to(self._home).parts:
            assert isinstance(node, Folder)
            node = node.entries[name]
        return node

    def _place(self, path: str) -> tuple[Folder, str]:
        folder = self._at(str(Path(path).parent))
        assert isinstance(folder, Folder)
        return folder, Path(path).name


def _loaded(path: Path) -> Folder:
    entries = {
        each.name: _loaded(each) if each.is_dir() else File(each.read_bytes()) for each in path.iterdir()
    }
    return Folder(entries, dict(entries))


def contents(home: Path) -> dict[str, bytes | None]:
    """Return the files by path, and None for folders, as they are in a folder."""
    found = {str(path.relative_to(home)): path for path in home.rglob("*")}
    return {name: None if path.is_dir() else path.read_bytes() for name, path in found.items()}


def write_image(image: dict[str, bytes | None], home: Path) -> None:
    home.mkdir()
    for name, content in image.items():
        if content is None:
            (home / name).mkdir()
        else:
            (home / name).write_bytes(content)
