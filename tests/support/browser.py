"""Visits to pages in a real browser, and a note of what a page must not do."""

from pathlib import Path
from urllib.parse import urlsplit

from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Request


class Visit:
    """Opens a file or an address in a window of its own, and takes note of what a page must not do:
    write an error or a warning to the console, throw, or ask for anything but its own file (for an
    address: anything of another origin). `tolerate` is part of messages that a test expects, such as
    ERR_CONNECTION_REFUSED where a server goes away."""

    def __init__(self, browser: Browser) -> None:
        self.browser = browser
        self.contexts: list[BrowserContext] = []
        self.faults: list[str] = []

    def __call__(
        self, where: Path | str, *, width: int = 1200, dark: bool = False, tolerate: str = ""
    ) -> Page:
        address = where if isinstance(where, str) else where.resolve().as_uri()
        context = self.browser.new_context(
            viewport={"width": width, "height": 900},
            color_scheme="dark" if dark else "light",
            reduced_motion="reduce",
            is_mobile=width < 600,
        )
        self.contexts.append(context)
        page = context.new_page()

        def note(message: str) -> None:
            if not (tolerate and tolerate in message):
                self.faults.append(message)

        def on_console(message: ConsoleMessage) -> None:
            if message.type in ("error", "warning"):
                note(f"console: {message.text}")

        def on_request(asked: Request) -> None:
            if not _own(address, asked.url):
                note(f"request: {asked.url}")

        page.on("console", on_console)
        page.on("pageerror", lambda error: note(f"thrown: {error}"))
        page.on("request", on_request)
        page.goto(address)
        return page


def _own(page: str, asked: str) -> bool:
    here, there = urlsplit(page), urlsplit(asked)
    if there.scheme in ("data", "blob"):
        return True
    return (there.scheme, there.netloc) == (here.scheme, here.netloc) and (
        here.scheme != "file" or there.path == here.path
    )
