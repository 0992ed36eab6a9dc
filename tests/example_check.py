"""Checks a client's example of a training loop: `python -m tests.example_check PROGRAM`.

The program is called as `PROGRAM [ADDRESS [SECONDS PER EPOCH [SECONDS OF LEASE]]]`, takes its credentials from the
`WATTWISE_*` variables, and pretends to train for some epochs until the target of its one job is reached.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent import futures
from functools import partial
from pathlib import Path

import grpc
from wattwise import v1
from wattwise_server.security.tokens import Role

from tests.credentials import Authority, issue
from tests.live_server import LiveServer
from tests.ports import clients_of
from tests.waiting import wait_until

JOB, PREFIX = "pretend-nightly", "pretend"


class Example:
    """A run of the program."""

    def __init__(self, *command: str, **variables: str) -> None:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("WATTWISE_")}
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**clean, **variables}
        )

    def end(self) -> tuple[int, str]:
        """Wait for the end; return the exit status and the output."""
        said, _ = self.process.communicate(timeout=120)
        return self.process.returncode, said


class Losing(grpc.GenericRpcHandler):
    """A proxy that loses the first response of each method, and gives a status in its place."""

    def __init__(self, server: str, status: grpc.StatusCode = grpc.StatusCode.UNAVAILABLE) -> None:
        self.calls: list[str] = []
        self._status = status
        self._behind = grpc.insecure_channel(server)
        self._front = grpc.server(futures.ThreadPoolExecutor(4), handlers=[self])
        self.address = f"127.0.0.1:{self._front.add_insecure_port('127.0.0.1:0')}"
        self._front.start()

    def close(self) -> None:
        """Stop."""
        self._front.stop(grace=None).wait()
        self._behind.close()

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes] | None:
        """Forward a call."""
        behind: grpc.UnaryUnaryMultiCallable[bytes, bytes] = self._behind.unary_unary(details.method)
        name = details.method.rpartition("/")[2]

        def passed(request: bytes, context: grpc.ServicerContext) -> bytes:
            self.calls.append(name)
            try:
                answer = behind(request, timeout=10)
            except grpc.RpcError as error:
                trailers = tuple((entry.key, entry.value) for entry in error.trailing_metadata() or ())
                context.set_trailing_metadata(trailers)
                context.abort(error.code(), error.details() or "")
            if self.calls.count(name) == 1:
                context.abort(self._status, "the response was lost")
            return answer

        if name == "StreamResults":
            # No streams through the proxy, so the example uses unary calls.
            return None
        return grpc.unary_unary_rpc_method_handler(passed)


def trains(program: str, server: LiveServer) -> None:
    """It trains until the target is reached, prints so and exits with 0."""
    server.start()
    status, said = Example(program, server.address).end()
    assert status == 0, said
    assert "target reached" in said
    assert trial(server).end_reason == v1.END_REASON_TARGET_REACHED


def repeats(program: str, server: LiveServer, status: grpc.StatusCode = grpc.StatusCode.UNAVAILABLE) -> None:
    """A call whose response was lost is retried with the same launch id: one trial, one result per epoch."""
    losing = Losing(server.start(), status)
    exited, said = Example(program, losing.address).end()
    losing.close()
    assert exited == 0, said
    assert losing.calls[:4] == ["RegisterJob", "RegisterJob", "GetNextBatchSize", "GetNextBatchSize"], losing.calls
    assert server.admin.GetJob(v1.GetJobRequest(job_id=JOB)).job.num_trials == 1


def repeats_cancelled_calls(program: str, server: LiveServer) -> None:
    """A call that an overloaded server has cancelled is retried too."""
    repeats(program, server, grpc.StatusCode.CANCELLED)


def does_not_repeat(program: str, server: LiveServer) -> None:
    """A call that fails for good is not retried, and its message is printed."""
    losing = Losing(server.start())
    losing.calls = ["RegisterJob"]
    job = spec()
    job.gpus[0].gpu_model = "Another GPU"
    server.trainer.RegisterJob(v1.RegisterJobRequest(job=job))
    status, said = Example(program, losing.address).end()
    losing.close()
    assert status not in (0, 3), said
    assert "Another GPU" in said, said
    assert losing.calls == ["RegisterJob", "RegisterJob"]


def heartbeats_and_ends(program: str, server: LiveServer) -> None:
    """An epoch may be longer than the lease; SIGTERM ends the trial as preempted."""
    server.start()
    example = Example(program, server.address, "3", "1.5")

    def reported() -> bool:
        found = server.admin.ListTrials(v1.ListTrialsRequest(job_id=JOB)).trials if registered(server) else []
        assert all(one.status == v1.TRIAL_STATUS_RUNNING for one in found), found
        return bool(found) and found[0].newest.epoch == 1

    wait_until(reported)
    example.process.terminate()
    status, said = example.end()
    assert status not in (0, 3), said
    assert trial(server).end_reason == v1.END_REASON_PREEMPTED, trial(server)


def stops_during_an_epoch(program: str, server: LiveServer) -> None:
    """A stop that the server pushes ends a long epoch immediately."""
    server.start()
    example = Example(program, server.address, "600", "600")
    wait_until(lambda: registered(server) and trial_has_heartbeat(server))
    server.admin.DeleteJob(v1.DeleteJobRequest(job_id=JOB))
    status, said = example.end()
    assert status == 3, said
    assert "was deleted" in said, said


def survives_an_outage(program: str, server: LiveServer) -> None:
    """After an outage the server receives the epoch that it missed, before the next one ends."""
    server.start()
    example = Example(program, server.address, "12", "60")
    wait_until(lambda: registered(server) and trial_begun(server))
    server.kill()
    wait_for_output(example, "continues without the server")
    server.start()
    wait_until(lambda: trial(server).newest.epoch == 2)
    example.process.terminate()
    example.end()
    assert trial(server).end_reason == v1.END_REASON_PREEMPTED
    assert server.admin.GetJob(v1.GetJobRequest(job_id=JOB)).job.num_trials == 1


def notices_a_suspended_server(program: str, server: LiveServer) -> None:
    """A connection whose server no longer answers is given up within the documented 40 seconds, also if it is quiet."""
    port = int(server.start().rpartition(":")[2])
    assert not registered(server)
    others = clients_of(port)
    example = Example(program, server.address, "600", "600")
    wait_until(lambda: registered(server) and trial_has_heartbeat(server))
    used = clients_of(port) - others
    assert used
    server.process.send_signal(signal.SIGSTOP)
    try:
        # Without the timeout of pings it takes more than a minute.
        wait_until(lambda: not used & clients_of(port), 55)
    finally:
        server.process.send_signal(signal.SIGCONT)
    example.process.terminate()
    example.end()


def goes_around_a_proxy(program: str, server: LiveServer) -> None:
    """A server on this machine is reached directly, with TLS and without, whatever proxy the environment names."""
    folder = server.database.parent
    authority = Authority(folder)
    pair = authority.issue("server")
    names = ("http_proxy", "https_proxy", "grpc_proxy", "HTTP_PROXY", "HTTPS_PROXY")
    proxy = dict.fromkeys(names, "http://127.0.0.1:9")
    tls = ("--tls-cert", str(pair.cert), "--tls-key", str(pair.key))
    for arguments, variables in (((), {}), (tls, {"WATTWISE_TLS_CA": str(authority.file)})):
        port = server.start(*arguments).rpartition(":")[2]
        for host in ("localhost", "127.0.0.1", *(() if variables else ("LOCALHOST",))):
            status, said = Example(program, f"{host}:{port}", **proxy, **variables).end()
            assert status == 0, said
            assert "without the server" not in said, said
        server.kill()


def ends_alone(program: str, server: LiveServer) -> None:
    """A server that does not come back does not prevent the training from finishing."""
    server.start()
    example = Example(program, server.address, "1", "60")
    wait_until(lambda: registered(server) and trial_begun(server))
    server.kill()
    status, said = example.end()
    assert status == 0, said
    assert "target reached without the server" in said, said


def tries_again(program: str, server: LiveServer) -> None:
    """A trial that missed the target is followed by another one, until one reaches it."""
    server.start()
    import_cheap_trial(server)
    status, said = Example(program, server.address).end()
    assert status == 0, said
    _, first, *others = trials(server)
    # It tries another batch size first, which is stopped at a bound that follows from the cheap trial.
    assert first.end_reason == v1.END_REASON_COST_BOUND, said
    assert [one.end_reason for one in others][-1] == v1.END_REASON_TARGET_REACHED, said


def gives_up(program: str, server: LiveServer) -> None:
    """It trains at most five trials."""
    server.start()
    example = Example(program, server.address, "600", "600")
    wait_until(lambda: registered(server))
    for tries in range(1, 6):
        wait_until(partial(has_trials, server, tries))
        last = max(trials(server), key=lambda one: one.id.trial_number)
        server.trainer.EndTrial(v1.EndTrialRequest(trial=last.id, end_reason=v1.END_REASON_ERROR))
    status, said = example.end()
    assert status == 3, said
    assert len(trials(server)) == 5


def falls_back(program: str, server: LiveServer) -> None:
    """If no batch size is left to try, it trains with the default one, and the trial is imported."""
    server.start()
    server.trainer.RegisterJob(v1.RegisterJobRequest(job=spec()))
    for size in spec().batch_sizes:
        imported = v1.ImportTrialRequest(job_id=JOB, launch_id=f"crash-{size}", batch_size=size)
        imported.end_reason = v1.END_REASON_OUT_OF_MEMORY
        server.trainer.ImportTrial(imported)
    status, said = Example(program, server.address).end()
    assert status == 0, said
    assert said.count("training with the fallback batch size 32") == 1, said
    last = trials(server)[-1]
    assert (last.origin, last.batch_size) == (v1.TRIAL_ORIGIN_IMPORTED, 32)
    assert (last.end_reason, last.monitor.kinds[:]) == (v1.END_REASON_TARGET_REACHED, ["estimate"])


def begins_without_server(program: str, server: LiveServer) -> None:
    """A launch without a server trains with the default batch size; the trial is imported if the server is back."""
    server.start()
    server.kill()
    example = Example(program, server.address, "3", "60")
    wait_for_output(example, "training with the fallback batch size 32")
    server.start()
    status, said = example.end()
    assert status == 0, said
    assert "target reached without the server" in said, said
    imported = trial(server)
    assert (imported.origin, imported.end_reason) == (v1.TRIAL_ORIGIN_IMPORTED, v1.END_REASON_TARGET_REACHED)


def trains_on_if_forgotten(program: str, server: LiveServer) -> None:
    """A server that has lost its database does not end the training; the trial is imported with all its epochs."""
    server.start()
    example = Example(program, server.address, "3", "60")
    wait_until(lambda: registered(server) and trial_begun(server))
    server.kill()
    for file in server.database.parent.glob(f"{server.database.name}*"):
        file.unlink()
    server.start()
    status, said = example.end()
    assert status == 0, said
    assert said.count("which does not know the trial") == 1, said
    imported = trial(server)
    assert (imported.origin, imported.end_reason) == (v1.TRIAL_ORIGIN_IMPORTED, v1.END_REASON_TARGET_REACHED)
    measured = server.admin.ListMeasurements(v1.ListMeasurementsRequest(trial=imported.id)).measurements
    assert [each.epoch for each in measured] == list(range(1, imported.newest.epoch + 1))


def sends_its_token(program: str, server: LiveServer) -> None:
    """A token is sent over TLS, with a client certificate where required, and only to a trusted server."""
    folder = server.database.parent
    authority = Authority(folder)
    pair, own, tokens = authority.issue("server"), authority.issue("client"), folder / "server.tokens"
    token = issue(tokens, Role.TRAINER, PREFIX)
    given = {"tls-cert": pair.cert, "tls-key": pair.key, "tls-client-ca": authority.file, "tokens": tokens}
    server.start(*(word for name, file in given.items() for word in (f"--{name}", str(file))))
    (folder / "token").write_text(f"{token}\n")
    tls = {"WATTWISE_TLS_CA": str(authority.file), "WATTWISE_TLS_CERT": str(own.cert), "WATTWISE_TLS_KEY": str(own.key)}
    for form in ({"WATTWISE_TOKEN": token}, {"WATTWISE_TOKEN_FILE": str(folder / "token")}):
        status, said = Example(program, server.address, **tls, **form).end()
        assert status == 0, said
    refused(program, server.address, "token", **tls)
    refused(program, "192.0.2.1:50051", "in clear text", WATTWISE_TOKEN=token)
    refused(program, server.address, "set both, a certificate and its key", **{**tls, "WATTWISE_TLS_KEY": ""})
    refused(program, server.address, "1 or 0", WATTWISE_TLS="perhaps")
    for name in ("TOKEN", "TOKEN_FILE", "TLS", "TLS_CA", "TLS_CERT", "TLS_KEY", "INSECURE"):
        refused(program, server.address, f"WATTWISE_{name} has", **{f"WATTWISE_{name}": "1\r"})
    pipe = folder / "pipe"
    os.mkfifo(pipe)
    for name in ("TOKEN_FILE", "TLS_CA"):
        for path in (pipe, Path("/dev/zero")):
            refused(program, server.address, str(path), **{f"WATTWISE_{name}": str(path)})


def refused(program: str, address: str, why: str, **variables: str) -> None:
    """It fails and prints why."""
    status, said = Example(program, address, **variables).end()
    assert status not in (0, 3), said
    assert why in said, said


def wait_for_output(example: Example, text: str) -> str:
    """Wait until it prints a text; return the output up to there."""
    assert example.process.stdout is not None
    said = ""
    for line in example.process.stdout:
        said += line
        if text in line:
            return said
    raise AssertionError(f"it never printed {text!r}: {said}")


def spec() -> v1.JobSpec:
    """The program's job."""
    return v1.JobSpec(
        job_id=JOB, job_id_prefix=PREFIX, batch_sizes=[16, 32, 64, 128], default_batch_size=32,
        target=v1.Target(value=0.9, direction=v1.DIRECTION_HIGHER_IS_BETTER),
        trial_lease_seconds=300, gpus=[v1.GpuGroup(gpu_model="Simulated GPU", count=1, max_power_watts_per_gpu=300)],
    )  # fmt: skip


def import_cheap_trial(server: LiveServer) -> None:
    """Register the job, with a trial of batch size 64 that cost next to nothing."""
    server.trainer.RegisterJob(v1.RegisterJobRequest(job=spec()))
    reached = v1.Measurement(epoch=2, time_seconds=0.1, energy_joules=10, metric=0.95)
    cheap = v1.ImportTrialRequest(job_id=JOB, launch_id="cheap", batch_size=64, measurements=[reached])
    server.trainer.ImportTrial(cheap)


def registered(server: LiveServer) -> bool:
    """Whether the program's job is registered."""
    return any(row.job.spec.job_id == JOB for row in server.admin.ListJobs(v1.ListJobsRequest()).jobs)


def trial_begun(server: LiveServer) -> bool:
    """Whether its trial has reported."""
    found = server.admin.ListTrials(v1.ListTrialsRequest(job_id=JOB)).trials
    return bool(found) and found[0].newest.epoch >= 1


def trial_has_heartbeat(server: LiveServer) -> bool:
    """Whether it has sent a heartbeat since its trial was dispatched."""
    found = server.admin.ListTrials(v1.ListTrialsRequest(job_id=JOB)).trials
    return (
        bool(found) and found[0].lease_expire_time.ToNanoseconds() > found[0].start_time.ToNanoseconds() + 600 * 10**9
    )


def trials(server: LiveServer) -> list[v1.Trial]:
    """The trials of its job."""
    return list(server.admin.ListTrials(v1.ListTrialsRequest(job_id=JOB)).trials)


def has_trials(server: LiveServer, number: int) -> bool:
    """Whether its job has this number of trials."""
    return len(trials(server)) == number


def trial(server: LiveServer) -> v1.Trial:
    """Its one trial."""
    (found,) = trials(server)
    return found


CHECKS: tuple[Callable[[str, LiveServer], None], ...] = (
    trains, repeats, repeats_cancelled_calls, does_not_repeat, heartbeats_and_ends, stops_during_an_epoch,
    survives_an_outage, notices_a_suspended_server, goes_around_a_proxy, ends_alone, tries_again, gives_up, falls_back,
    begins_without_server, trains_on_if_forgotten, sends_its_token,
)  # fmt: skip


def main(program: str) -> None:
    """Fail at the first check that fails."""
    for check in CHECKS:
        with tempfile.TemporaryDirectory() as folder, LiveServer(Path(folder)) as server:
            check(program, server)
        sys.stdout.write(f"{Path(program).name}: {check.__doc__}\n")


if __name__ == "__main__":
    main(sys.argv[1])
