"""PowerLimitOptimizer with the real server and the real pynvml, over a stub of NVIDIA's library."""

from __future__ import annotations

import contextlib
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from wattwise import (
    BatchSizeOptimizer,
    Client,
    EstimateMonitor,
    OperationOrderError,
    PowerLimitOptimizer,
    PowerProfileError,
    TrainFailError,
    v1,
)
from wattwise.launch import Launch
from wattwise.power.knowledge import Knowledge

from tests.client.training import Meter, job_spec
from tests.live_server import LiveServer
from tests.monitor.nvml_stub import Machine, Runner, StubGpu
from tests.power.training import (
    BEFORE,
    GPUS,
    VALLEY,
    VISITED,
    WALK_STEPS,
    WARMUP,
    Training,
    job_id_of,
    limits,
    log_lines,
    power_job,
    refuse_limits,
    sets,
    visited,
)
from tests.waiting import wait_until

# What follows with a name in case_ runs in a process of its own.


def another(client: Client, machine: Machine) -> v1.TrialId:
    """Another trial of the test's job."""
    spec = power_job(job_id_of(machine))
    client.register_job(spec)
    return client.get_next_batch_size(job_id_of(machine)).trial.id


def case_walk(machine: Machine, address: str) -> tuple[list[float], list[v1.PowerLimit], list[float], float | None]:
    """A whole walk: what was visited, what the server knows, what is set, and what the optimizer says."""
    training = Training(machine, address)
    training.steps(WALK_STEPS)
    return visited(machine), training.known(), limits(machine), training.plo.power_limit_watts


def case_second_trial(machine: Machine, address: str) -> tuple[list[tuple[str, float]], list[float]]:
    """The trial after one that has profiled: what its first step sets, and what is set once it is over."""
    first = Training(machine, address)
    first.steps(WALK_STEPS)
    first.bso.close()
    before = len(sets(machine))
    second = Training(machine, address)
    second.step()
    done = sets(machine)[before:]
    second.bso.close()
    return done, limits(machine)


def case_interrupted(machine: Machine, address: str) -> list[v1.PowerLimit]:
    """Epochs shorter than what is measured at a limit, dear warm-up steps, and dearer evaluations between epochs."""
    training = Training(machine, address)
    for number in range(WALK_STEPS):
        training.step(1000.0 if number % 5 < WARMUP else 0.0)
        if number % 2:
            training.plo.on_epoch_end()
            training.use(5000.0, 5000.0)
            training.bso.on_evaluate(0.1)
    return training.known()


def case_cost_of_profiling(machine: Machine, address: str) -> tuple[float, float]:
    """What the trial is reported to have used, and what the GPUs used."""
    training = Training(machine, address)
    training.steps(WALK_STEPS)
    training.plo.on_epoch_end()
    training.bso.on_evaluate(0.1)
    with Client(address) as client:
        return client.get_trial(training.bso.trial.id).trial.energy_joules, sum(training.used)


def case_another_profiles(machine: Machine, address: str) -> list[list[float]]:
    """What was visited while another trial profiles, at the epoch's end then, and once that one has reported."""
    with Client(address) as client:
        other = another(client, machine)
        assert not client.get_power_limit(other).profiled_by_another
        seen = []
        training = Training(machine, address)
        training.steps(20)
        seen.append(visited(machine))
        training.plo.on_epoch_end()
        seen.append(visited(machine))
        sample = v1.PowerSample(power_limit_watts=125, time_seconds=1, energy_joules=1, steps=1)
        client.report_power_profile(other, [sample])
        training.steps(20)
        seen.append(visited(machine))
        training.plo.on_epoch_end()
        return [*seen, visited(machine), limits(machine)]


def case_another_ends(machine: Machine, address: str) -> list[float]:
    """What is visited when the trial that profiled ended without a profile."""
    with Client(address) as client:
        other = another(client, machine)
        client.get_power_limit(other)
        training = Training(machine, address)
        training.step()
        client.end_trial(other, v1.END_REASON_ERROR)
        training.plo.on_epoch_end()
        training.steps(WALK_STEPS)
    return visited(machine)


def case_observer(machine: Machine, address: str, trials: int) -> tuple[list[float], list[str], object, str]:
    """In observer mode, maybe once the limit is known: limits at the end, warnings, and what is computed."""
    lines = log_lines()
    for _ in range(trials - 1):
        other = Training(machine, address)
        other.steps(WALK_STEPS)
        other.bso.close()
    training = Training(machine, address, observer_mode=True)
    training.steps(WALK_STEPS - 1)
    assert training.plo.computed is None
    training.steps(11)
    training.plo.on_epoch_end()
    return limits(machine), lines, training.plo.computed, str(training.plo.computed)


def case_no_permission(machine: Machine, address: str) -> tuple[list[str], list[tuple[str, float]], list[bool]]:
    """A trial that may not set limits: what is said and set, and whether a second trial is kept from profiling."""
    lines = log_lines()
    refuse_limits(machine)
    training = Training(machine, address)
    for _ in range(3):
        training.steps(10)
        training.plo.on_epoch_end()
        training.bso.on_evaluate(0.1)
    with Client(address) as client:
        answer = client.get_power_limit(training.bso.trial.id)
    training.bso.close()
    return lines, sets(machine), [answer.profiled_by_another]


def case_lost_gpu(machine: Machine, address: str) -> tuple[list[str], float]:
    """A GPU that falls off the bus in the middle of the walk: what is said, and the limit of the other one."""
    lines = log_lines()
    training = Training(machine, address)
    training.steps(WARMUP + 2)
    training.plo.on_step_begin()
    machine.show(GPUS[0], StubGpu(uuid="lost"))
    training.plo.on_step_end()
    for _ in range(10):
        training.plo.on_step_begin()
        training.plo.on_step_end()
    return lines, limits(machine)[0]


def case_server_dies(machine: Machine, folder: Path) -> tuple[list[str], list[list[float]], list[float]]:
    """The server dies in mid-walk and comes back: what is said, limits after the walk, and what it knows at last."""
    lines = log_lines()
    with LiveServer(folder) as server:
        training = Training(machine, server.start(), timeout=2.0)
        training.step()
        server.kill()
        training.steps(WALK_STEPS)
        seen = [limits(machine)]
        server.start()
        for _ in range(200):
            training.steps(1)
            training.plo.on_epoch_end()
            if known := training.known():
                break
        return (
            [line for line in lines if "power limits" in line],
            [*seen, limits(machine)],
            [limit.power_limit_watts for limit in known],
        )


def case_server_away(machine: Machine, folder: Path) -> tuple[list[list[float]], list[float]]:
    """The server is away at the first step and comes back: what was visited before, and after."""
    with LiveServer(folder) as server:
        training = Training(machine, server.start(), timeout=2.0)
        server.kill()
        training.steps(20)
        seen = [visited(machine)]
        server.start()
        while not training.plo.profiling:
            training.plo.on_epoch_end()
        training.steps(WALK_STEPS)
        return [*seen, visited(machine)], limits(machine)


def case_deleted(machine: Machine, address: str) -> tuple[list[str], list[float], list[float]]:
    """The job is deleted in mid-walk: what is said, the limits after the walk, and those after the epoch."""
    lines = log_lines()
    training = Training(machine, address)
    training.step()
    with Client(address) as client:
        client.delete_job(training.bso.trial.id.job_id)
    training.steps(WALK_STEPS)
    walked = limits(machine)
    wait_until(lambda: training.bso.training_finished)
    training.plo.on_epoch_end()
    return [line for line in lines if "power limits" in line], walked, limits(machine)


def case_mixed_constraints(machine: Machine, address: str) -> list[float]:
    """Two GPUs that may not be set alike: what is visited."""
    training = Training(machine, address, dict.fromkeys(range(0, 400, 5), 1.0), step_watts=30)
    training.used = [0.0, 0.0]
    machine.show(GPUS[0], replace(GPUS[1], lowest_limit_mw=150_000, highest_limit_mw=230_000))
    for _ in range(40):
        training.plo.on_step_begin()
        training.plo.on_step_end()
    return visited(machine)


def case_known_beyond_reach(machine: Machine, address: str) -> list[float]:
    """Another trial's GPUs could be set lower than these: the limits that are set."""
    training = Training(machine, address)
    with Client(address) as client:
        sample = v1.PowerSample(power_limit_watts=60, time_seconds=1, energy_joules=1, steps=1)
        client.report_power_profile(training.bso.trial.id, [sample])
    training.step()
    return limits(machine)


def case_decided(machine: Machine, address: str, walking: bool) -> list[list[float]]:
    """A trial that is decided by its report, in mid-walk or after: limits before and after."""
    training = Training(machine, address)
    training.steps(5 if walking else WALK_STEPS)
    seen = [limits(machine)]
    training.plo.on_epoch_end()
    with contextlib.suppress(TrainFailError):
        training.bso.on_evaluate(0.95)
    seen.append(limits(machine))
    training.steps(WALK_STEPS)
    return [*seen, limits(machine)]


def case_any_table(machine: Machine, address: str) -> int:
    """Walks over many tables of costs; returns how many."""
    walks = 0

    @settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), database=None)
    @given(st.lists(st.integers(1, 9), min_size=7, max_size=7), st.integers(0, 1), st.integers(1, 2), st.booleans())
    def one(costs: Sequence[int], warmup: int, measured: int, fails: bool) -> None:
        nonlocal walks
        walks += 1
        table = dict(zip(VALLEY, map(float, costs), strict=True))
        given = {"profile_warmup_iters": warmup, "profile_measure_iters": measured}
        training = Training(machine, address, table, f"{job_id_of(machine)}-{walks}", **given)
        before = len(visited(machine))
        with contextlib.suppress(RuntimeError), training.bso:
            training.steps(7 * (warmup + measured))
            (chosen, other) = limits(machine)
            walked = visited(machine)[before:]
            walked = [watts for watts in dict.fromkeys(walked) if watts in table]
            assert chosen == other == training.plo.power_limit_watts
            cheapest = min(table[round(watts)] for watts in walked)
            assert chosen == min(watts for watts in walked if table[round(watts)] == cheapest)
            seen = [table[round(watts)] for watts in table if watts in walked]
            assert all(min(seen[n - 2 : n]) <= min(seen[:n]) for n in range(3, len(seen)))
            if fails:
                raise RuntimeError
        assert limits(machine) == BEFORE

    one()
    return walks


def case_signal_anywhere(machine: Machine, address: str) -> tuple[int, list[list[float]], list[v1.PowerLimit]]:
    """SIGTERM, which the process survives, at a line after another: how often, limits that were left, and reports."""
    signal.signal(signal.SIGTERM, lambda _number, _frame: None)
    left, known, fired = [], [], 0
    for line in range(3, 560, 37):
        training = Training(machine, address, job_id=f"{job_id_of(machine)}-{line}")
        with raised_at(line) as raised:
            training.steps(WARMUP + 10)
        training.steps(WALK_STEPS)
        training.plo.on_epoch_end()
        fired += len(raised)
        left.append(limits(machine))
        known += training.known()
    return fired, left, known


@contextlib.contextmanager
def raised_at(line: int) -> Iterator[list[int]]:
    """Raises SIGTERM when so many lines of what sets power limits have run; notes that in what is yielded."""
    count = 0
    raised: list[int] = []

    def trace(frame: FrameType, event: str, _argument: object) -> Callable[..., Any] | None:
        nonlocal count
        file = frame.f_code.co_filename
        if "wattwise/power" not in file and "power_limits" not in file:
            return None
        count += event == "line"
        if count >= line and not raised:
            raised.append(line)
            signal.raise_signal(signal.SIGTERM)
        return trace

    sys.settrace(trace)
    try:
        yield raised
    finally:
        sys.settrace(None)


def test_unknown_limit_is_walked_for(machine: Machine, grpc_addr: str, run: Runner) -> None:
    """From the highest limit down until two in a row cost more; the cheapest is reported and set on every GPU."""
    seen, known, now, said = run(case_walk, machine, grpc_addr)
    # The first is the check of the permission, which sets what is set.
    assert seen == [200.0, *VISITED, 175.0]
    assert (now, said) == ([175.0, 175.0], 175.0)
    (limit,) = known
    assert (limit.batch_size, limit.power_limit_watts) == (16, 175)
    assert limit.cost_per_step == pytest.approx(2 * VALLEY[175])
    assert limit.energy_joules_per_step == pytest.approx(2 * VALLEY[175])


def test_limits_are_set_in_milliwatts(machine: Machine, grpc_addr: str, run: Runner) -> None:
    """175 W reach the driver as 175000 mW."""
    run(case_walk, machine, grpc_addr)
    assert Path(f"{machine.file}.limit.GPU-aaaa").read_text() == "175000\n"


def test_known_limit_is_set_at_once(machine: Machine, grpc_addr: str, run: Runner) -> None:
    """The second trial walks no more, and gives the GPUs back as they were."""
    done, at_last = run(case_second_trial, machine, grpc_addr)
    check = [(gpu.uuid, 200.0) for gpu in GPUS]
    assert done == [*check, *((gpu.uuid, 175.0) for gpu in GPUS)]
    assert at_last == BEFORE


def test_only_training_steps_are_measured(machine: Machine, grpc_addr: str, run: Runner) -> None:
    """Neither what warming up takes nor what is between epochs is in a sample, across whatever epochs it goes."""
    (limit,) = run(case_interrupted, machine, grpc_addr)
    assert limit.power_limit_watts == 175
    assert limit.energy_joules_per_step == pytest.approx(2 * VALLEY[175])


def test_profiling_is_part_of_the_trial(machine: Machine, grpc_addr: str, run: Runner) -> None:
    """What the walk uses, warm-up included, is in the energy that the trial reports."""
    reported, used = run(case_cost_of_profiling, machine, grpc_addr)
    assert reported == pytest.approx(used)
    assert used == pytest.approx(2 * 5 * sum(VALLEY[round(watts)] for watts in VISITED))


def test_waits_while_another_trial_profiles(machine: Machine, grpc_addr: str, run: Runner) -> None:
    """It trains at the present limit, asks at the end of every epoch and sets what the other found."""
    *before, after, now = run(case_another_profiles, machine, grpc_addr)
    assert before == [[200.0]] * 3
    assert (after, now) == ([200.0, 125.0], [125.0, 125.0])


def test_walks_itself_when_the_other_is_gone(machine: Machine, grpc_addr: str, run: Runner) -> None:
    """The trial that profiled ended without a profile: this one walks from the next epoch on."""
    assert run(case_another_ends, machine, grpc_addr) == [200.0, *VISITED, 175.0]


@pytest.mark.parametrize("trials", [1, 2])
def test_observer_trains_at_the_highest_limit(machine: Machine, grpc_addr: str, run: Runner, trials: int) -> None:
    """It profiles, known limit or not, trains on at the highest, and computes what the cheapest would have taken."""
    now, warnings, computed, said = run(case_observer, machine, grpc_addr, trials)
    assert (now, warnings) == ([250.0, 250.0], [])
    steps = WALK_STEPS + 10
    expected = {
        "steps": steps,
        "power_limit_watts": 175.0,
        "energy_joules": pytest.approx(steps * 2 * VALLEY[175]),
        "highest_power_limit_watts": 250.0,
        "highest_energy_joules": pytest.approx(steps * 2 * VALLEY[250]),
    }
    assert {name: getattr(computed, name) for name in expected} == expected
    assert said.startswith("computed from the profile, not measured: 40 steps would have taken ")


def test_no_permission_is_said_once(machine: Machine, grpc_addr: str, run: Runner) -> None:
    """One warning names what setting limits takes; nothing is set, and nobody is kept from profiling."""
    (line,), done, kept = run(case_no_permission, machine, grpc_addr)
    assert "no permission to set the power limit of Stub V100 (GPU-aaaa)" in line
    assert "takes root (or CAP_SYS_ADMIN)" in line
    assert "training goes on at the present power limit" in line
    assert (done, kept) == ([], [False])


def test_lost_gpu_ends_the_walk(machine: Machine, grpc_addr: str, run: Runner) -> None:
    """A meter that fails in mid-walk does not disturb the training; the GPUs that are left get their limit back."""
    (why, left), limit = run(case_lost_gpu, machine, grpc_addr)
    assert "training goes on" in why
    assert "nvidia-smi -i GPU-bbbb -pl 200" in left
    assert limit == 200.0


def test_profile_waits_for_the_server(machine: Machine, run: Runner, tmp_path: Path) -> None:
    """A server that dies in mid-walk is warned of once; the own winner is set, and reported when the server is back."""
    said, now, known = run(case_server_dies, machine, tmp_path)
    assert len(said) == 1
    assert "asked again after the epoch" in said[0]
    assert (now, known) == ([[175.0, 175.0]] * 2, [175.0])


def test_server_away_at_the_first_step(machine: Machine, run: Runner, tmp_path: Path) -> None:
    """Without an answer nothing is set; the walk begins once the server has said that it may."""
    (before, after), now = run(case_server_away, machine, tmp_path)
    assert before == [200.0]
    assert after == [200.0, *VISITED, 175.0]
    assert now == [175.0, 175.0]


def test_refused_profile_is_dropped(machine: Machine, grpc_addr: str, run: Runner) -> None:
    """A profile that the server refuses is warned of once; the own winner is set while the training lasts."""
    said, walked, at_last = run(case_deleted, machine, grpc_addr)
    assert len(said) == 1
    assert "is dropped" in said[0]
    assert (walked, at_last) == ([175.0, 175.0], BEFORE)


def test_silent_server_is_not_waited_for_again_and_again() -> None:
    """After a call that timed out the next ones return at once, without trying, for many times as long."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.setblocking(False)
        launch = Launch(f"127.0.0.1:{silent.getsockname()[1]}", job_spec(), None, None)
        knowledge = Knowledge(launch, v1.TrialId(job_id="j", batch_size=8, trial_number=1), timeout=0.5)
        assert knowledge.ask() is None
        silent.accept()[0].close()
        with contextlib.suppress(BlockingIOError):
            while True:
                silent.accept()[0].close()
        assert knowledge.ask() is None
        with pytest.raises(BlockingIOError):
            silent.accept()


def test_limits_in_common(machine: Machine, grpc_addr: str, run: Runner) -> None:
    """GPUs that differ are walked within what all of them allow."""
    seen = run(case_mixed_constraints, machine, grpc_addr)
    assert seen[:4] == [200.0, 230.0, 200.0, 170.0]
    assert min(seen) == 170.0


def test_known_limit_beyond_reach(machine: Machine, grpc_addr: str, run: Runner) -> None:
    """A limit below the lowest that these GPUs have becomes their lowest."""
    assert run(case_known_beyond_reach, machine, grpc_addr) == [100.0, 100.0]


@pytest.mark.parametrize(("walking", "now"), [(True, 225.0), (False, 175.0)])
def test_decided_trial_gives_the_gpus_back(
    machine: Machine, grpc_addr: str, run: Runner, walking: bool, now: float
) -> None:
    """Once the server has decided the trial the previous limits are there again, and stay."""
    assert run(case_decided, machine, grpc_addr, walking) == [[now, now], BEFORE, BEFORE]


def test_any_costs(machine: Machine, grpc_addr: str, run: Runner) -> None:
    """Whatever limits cost: the cheapest visited is set, no limit too many is visited, and all are restored."""
    assert run(case_any_table, machine, grpc_addr) >= 25


def test_sigterm_at_any_line(machine: Machine, grpc_addr: str, run: Runner) -> None:
    """Wherever a SIGTERM that the process survives finds the walk: limits are put back, and the walk is no more."""
    fired, left, known = run(case_signal_anywhere, machine, grpc_addr)
    assert fired == len(left) > 10
    assert left == [BEFORE] * len(left)
    assert known == []


@pytest.mark.parametrize("meter", [EstimateMonitor(watts=50), Meter()])
def test_without_gpus_it_does_nothing(
    grpc_addr: str, meter: EstimateMonitor | Meter, caplog: pytest.LogCaptureFixture
) -> None:
    """A meter of no GPU, and one whose GPUs have no driver, are said once, and training goes on."""
    with BatchSizeOptimizer(grpc_addr, job_spec(), monitor=meter) as bso, PowerLimitOptimizer(bso) as plo:
        bso.get_batch_size()
        bso.on_train_begin()
        for _ in range(3):
            plo.on_step_begin()
            plo.on_step_end()
            plo.on_epoch_end()
        bso.on_evaluate(0.1)
        assert plo.power_limit_watts is None
    (record,) = (record for record in caplog.records if "power limit" in record.getMessage())
    assert "training goes on at the present power limit" in record.getMessage()


def test_steps_before_the_batch_size(grpc_addr: str) -> None:
    """A step before the trial has its batch size is refused, saying what to call."""
    bso = BatchSizeOptimizer(grpc_addr, job_spec(), monitor=Meter())
    with pytest.raises(OperationOrderError, match=r"call get_batch_size\(\) before"):
        PowerLimitOptimizer(bso).on_step_begin()


@pytest.mark.parametrize(
    "given",
    [{"step_watts": 0}, {"step_watts": float("nan")}, {"profile_warmup_iters": -1}, {"profile_measure_iters": 0}],
)
def test_senseless_lengths_are_refused(grpc_addr: str, given: dict[str, float]) -> None:
    """A walk that would never end or measure nothing is refused, naming the number."""
    bso = BatchSizeOptimizer(grpc_addr, job_spec(), monitor=Meter())
    with pytest.raises(PowerProfileError, match=f"{next(iter(given))}=.* makes no sense; give"):
        PowerLimitOptimizer(bso, **given)  # type: ignore[arg-type]
