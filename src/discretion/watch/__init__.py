"""Follows a run while it is trained: a live page in the browser, or a look at it in the terminal."""
