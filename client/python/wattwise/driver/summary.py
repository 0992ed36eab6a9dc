"""What a run took, against the default batch size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from wattwise.commands.estimates import estimate_mark
from wattwise.commands.humanize import duration, joules
from wattwise.driver.history import Record


def summary(records: Sequence[Record], default_batch_size: int, monitor: str) -> Iterator[str]:
    """The closing lines.

    Args:
        records: the history of the run.
        default_batch_size: what it is compared with.
        monitor: the driver's monitor, in words.
    """
    mark = estimate_mark(*(record.monitor for record in records))
    recurrences = len({record.recurrence for record in records if record.reached})
    yield f"{_counted(recurrences, 'recurrence')} reached the target, in {_counted(len(records), 'trial')}:"
    spent = _sums(records)
    yield f"  all trials together: {_amounts(spent, mark)}"
    unknown = sum(record.cost is None for record in records)
    if unknown:
        yield f"  what {_counted(unknown, 'trial')} of them took is unknown, and not in these sums"
    default = [r for r in records if r.batch_size == default_batch_size and r.reached and r.cost is not None]
    if not default:
        yield f"  no trial of the default batch size {default_batch_size} reached the target: nothing to compare with"
    else:
        factor = recurrences / len(default)
        energy, time, cost = _sums(default)
        expected = (factor * energy, factor * time, factor * cost)
        yield (
            f"  the default batch size {default_batch_size} alone: {_amounts(expected, mark)}, "
            f"which is the mean of its {_counted(len(default), 'trial')} here times {recurrences}"
        )
        shares = zip(("energy", "time", "cost"), spent, expected, strict=True)
        yield f"  that is {', '.join(f'{_share(is_, would)} {name}' for name, is_, would in shares)} than with it"
    yield f"The driver's monitor is {monitor}."


def _sums(records: Sequence[Record]) -> tuple[float, float, float]:
    """Energy in joules, time in seconds and cost in joules, as far as they are known."""
    return (
        sum(record.energy_joules or 0.0 for record in records),
        sum(record.time_seconds or 0.0 for record in records),
        sum(record.cost or 0.0 for record in records),
    )


def _amounts(sums: tuple[float, float, float], mark: str) -> str:
    energy, time, cost = sums
    return f"energy {joules(energy)}{mark}, time {duration(time)}, cost {joules(cost)}{mark}"


def _share(spent: float, expected: float) -> str:
    if expected <= 0:
        return "an unknown share of"
    share = 1 - spent / expected
    return f"{abs(share):.0%} {'less' if share >= 0 else 'MORE'}"


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
