"""Live views of a run while it is trained: a page in the browser, or text in the terminal."""
