"""Privacy formulas of the papers, beside what Rényi accounting and PLD say of the same noise.

Each module is named after its authors; `appendix` is on personalised local privacy, and `opacus` is the
accountant of two papers. Nothing here certifies: it shows what a paper's formula costs or misses.
"""

from discretion.methods.papers.charges import RUNS, Comparison, comparison

__all__ = ["RUNS", "Comparison", "comparison"]
