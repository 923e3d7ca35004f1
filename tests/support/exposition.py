"""An independent reader of Prometheus's text format (0.0.4), strict where the format's description is."""

import re
import urllib.error
import urllib.request
from typing import NamedTuple

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
LABEL = r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\\\|\\"|\\n)*)"'
VALUE = r"[+-]Inf|NaN|[+-]?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?"
SAMPLE = re.compile(rf"({NAME})(?:\{{({LABEL}(?:,{LABEL})*)\}})? ({VALUE})")
SUFFIXES = {"histogram": ("_bucket", "_sum", "_count"), "counter": ("",), "gauge": ("",)}

Labels = tuple[tuple[str, str], ...]


class Exposed(NamedTuple):
    kinds: dict[str, str]  # by name
    samples: dict[tuple[str, Labels], float]

    def of(self, name: str, **labels: str) -> float:
        return self.samples[name, tuple(sorted(labels.items()))]

    def by(self, name: str, label: str) -> dict[str, float]:
        return {dict(labels)[label]: value for (of, labels), value in self.samples.items() if of == name}


def parse(text: str) -> Exposed:
    """Return what is exposed; fail unless each line is as the format has it, in its place."""
    assert text.endswith("\n") and "\n\n" not in text
    found, last, helped = Exposed({}, {}), "", ""
    for line in text.splitlines():
        if about := re.fullmatch(rf"# HELP ({NAME}) ((?:[^\\\n]|\\\\|\\n)*)", line):
            helped = about[1]
            assert helped not in found.kinds
        elif typed := re.fullmatch(rf"# TYPE ({NAME}) (counter|gauge|histogram)", line):
            last = typed[1]
            assert last == helped and last not in found.kinds
            found.kinds[last] = typed[2]
            assert (typed[2] == "counter") == last.endswith("_total")
        else:
            sample = SAMPLE.fullmatch(line)
            assert sample and sample[1] in {last + suffix for suffix in SUFFIXES[found.kinds[last]]}, line
            labels = tuple(sorted((pair[1], _plain(pair[2])) for pair in re.finditer(LABEL, sample[2] or "")))
            assert len(dict(labels)) == len(labels) and (sample[1], labels) not in found.samples
            found.samples[sample[1], labels] = float(sample[sample.re.groups])
    _check_histograms(found)
    return found


def _plain(text: str) -> str:
    return re.sub(r"\\(.)", lambda sign: {"n": "\n"}.get(sign[1], sign[1]), text)


def _check_histograms(found: Exposed) -> None:
    for name, kind in found.kinds.items():
        if kind == "histogram":
            buckets = found.by(f"{name}_bucket", "le")
            counts = [buckets[bound] for bound in sorted(buckets, key=float)]
            assert counts == sorted(counts) and buckets["+Inf"] == found.of(f"{name}_count")


def scrape(address: str, **headers: str) -> tuple[int, str, str]:
    """Return status, content type and text."""
    try:
        with urllib.request.urlopen(urllib.request.Request(address, headers=headers), timeout=30) as answer:
            return answer.status, answer.headers["Content-Type"], answer.read().decode()
    except urllib.error.HTTPError as problem:
        with problem:
            return problem.code, problem.headers["Content-Type"], problem.read().decode()
