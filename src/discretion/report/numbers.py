"""Numbers as text: spent epsilon is rounded up, budgets are rounded down."""

import math
from collections.abc import Iterable
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal

DIGITS = 4
MOST_DIGITS = 17  # a float has no more
SPACE = "\u00a0"  # keeps a number and its unit on one line
SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def spent(value: float, digits: int = DIGITS) -> str:
    """Return spent epsilon, rounded up."""
    return "∞" if math.isinf(value) else format(_cut(value, digits, ROUND_CEILING), "f")


def epsilon(value: float) -> str:
    """Return spent epsilon in five significant digits, rounded up."""
    if math.isinf(value):
        return "∞"
    if value == 0:
        return "0"
    unit = 10.0 ** (math.floor(math.log10(value)) - 4)
    return f"{math.ceil(value / unit - 1e-9) * unit:.5g}"


def rounded_down(value: float) -> str:
    """Return four decimals, rounded down: what is left must not look larger than it is."""
    return "∞" if math.isinf(value) else f"{math.floor(value * 1e4) / 1e4:.4f}"


def budget(value: float, digits: int = DIGITS) -> str:
    """Return a budget, rounded down, without trailing zeros."""
    if math.isinf(value):
        return "no limit"
    text = format(_cut(value, digits, ROUND_FLOOR), "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


def spent_of(used: float, allowed: float) -> tuple[str, str]:
    """Return both as text, with enough digits to show whether the budget is kept."""
    for digits in range(DIGITS, MOST_DIGITS + 1):
        shown = spent(used, digits), budget(allowed, digits)
        if math.isinf(used) or math.isinf(allowed):
            return shown
        if (Decimal(shown[0]) <= Decimal(shown[1])) == (used <= allowed):
            return shown
    return repr(used), repr(allowed)


def _cut(value: float, digits: int, rounding: str) -> Decimal:
    exact = Decimal(repr(float(value)))  # the shortest decimal that is this float
    if exact == 0:
        return Decimal(0)
    return exact.quantize(Decimal(1).scaleb(exact.adjusted() - digits + 1), rounding=rounding)


def percent(value: float, decimals: int = 1) -> str:
    return f"{100 * value:.{decimals}f}{SPACE}%"


def plain(value: float) -> str:
    """Return four significant digits, rounded to nearest."""
    if math.isinf(value):
        return "∞"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.{DIGITS}g}"


def power(value: float) -> str:
    """Return small and large numbers as 7 × 10⁻⁵, others in three significant digits."""
    if 0.001 <= value < 10000:
        return f"{value:.3g}"
    mantissa, exponent = f"{value:.2e}".split("e")
    factor = mantissa.rstrip("0").rstrip(".")
    ten = "10" + str(int(exponent)).translate(SUPERSCRIPT)
    return ten if factor == "1" else f"{factor}{SPACE}×{SPACE}{ten}"


def span(values: Iterable[float]) -> str:
    found = sorted(values)
    low, high = plain(found[0]), plain(found[-1])
    return low if low == high else f"{low} to {high}"


def count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def duration(seconds: float) -> str:
    """Return a duration in seconds below 90 seconds, in minutes below 90 minutes, else in hours."""
    minutes = round(seconds / 60)
    if seconds < 90:
        return count(round(seconds), "second")
    if minutes < 90:
        return count(minutes, "minute")
    hours, minutes = divmod(minutes, 60)
    return f"{count(hours, 'hour')}{f' {minutes} min' if minutes else ''}"


def listing(items: Iterable[str]) -> str:
    """Return "a, b and c"."""
    found = list(items)
    return " and ".join([*([", ".join(found[:-1])] if found[1:] else []), *found[-1:]])
