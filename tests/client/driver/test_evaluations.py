"""Metrics and epochs in the output of a command."""

from __future__ import annotations

import math
import signal
import tracemalloc
from pathlib import Path

import pytest
from wattwise.driver import evaluations
from wattwise.driver.evaluations import EvaluationReader, fault_in
from wattwise.driver.outcome import OUTPUT, MeasuredEpoch

METRIC, ANY, EPOCH = r"acc: ([0-9.]+)", r"acc: (\S+)", r"epoch (\d+)"


class Output:
    """A command's output that grows, and what the driver reads in it."""

    def __init__(self, folder: Path, metric: str = METRIC, epoch: str | None = None) -> None:
        self.path = folder / OUTPUT
        self.path.touch()
        self.said: list[str] = []
        self.seconds = 0.0
        self.reader = EvaluationReader(self.path, metric, epoch, self.said.append)

    def read(self, text: str | bytes = "", *, to_end: bool = False) -> list[tuple[int, float]]:
        """Adds to the output and reads it."""
        return [(epoch, metric) for epoch, metric, *_ in self.measured(text, to_end=to_end)]

    def measured(self, text: str | bytes = "", *, to_end: bool = False) -> list[MeasuredEpoch]:
        """Adds to the output and reads it, a second later than before."""
        with self.path.open("ab") as file:
            file.write(text.encode() if isinstance(text, str) else text)
        self.seconds += 1
        return list(self.reader.read(lambda: (self.seconds, 2 * self.seconds), to_end=to_end))


@pytest.mark.parametrize(
    ("text", "metrics"),
    [
        ("acc: 0.5\nother\nacc: 0.75\n", [0.5, 0.75]),
        ("acc: 0.5\r\nacc: 0.75\r\n", [0.5, 0.75]),
        ("\x1b[1;32macc:\x1b[0m \x1b[38;5;9m0.5\x1b[K\n\x1b]0;title\x07acc\x1b(B: 0.75\n", [0.5, 0.75]),
        ("Accuracy, acc: 0.5.\n", [0.5]),
        (b"\xff\xfe\x00 acc: 0.5 \xe4\n", [0.5]),
        ("\racc: 0.1\racc: 0.5\r         \rdone\n", [0.5]),
        ("acc: 0.5\r 60%|###   |\n", [0.5]),
        ("\r 60%|###   |acc: 0.5\n\r 70%|####  |", [0.5]),
        (f"{'.' * 1_000_000} acc: 0.5\n", [0.5]),
        (f"acc: 0.5 {'.' * 1_000_000}\n", [0.5]),
        (f"acc: {' ' * 1_000_000}0.5\n", []),
        ("acc: 0.5", [0.5]),
    ],
)
def test_lines_that_match(tmp_path: Path, text: str | bytes, metrics: list[float]) -> None:
    """Colours do not count, of a line that overwrites itself the last state does, and the last line may have no end."""
    output = Output(tmp_path)
    assert output.read(text, to_end=True) == list(enumerate(metrics, 1))
    assert output.said == []


def test_partial_lines(tmp_path: Path) -> None:
    """A line counts when it is complete, however it is written."""
    output = Output(tmp_path)
    for byte in "acc: 0.5":
        assert output.read(byte) == []
    assert output.read("0\nacc: 0.") == [(1, 0.5)]
    assert output.read("7") == []
    assert output.read(to_end=True) == [(2, 0.7)]


def test_memory_is_bounded(tmp_path: Path) -> None:
    """What is kept of a line does not grow with it, and what is read at once is bounded."""
    output, parts = Output(tmp_path), [b"x" * 7_000_000] * 3
    tracemalloc.start()
    try:
        for part in parts:
            assert output.read(part) == []
        kept, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 50_000
    assert most < 2_000_000
    # The end is not read yet.
    assert output.read(" acc: 0.5\n") == []
    assert output.read(to_end=True) == [(1, 0.5)]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("epoch 1\nacc: 0.5\nepoch 2\nacc: 0.75\n", [(1, 0.5), (2, 0.75)]),
        ("epoch 0 acc: 0.5\nepoch 1 acc: 0.75\n", [(1, 0.5), (2, 0.75)]),
        ("epoch 5 acc: 0.5\nepoch 10 acc: 0.75\n", [(5, 0.5), (10, 0.75)]),
        ("epoch 0 loss: 3\nepoch 1 acc: 0.5\n", [(1, 0.5)]),
        ("epoch 1 acc: 0.1\repoch 1 acc: 0.5\repoch 2 acc: 0.6\repoch 2 acc: 0.75\n", [(1, 0.5), (2, 0.75)]),
        ("epoch 1.0 acc: 0.5\nepoch 1.25 loss: 3\nepoch 2.0 acc: 0.75\n", [(1, 0.5), (2, 0.75)]),
    ],
)
def test_epochs_that_match(tmp_path: Path, text: str, found: list[tuple[int, float]]) -> None:
    """The newest epoch is the metric's; where the first one is 0, all count from there."""
    output = Output(tmp_path, METRIC, EPOCH)
    assert output.read(text) == found
    assert output.said == []


def test_time_of_an_epoch(tmp_path: Path) -> None:
    """An epoch ends when its metric is read first, also if it counts only when the line, or the next epoch, ends."""
    output = Output(tmp_path, METRIC, EPOCH)
    assert output.measured("epoch 1 acc: 0.1\repoch 1 acc: 0.5") == []
    assert output.measured("\repoch 1 acc: 0.5 |##|\repoch 2") == []
    assert output.measured(" acc: 0.75\r") == [(1, 0.5, 2.0, 4.0)]
    assert output.measured("\n") == [(2, 0.75, 3.0, 6.0)]


@pytest.mark.parametrize(
    ("patterns", "text", "found", "named"),
    [
        ((ANY, None), "acc: n/a\nacc: none\nacc: 0.5\n", [(1, 0.5)], "n/a"),
        ((ANY, None), "acc: 98%\n", [], "98%"),
        ((METRIC, None), "acc: 1e-05\nacc: 0.5\n", [(1, 0.5)], "1e-05"),
        ((r"acc: ?-?([0-9.]+)", None), "acc: -0.5\n", [], "-0.5"),
        ((r"acc: (\d+)", None), "acc: 0.93\n", [], "0.93"),
        ((r"acc.*([0-9.]+)", None), "acc: 0.915\n", [], "0.915"),
        ((r"(\d\.\d+)", None), "acc: 10.5\nacc: 0.5\n", [(1, 0.5)], "10.5"),
        ((r"acc: (\d\.\d\d)", None), "acc: 0.9123\n", [], "0.9123"),
        ((METRIC, None), "acc: 0,915\nacc: 0.5\n", [(1, 0.5)], "0,915"),
        ((METRIC, None), "acc: 1,234.5\nacc: 0.5\n", [(1, 0.5)], "1,234.5"),
        ((METRIC, EPOCH), "acc: 0.1\nepoch 1 acc: 0.5\n", [(1, 0.5)], "epoch_pattern"),
        ((METRIC, EPOCH), "epoch 1 acc: 0.5\nepoch 1 acc: 0.6\nepoch 2 acc: 0.75\n", [(1, 0.5), (2, 0.75)], "epoch 1 "),
        ((METRIC, EPOCH), "epoch 3 acc: 0.5\nepoch 1 acc: 0.6\nepoch 4 acc: 0.75\n", [(3, 0.5), (4, 0.75)], "epoch 1 "),
        ((METRIC, r"epoch (\S+)"), "epoch one acc: 0.5\nepoch 2 acc: 0.75\n", [(2, 0.75)], "one"),
        ((METRIC, EPOCH), "epoch 0.5 acc: 0.5\nepoch 1.0 acc: 0.75\n", [(1, 0.75)], "0.5"),
        ((METRIC, EPOCH), f"epoch {2**31} acc: 0.5\n", [], str(2**31)),
    ],
)
def test_invalid_evaluations(
    tmp_path: Path, patterns: tuple[str, str | None], text: str, found: list[tuple[int, float]], named: str
) -> None:
    """What is not a number, or not in order, is ignored, and said once."""
    output = Output(tmp_path, *patterns)
    assert output.read(text) == found
    (said,) = output.said
    assert named in said
    assert output.reader.fault == said


@pytest.mark.parametrize(
    "text", ["{'acc': 0.5, 'x': 1}", "{'acc': 0.5}", "100%|###| [00:02, acc: 0.5]", '{"acc": "0.5"}']
)
def test_punctuation(tmp_path: Path, text: str) -> None:
    """What ends a sentence, a list or a dictionary is no part of the number."""
    output = Output(tmp_path, r"""acc['"]?: "?(\S+)""")
    assert (output.read(f"{text}\n"), output.said) == ([(1, 0.5)], [])


@pytest.mark.parametrize(
    ("metric", "text"),
    [(r"^([0-9.]+)", "0.5,1\n"), (r"^\d+,([0-9.]+)", "2,1,0.5\n"), (r"^([0-9.]+)", "1,0.5\n"), (METRIC, "acc: 1,b\n")],
)
def test_numbers_that_commas_separate(tmp_path: Path, metric: str, text: str) -> None:
    """A comma between numbers is no part of them."""
    output = Output(tmp_path, metric)
    assert (len(output.read(text)), output.said) == (1, [])


def test_part_of_an_epoch(tmp_path: Path) -> None:
    """All digits of an epoch count, of which the pattern may match only some."""
    output = Output(tmp_path, METRIC, r"epoch (\d)")
    assert output.read("epoch 9: acc: 0.5\nepoch 10: \nacc: 0.75\n") == [(9, 0.5), (10, 0.75)]


def test_pattern_that_takes_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A search is given up, after which the output is no longer read; the fault says why."""
    monkeypatch.setattr(evaluations, "_LONGEST_SEARCH_SECONDS", 0.1)
    output = Output(tmp_path, r"(?:[a-z ]+)+acc: (\S+)")
    handler = signal.getsignal(signal.SIGALRM)
    assert output.read(f"{'step ' * 20}\n and acc: 0.5\n") == []
    assert output.read("and acc: 0.5\n", to_end=True) == []
    (said,) = output.said
    assert output.reader.fault == said
    assert "(a+)+" in said
    assert signal.getsignal(signal.SIGALRM) == handler


def test_metrics_that_diverge(tmp_path: Path) -> None:
    """NaN and infinity are metrics."""
    output = Output(tmp_path, ANY)
    (_, nan), (_, infinite) = output.read("acc: nan\nacc: inf\n")
    assert math.isnan(nan)
    assert infinite == math.inf
    assert output.said == []


def test_no_match(tmp_path: Path) -> None:
    """The fault names the pattern that matches nothing."""
    output = Output(tmp_path)
    assert output.read("accuracy 0.5\n", to_end=True) == []
    assert METRIC in output.reader.fault


def test_output_that_is_deleted(tmp_path: Path) -> None:
    """A command that deletes its log has no metrics."""
    output = Output(tmp_path)
    output.path.unlink()
    assert list(output.reader.read(lambda: (1.0, 1.0))) == []


@pytest.mark.parametrize("pattern", [METRIC, r"(?:val_|test_)acc: (\S+)", r"(train|val) acc: (?P<metric>\S+)"])
def test_valid_patterns(pattern: str) -> None:
    """One group, or one that is named, has the number."""
    assert fault_in(pattern, "metric") is None


@pytest.mark.parametrize(
    "pattern",
    ["acc: [0-9.]+", "(train|val) acc: (.*)", "acc: (", "acc: (?P<epoch>a)(b)", "a{99999999999}(b)", "\bacc: (.*)"],
)
def test_invalid_patterns(pattern: str) -> None:
    """What is not a regular expression with one number is refused; the fault quotes it."""
    assert repr(pattern) in str(fault_in(pattern, "metric"))
