"""Reads a file of lines that grows, is cut or replaced by others: each time only what is new."""

from pathlib import Path

OVERLAP = 256  # bytes before the place that was read up to, by which a replaced file is known


class Tail:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0  # bytes, up to the end of a line
        self._last = b""

    def lines(self) -> tuple[bool, list[str]]:
        """Whether all lines that were handed out before are void, and the whole lines that are new.

        Guarantees:
            Lines that were handed out since the last void are those of the file, in their order, up to a
            line that is being written.
            The file is opened for reading only, and no lock is asked for.
        """
        try:
            with self._path.open("rb") as file:
                file.seek(self._read - len(self._last))
                anew = file.read(len(self._last)) != self._last
                if anew:
                    file.seek(0)
                content = file.read()
        except FileNotFoundError:
            anew, content = self._read > 0, b""
        if anew:
            self._read, self._last = 0, b""
        whole = content[: content.rfind(b"\n") + 1]
        self._read += len(whole)
        self._last = (self._last + whole)[-OVERLAP:]
        return anew, whole.decode("utf-8", errors="replace").splitlines()
