"""Canonical form of an HTML page, in which layout and the spelling of entities make no difference."""

import re
from html.parser import HTMLParser

INLINE = frozenset({"a", "b", "code", "em", "i", "small", "span", "sup"})  # spaces beside these are seen


class _Canonical(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.exact = False  # inside a script or a style sheet
        self.after_block = True

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._tag(
            tag,
            "".join([f"<{tag}", *(f" {n}={v!r}" for n, v in sorted(attrs) if (n, v) != ("class", "")), ">"]),
        )
        self.exact = tag in ("script", "style")

    def handle_endtag(self, tag: str) -> None:
        self._tag(tag, f"</{tag}>")
        self.exact = False

    def _tag(self, tag: str, line: str) -> None:
        self.after_block = tag not in INLINE
        if self.after_block and not self.exact and self.lines and self.lines[-1].startswith("|"):
            self.lines[-1] = self.lines[-1].rstrip(" ")
            if self.lines[-1] == "|":
                self.lines.pop()
        self.lines.append(line)

    def handle_data(self, data: str) -> None:
        if self.exact:
            self.lines.append(f"|{data}")
            return
        folded = re.sub(r"[ \t\n]+", " ", data)
        if self.after_block:
            folded = folded.lstrip(" ")
        if folded:
            self.lines.append(f"|{folded}")


def canonical(page: str) -> str:
    """Return a line for each tag, with its attributes sorted, and for each text between tags.

    Whitespace is folded, and dropped beside tags that begin a line of their own on the page; scripts and
    style sheets stay as they are.
    """
    reader = _Canonical()
    reader.feed(page)
    reader.close()
    return "\n".join(reader.lines) + "\n"
