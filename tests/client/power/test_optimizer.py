"""PowerLimitOptimizer with the real server and the real pynvml, over a stub of NVIDIA's library."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from wattwise import BatchSizeOptimizer, Client, CombinedMonitor, EndReason, NvmlMonitor, PowerLimitOptimizer, v1
from wattwise.errors import InvalidArgumentError, OperationOrderError, TrainFailError
from wattwise.power.settings import profile_settings

from tests.client.monitor.nvml_stub import Machine, Runner
from tests.client.power.training import (
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
    sets,
    visited,
)
from tests.client.training.script import JOULES, StepMonitor, job_spec

# Functions named case_... run in their own process.


def another(client: Client, machine: Machine) -> v1.TrialId:
    """Another trial of the test's job."""
    spec = power_job(job_id_of(machine))
    client.register_job(spec)
    return client.get_next_batch_size(job_id_of(machine)).trial.id


def case_walk(machine: Machine, address: str) -> tuple[list[float], list[v1.PowerLimit], list[float], float | None]:
    """A whole walk: the visited limits, the server's limits, the present ones, and the optimizer's attribute."""
    training = Training(machine, address)
    training.steps(WALK_STEPS)
    return visited(machine), training.known(), limits(machine), training.plo.limit_watts_per_gpu


def case_second_trial(machine: Machine, address: str) -> tuple[list[tuple[str, float]], list[float]]:
    """The trial after one that has profiled: the limits that its first step sets, and those after its end."""
    first = Training(machine, address)
    first.steps(WALK_STEPS)
    first.bso.close()
    before = len(sets(machine))
    second = Training(machine, address)
    second.step()
    done = sets(machine)[before:]
    second.bso.close()
    return done, limits(machine)


def case_attempts(machine: Machine, address: str) -> list[list[float]]:
    """The limits in three attempts of one launch, the last of which restores them itself, and after each."""
    training, seen = Training(machine, address), []
    for attempt in training.bso.attempts(max_tries=3):
        if attempt.number > 1:
            seen.append(limits(machine))
        training.steps(WALK_STEPS if attempt.number == 1 else 1)
        seen.append(limits(machine))
        if attempt.number == 3:
            training.plo.close()
            break
    return [*seen, limits(machine)]


def case_interrupted(machine: Machine, address: str) -> list[v1.PowerLimit]:
    """Epochs shorter than the steps at a limit, expensive warm-up steps, and more expensive evaluations."""
    training = Training(machine, address)
    for number in range(WALK_STEPS):
        training.step(1000.0 if number % 5 < WARMUP else 0.0)
        if number % 2:
            training.plo.on_epoch_end()
            training.use(5000.0, 5000.0)
            training.bso.on_evaluate(0.1)
    return training.known()


def case_cost_of_profiling(machine: Machine, address: str) -> tuple[float, float]:
    """The energy that the trial reports, and the energy of the GPUs."""
    training = Training(machine, address)
    training.steps(WALK_STEPS)
    training.plo.on_epoch_end()
    training.bso.on_evaluate(0.1)
    with Client(address) as client:
        return client.get_trial(training.bso.trial).trial.newest.energy_joules, sum(training.used)


def case_combined(machine: Machine, address: str) -> tuple[list[v1.PowerLimit], float]:
    """A walk with other monitors beside that of the GPUs: the server's limits, and the trial's energy."""

    def monitor() -> CombinedMonitor:
        return CombinedMonitor(Beside("wall"), CombinedMonitor(Beside("disks"), NvmlMonitor()))

    training = Training(machine, address, monitor=monitor)
    training.steps(WALK_STEPS)
    training.bso.on_evaluate(0.1)
    with Client(address) as client:
        return training.known(), client.get_trial(training.bso.trial).trial.newest.energy_joules


class Beside(StepMonitor):
    """A monitor without GPUs; each of its windows uses 10 J."""

    gpu_indices = ()  # type: ignore[assignment]

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind


def case_another_profiles(machine: Machine, address: str) -> list[list[float]]:
    """The visited limits while another trial profiles, after an epoch, and after the other has reported."""
    with Client(address) as client:
        other = another(client, machine)
        assert client.acquire_power_limit(other).action == v1.POWER_ACTION_PROFILE
        seen = []
        training = Training(machine, address)
        training.steps(20)
        seen.append(visited(machine))
        training.plo.on_epoch_end()
        seen.append(visited(machine))
        sample = v1.PowerSample(
            power_setting=v1.PowerSetting(limit_watts_per_gpu=125), time_seconds=1, energy_joules=1, steps=1
        )
        client.report_power_profile(other, [sample])
        training.steps(20)
        seen.append(visited(machine))
        training.plo.on_epoch_end()
        return [*seen, visited(machine), limits(machine)]


def case_another_ends(machine: Machine, address: str) -> list[float]:
    """The visited limits after the profiling trial ended without a profile."""
    with Client(address) as client:
        other = another(client, machine)
        client.acquire_power_limit(other)
        training = Training(machine, address)
        training.step()
        client.end_trial(other, v1.END_REASON_ERROR)
        training.plo.on_epoch_end()
        training.steps(WALK_STEPS)
    return visited(machine)


def case_observer(machine: Machine, address: str) -> tuple[list[float], list[str], object, str]:
    """Observer mode in the first trial: limits at the end, warnings, and the computed usage."""
    lines = log_lines()
    training = Training(machine, address, observer_mode=True)
    training.steps(WALK_STEPS - 1)
    assert training.plo.computed is None
    training.steps(11)
    training.plo.on_epoch_end()
    return limits(machine), lines, training.plo.computed, str(training.plo.computed)


def case_observer_of_a_known_profile(machine: Machine, address: str) -> tuple[list[float], v1.Trial, Any]:
    """Observer mode after another trial has profiled: the limits that it sets, the trial, and the computed usage."""
    other = Training(machine, address)
    other.steps(WALK_STEPS)
    other.bso.close(EndReason.PREEMPTED)
    before = len(sets(machine))
    training = Training(machine, address, observer_mode=True)
    training.steps(10)
    training.plo.on_epoch_end()
    training.use(500.0, 500.0)
    training.bso.on_evaluate(0.1)
    with Client(address) as client:
        trial = client.get_trial(training.bso.trial).trial
    return [watts for _, watts in sets(machine)[before:]], trial, training.plo.computed


def case_observed_epochs(machine: Machine, address: str) -> list[v1.Measurement]:
    """Observer mode whose profile takes an epoch and a part of the next; then the limits are restored."""
    training = Training(machine, address, observer_mode=True)
    for steps in (WALK_STEPS - 5, 5 + 4, 10):
        training.steps(steps)
        training.plo.on_epoch_end()
        training.use(50.0, 50.0)
        training.bso.on_evaluate(0.1)
    training.plo.close()
    training.steps(10)
    training.bso.on_evaluate(0.1)
    with Client(address) as client:
        return list(client.measurements(training.bso.trial))


def case_reported_limits(machine: Machine, address: str) -> list[float | None]:
    """The limits of a trial as the server shows it: while it walks, after the walk, and after another epoch."""
    training = Training(machine, address)
    seen: list[float | None] = []
    for steps in (5, WALK_STEPS, 5):
        training.steps(steps)
        training.plo.on_epoch_end()
        training.bso.on_evaluate(0.1)
        with Client(address) as client:
            trial = client.get_trial(training.bso.trial).trial
        seen.append(
            trial.newest.power_setting.limit_watts_per_gpu
            if trial.newest.power_setting.HasField("limit_watts_per_gpu")
            else None
        )
        assert not trial.newest.HasField("computed")
    return seen


def case_resumed_observer(machine: Machine, address: str) -> tuple[v1.Trial, v1.Trial]:
    """A trial in observer mode that resumes without it, from a checkpoint two epochs back: before, and after."""
    first = Training(machine, address, observer_mode=True)
    first.steps(WALK_STEPS)
    saved: dict[str, Any] = {}
    for _ in range(3):
        first.steps(10)
        first.bso.on_evaluate(0.1)
        saved = saved or first.bso.state_dict()
    first.bso.close(EndReason.PREEMPTED)
    bso = BatchSizeOptimizer(address, power_job(job_id_of(machine)), monitor=NvmlMonitor())
    bso.load_state_dict(saved)
    bso.get_batch_size()
    bso.on_train_begin()
    with Client(address) as client:
        before = client.get_trial(bso.trial).trial
        for _ in range(3):
            first.use(1.0, 1.0)
            bso.on_evaluate(0.1)
        return before, client.get_trial(bso.trial).trial


def case_mixed_constraints(machine: Machine, address: str) -> list[float]:
    """The visited limits of two GPUs with different constraints."""
    training = Training(machine, address, dict.fromkeys(range(0, 400, 5), 1.0), step_watts=30)
    training.used = [0.0, 0.0]
    machine.show(GPUS[0], replace(GPUS[1], lowest_limit_mw=150_000, highest_limit_mw=230_000))
    for _ in range(40):
        training.plo.on_step_begin()
        training.plo.on_step_end()
    return visited(machine)


def case_known_beyond_reach(machine: Machine, address: str) -> list[float]:
    """The known limit is below the lowest of these GPUs: the limits that are set."""
    training = Training(machine, address)
    with Client(address) as client:
        sample = v1.PowerSample(
            power_setting=v1.PowerSetting(limit_watts_per_gpu=60), time_seconds=1, energy_joules=1, steps=1
        )
        client.report_power_profile(training.bso.trial, [sample])
    training.step()
    return limits(machine)


def case_decided(machine: Machine, address: str, walking: bool) -> list[list[float]]:
    """A trial that is decided by its report, during or after the walk: limits before and after."""
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
    """Walks over many tables of costs; returns the number of walks."""
    walks = 0

    @settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), database=None)
    @given(st.lists(st.integers(1, 9), min_size=7, max_size=7), st.integers(0, 1), st.integers(1, 2), st.booleans())
    def one(costs: Sequence[int], warmup: int, measured: int, fails: bool) -> None:
        nonlocal walks
        walks += 1
        table = dict(zip(VALLEY, map(float, costs), strict=True))
        arguments: dict[str, Any] = {"profile_warmup_iters": warmup, "profile_measure_iters": measured}
        training = Training(machine, address, table, f"{job_id_of(machine)}-{walks}", **arguments)
        before = len(visited(machine))
        with contextlib.suppress(RuntimeError), training.bso:
            training.steps(7 * (warmup + measured))
            (chosen, other) = limits(machine)
            walked = visited(machine)[before:]
            walked = [watts for watts in dict.fromkeys(walked) if watts in table]
            assert chosen == other == training.plo.limit_watts_per_gpu
            cheapest = min(table[round(watts)] for watts in walked)
            assert chosen == min(watts for watts in walked if table[round(watts)] == cheapest)
            seen = [table[round(watts)] for watts in table if watts in walked]
            assert all(min(seen[n - 2 : n]) <= min(seen[:n]) for n in range(3, len(seen)))
            if fails:
                raise RuntimeError
        assert limits(machine) == BEFORE

    one()
    return walks


def test_unknown_limit_is_profiled(machine: Machine, grpc_addr: str, run: Runner) -> None:
    """The walk goes down until two limits in a row cost more; the cheapest is reported and set on every GPU."""
    seen, known, now, attribute = run(case_walk, machine, grpc_addr)
    # The first is the check of the permission, which sets the current limit.
    assert seen == [200.0, *VISITED, 175.0]
    assert (now, attribute) == ([175.0, 175.0], 175.0)
    (limit,) = known
    assert (limit.batch_size, limit.power_setting.limit_watts_per_gpu) == (16, 175)
    assert limit.cost_per_step == pytest.approx(2 * VALLEY[175])
    assert limit.energy_joules_per_step == pytest.approx(2 * VALLEY[175])


def test_limits_are_set_in_milliwatts(machine: Machine, grpc_addr: str, run: Runner) -> None:
    """175 W reach the NVIDIA driver as 175000 mW."""
    run(case_walk, machine, grpc_addr)
    assert Path(f"{machine.file}.limit.GPU-aaaa").read_text() == "175000\n"


def test_known_limit_is_set_at_once(machine: Machine, grpc_addr: str, run: Runner) -> None:
    """The second trial does not walk, and restores the limits at its end."""
    done, at_last = run(case_second_trial, machine, grpc_addr)
    check = [(gpu.uuid, 200.0) for gpu in GPUS]
    assert done == [*check, *((gpu.uuid, 175.0) for gpu in GPUS)]
    assert at_last == BEFORE


def test_every_attempt_gets_its_limit(machine: Machine, grpc_addr: str, run: Runner) -> None:
    """One object serves all attempts: the first profiles, later ones set the limit, and each end restores it."""
    first, after_first, second, after_second, third, after_third = run(case_attempts, machine, grpc_addr)
    assert first == second == third == [175.0, 175.0]
    assert after_first == after_second == after_third == BEFORE


def test_only_training_steps_are_measured(machine: Machine, grpc_addr: str, run: Runner) -> None:
    """Samples contain neither warm-up steps nor the time between epochs."""
    (limit,) = run(case_interrupted, machine, grpc_addr)
    assert limit.power_setting.limit_watts_per_gpu == 175
    assert limit.energy_joules_per_step == pytest.approx(2 * VALLEY[175])


def test_profiling_is_part_of_the_trial(machine: Machine, grpc_addr: str, run: Runner) -> None:
    """The energy of the walk, warm-up included, is part of the trial's energy."""
    reported, used = run(case_cost_of_profiling, machine, grpc_addr)
    assert reported == pytest.approx(used)
    assert used == pytest.approx(2 * 5 * sum(VALLEY[round(watts)] for watts in VISITED))


def test_waits_while_another_trial_profiles(machine: Machine, grpc_addr: str, run: Runner) -> None:
    """The trial keeps the present limit, asks after every epoch, and sets the limit that the other reported."""
    *before, after, now = run(case_another_profiles, machine, grpc_addr)
    assert before == [[200.0]] * 3
    assert (after, now) == ([200.0, 125.0], [125.0, 125.0])


def test_walks_after_the_other_trial_ended(machine: Machine, grpc_addr: str, run: Runner) -> None:
    """If the profiling trial ends without a profile, this one walks from the next epoch on."""
    assert run(case_another_ends, machine, grpc_addr) == [200.0, *VISITED, 175.0]


def test_samples_are_of_the_gpus_alone(machine: Machine, grpc_addr: str, run: Runner) -> None:
    """The energy of other monitors is part of the trial's energy, and of no sample."""
    (limit,), energy = run(case_combined, machine, grpc_addr)
    assert limit.energy_joules_per_step == pytest.approx(2 * VALLEY[175])
    assert energy == pytest.approx(2 * JOULES + 2 * 5 * sum(VALLEY[round(watts)] for watts in VISITED))


def test_observer_reports_without_profiling_again(machine: Machine, grpc_addr: str, run: Runner) -> None:
    """With a known profile, observer mode sets the highest limit at once, and its steps count as the cheapest's."""
    seen, trial, computed = run(case_observer_of_a_known_profile, machine, grpc_addr)
    assert set(seen) - {200.0} == {250.0}
    saved = 10 * 2 * (VALLEY[250] - VALLEY[175])
    assert trial.newest.energy_joules == pytest.approx(10 * 2 * VALLEY[250] + 1000)
    assert trial.newest.computed.energy_joules == pytest.approx(trial.newest.energy_joules - saved)
    assert trial.cost == trial.newest.computed.energy_joules
    assert (
        trial.newest.computed.power_setting.limit_watts_per_gpu,
        trial.newest.power_setting.limit_watts_per_gpu,
    ) == (175.0, 250.0)
    assert computed.energy_joules == pytest.approx(10 * 2 * VALLEY[175])


def test_observer_computes_from_the_profile_on(machine: Machine, grpc_addr: str, run: Runner) -> None:
    """Until the profile is complete, and once the limits are restored, the computed sums grow as the measured ones."""
    measured = run(case_observed_epochs, machine, grpc_addr)
    per_step = 2 * (VALLEY[250] - VALLEY[175])
    saved = [m.energy_joules - m.computed.energy_joules for m in measured]
    assert saved == [pytest.approx(each) for each in (0, 4 * per_step, 14 * per_step, 14 * per_step)]
    assert [m.computed.power_setting.limit_watts_per_gpu for m in measured] == [250.0, 175.0, 175.0, 175.0]


def test_results_have_the_power_limit(machine: Machine, grpc_addr: str, run: Runner) -> None:
    """Once the limit is settled, every result has it; without observer mode nothing is computed."""
    assert run(case_reported_limits, machine, grpc_addr) == [None, 175.0, 175.0]


def test_resumed_trial_stays_computed(machine: Machine, grpc_addr: str, run: Runner) -> None:
    """A resumed launch without observer mode still reports computed sums that do not shrink."""
    before, after = run(case_resumed_observer, machine, grpc_addr)
    assert after.newest.epoch == before.newest.epoch + 1
    assert after.newest.computed.energy_joules >= before.newest.computed.energy_joules
    assert after.newest.computed.time_seconds >= before.newest.computed.time_seconds


def test_observer_trains_at_the_highest_limit(machine: Machine, grpc_addr: str, run: Runner) -> None:
    """Observer mode profiles an unknown batch size, trains at the highest limit, and computes the cheapest's usage."""
    now, warnings, computed, text = run(case_observer, machine, grpc_addr)
    assert (now, warnings) == ([250.0, 250.0], [])
    steps = WALK_STEPS + 10
    expected = {
        "steps": steps,
        "limit_watts_per_gpu": 175.0,
        "energy_joules": pytest.approx(steps * 2 * VALLEY[175]),
        "highest_limit_watts_per_gpu": 250.0,
        "highest_energy_joules": pytest.approx(steps * 2 * VALLEY[250]),
    }
    assert {name: getattr(computed, name) for name in expected} == expected
    assert "not measured" in text


def test_limits_in_common(machine: Machine, grpc_addr: str, run: Runner) -> None:
    """The walk stays within the limits that all GPUs allow."""
    seen = run(case_mixed_constraints, machine, grpc_addr)
    assert seen[:4] == [200.0, 230.0, 200.0, 170.0]
    assert min(seen) == 170.0


def test_known_limit_beyond_reach(machine: Machine, grpc_addr: str, run: Runner) -> None:
    """A known limit below the lowest of these GPUs becomes their lowest."""
    assert run(case_known_beyond_reach, machine, grpc_addr) == [100.0, 100.0]


@pytest.mark.parametrize(("walking", "now"), [(True, 225.0), (False, 175.0)])
def test_decided_trial_restores_the_limits(
    machine: Machine, grpc_addr: str, run: Runner, walking: bool, now: float
) -> None:
    """After the decision the previous limits are restored, and stay."""
    assert run(case_decided, machine, grpc_addr, walking) == [[now, now], BEFORE, BEFORE]


@pytest.mark.thorough
def test_any_costs(machine: Machine, grpc_addr: str, run: Runner) -> None:
    """For any costs, the cheapest visited limit is set, the walk ends where it should, and all are restored."""
    assert run(case_any_table, machine, grpc_addr) >= 25


def case_environment(
    machine: Machine, address: str, variables: dict[str, str]
) -> tuple[int, list[float], float | None]:
    """A walk with settings from the environment: its steps, the visited limits, and the limit in the end."""
    os.environ.update(variables)
    training = Training(machine, address, profile_warmup_iters=None, profile_measure_iters=None)
    training.step()
    steps = 1
    while training.plo.profiling:
        training.step()
        steps += 1
    return steps, visited(machine), training.plo.limit_watts_per_gpu


def test_settings_of_a_job_file(machine: Machine, grpc_addr: str, run: Runner) -> None:
    """Arguments that are None come from the variables of `wattwise run`."""
    settings_ = {
        "PROFILE_WARMUP_ITERS": "1",
        "PROFILE_MEASURE_ITERS": "2",
        "PROFILE_STEP_WATTS": "50",
        "OBSERVER_MODE": "1",
    }
    steps, seen, now = run(
        case_environment, machine, grpc_addr, {f"WATTWISE_{name}": value for name, value in settings_.items()}
    )
    # 100 W is the cheapest of these, but observer mode does not set it.
    assert (steps, seen, now) == (4 * (1 + 2), [200.0, 250.0, 200.0, 150.0, 100.0, 250.0], 250.0)


@pytest.mark.parametrize(
    ("variable", "value", "least"),
    [
        ("PROFILE_STEP_WATTS", "0.5", "use 1 or more"),
        ("PROFILE_STEP_WATTS", "many", "use 1 or more"),
        ("PROFILE_WARMUP_ITERS", "-1", "use a whole number, 0 or more"),
        ("PROFILE_MEASURE_ITERS", "2.5", "use a whole number, 1 or more"),
        ("PROFILE_MEASURE_ITERS", "2.0", "use a whole number, 1 or more"),
        ("OBSERVER_MODE", "perhaps", "use 1 or 0"),
    ],
)
def test_invalid_variables(
    grpc_addr: str, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, least: str
) -> None:
    """An invalid variable is named, with the valid range."""
    monkeypatch.setenv(f"WATTWISE_{variable}", value)
    bso = BatchSizeOptimizer(grpc_addr, job_spec(), monitor=StepMonitor())
    with pytest.raises(InvalidArgumentError, match=f"^WATTWISE_{variable}='{value}' is invalid; {least}$"):
        PowerLimitOptimizer(bso)


@pytest.mark.parametrize(("text", "observes"), [("yes", True), ("on", True), ("1", True), ("No", False), ("", False)])
def test_observer_mode_of_the_environment(monkeypatch: pytest.MonkeyPatch, text: str, observes: bool) -> None:
    """WATTWISE_OBSERVER_MODE takes the same values as the other switches of the client."""
    monkeypatch.setenv("WATTWISE_OBSERVER_MODE", text)
    assert profile_settings(None, None, None, None).observer_mode is observes


def test_steps_before_the_batch_size(grpc_addr: str) -> None:
    """A step before `get_batch_size` raises OperationOrderError."""
    bso = BatchSizeOptimizer(grpc_addr, job_spec(), monitor=StepMonitor())
    plo = PowerLimitOptimizer(bso)
    with pytest.raises(OperationOrderError, match=r"call get_batch_size\(\) before"):
        plo.on_step_begin()
    assert repr(plo) == f"PowerLimitOptimizer({bso!r}, limit_watts_per_gpu=None)"


@pytest.mark.parametrize(
    "arguments",
    [
        {"step_watts": 0},
        {"step_watts": float("nan")},
        {"step_watts": "25"},
        {"profile_warmup_iters": -1},
        {"profile_measure_iters": 0},
        {"profile_measure_iters": 2.5},
        {"observer_mode": "no"},
        {"observer_mode": 1},
        {"timeout": "5"},
        {"timeout": float("nan")},
        {"timeout": -1},
    ],
)
def test_invalid_arguments(grpc_addr: str, arguments: dict[str, Any]) -> None:
    """An invalid argument is named: a walk that would never end or measure nothing, or a value of the wrong type."""
    bso = BatchSizeOptimizer(grpc_addr, job_spec(), monitor=StepMonitor())
    fault = rf"^{next(iter(arguments))}=.* is invalid; use"
    with pytest.raises(InvalidArgumentError, match=fault):
        PowerLimitOptimizer(bso, **arguments)


def test_default_settings() -> None:
    """The defaults: steps of 25 W, 10 warm-up steps and 40 measured ones at each limit, no observer mode."""
    assert profile_settings(None, None, None, None) == (25.0, 10, 40, False)
