"""`wattwise token`, the token file, and a server that reads its changes."""

from __future__ import annotations

import hmac
import json
import os
import queue
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta, timezone
from pathlib import Path
from typing import TypeAlias

import grpc
import pytest
from wattwise import v1
from wattwise.commands.main import main
from wattwise.rpc.calls import new_id
from wattwise_server.errors import StartError, UnauthenticatedError
from wattwise_server.security.token_book import TokenBook
from wattwise_server.security.token_file import add_token, read_tokens
from wattwise_server.security.tokens import Role, claimed_id, new_token, verified

from tests.client.test_files import SPECIAL
from tests.credentials import bearing, issue
from tests.jobs import job_spec, result
from tests.live_server import LiveServer
from tests.refusals import refused
from tests.server.commands.test_serve import refuse
from tests.waiting import wait_until

Type: TypeAlias = Callable[..., tuple[int, str, str]]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The path of the token file."""
    return tmp_path / "server.tokens"


@pytest.fixture
def token(file: Path, capsys: pytest.CaptureFixture[str]) -> Type:
    """Runs `wattwise token`; returns its exit status, its output and its errors."""

    def typed(action: str, *words: str) -> tuple[int, str, str]:
        status = main(["token", action, "--tokens", str(file), *words])
        printed = capsys.readouterr()
        return status, printed.out, printed.err

    return typed


@pytest.fixture
def guarded(file: Path, tmp_path: Path) -> Iterator[LiveServer]:
    """A server with an admin token."""
    issue(file, Role.ADMIN, "")
    with LiveServer(tmp_path) as live:
        live.start("--tokens", str(file))
        yield live


def gets_in(server: LiveServer, token: str) -> bool:
    """Whether a server accepts a token."""
    try:
        server.admin.ListJobs(v1.ListJobsRequest(), metadata=bearing(token))
    except grpc.RpcError as error:
        if error.code() is grpc.StatusCode.UNAUTHENTICATED:
            return False
        raise
    return True


def test_token_is_shown_once_and_kept_as_a_hash(token: Type, file: Path) -> None:
    """Create prints only the token, which neither the file nor the list contains; the file has mode 0600."""
    status, text, err = token("create", "--prefix", "team-a-", "--role", "trainer")
    text = text.removesuffix("\n")
    assert status == 0
    assert text.split("_")[2] not in err + file.read_text() + token("list")[1]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    found = verified(read_tokens(file), text)
    assert found is not None
    assert (found.role, found.prefix) == (Role.TRAINER, "team-a-")
    assert verified(read_tokens(file), text[:-1]) is None


@pytest.mark.parametrize(
    ("role", "prefix", "reach"),
    [(Role.TRAINER, "team-a-", "trainer of 'team-a-'"), (Role.ADMIN, "", "admin of every job")],
)
def test_token_is_named_with_its_reach(role: Role, prefix: str, reach: str) -> None:
    """Errors name a token by its id, its role and the jobs that it may access."""
    token = new_token(role, prefix, None)[1]
    assert str(token) == f"token {token.id} ({reach})"


def test_id_is_shown_of_whole_tokens_alone() -> None:
    """A new token names itself in the log, in either case of the scheme; nothing of any other text is shown."""
    text, token = new_token(Role.ADMIN, "", None)
    assert claimed_id(f"Bearer {text}") == claimed_id(f"bearer  {text} ") == token.id
    for other in ("", text, f"Basic {text}", f"Bearer {text[:-1]}", f"Bearer {text}0", f"Bearer {text[3:]}"):
        assert claimed_id(other) == ""


def test_authorization_is_a_bearer_token(file: Path) -> None:
    """The scheme is Bearer in either case, with any spaces around the token; anything else is refused."""
    text = issue(file, Role.ADMIN, "")
    book = TokenBook(file)
    (token,) = read_tokens(file).values()
    for value in (f"Bearer {text}", f"bearer  {text} "):
        assert book.verify(value) == token
    for value in ("", text, f"Basic {text}", "Bearer", "Bearer "):
        with pytest.raises(UnauthenticatedError):
            book.verify(value)


def test_lifetime_begins_with_the_token() -> None:
    """A token expires a lifetime after its creation, in whole seconds of UTC; without one it never does."""
    token = new_token(Role.ADMIN, "", timedelta(days=3))[1]
    assert token.expires == token.created + timedelta(days=3)
    assert (token.created.microsecond, token.created.tzinfo) == (0, timezone.utc)
    assert new_token(Role.ADMIN, "", None)[1].expires is None


def test_hashes_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every text is verified by one comparison of two whole hashes in constant time, known id or not."""
    compared: list[tuple[str, str]] = []
    genuine = hmac.compare_digest

    def seen(one: str, other: str) -> bool:
        compared.append((one, other))
        return genuine(one, other)

    monkeypatch.setattr(hmac, "compare_digest", seen)
    text, token = new_token(Role.ADMIN, "", None)
    known = {token.id: token}
    wrong = text[:-1] + ("0" if text[-1] != "0" else "1")
    assert [verified(known, each) for each in (text, wrong, "ww_nobody", "")] == [token, None, None, None]
    assert [(len(one), len(other)) for one, other in compared] == [(64, 64)] * 4


def test_list_shows_and_revoke_removes(token: Type, file: Path) -> None:
    """Every token has a line with its id, role and prefix; a revoked one is gone, and the others stay."""
    for words in (
        ("trainer", "--prefix", "team-a-"),
        ("operator", "--prefix", "team-b-", "--expires", "30"),
        ("admin",),
    ):
        token("create", "--role", *words)
    ids = list(read_tokens(file))
    head, *lines = token("list")[1].splitlines()
    assert head.split() == ["id", "role", "created", "expires", "prefix"]
    assert [line.split()[:2] for line in lines] == [[ids[0], "trainer"], [ids[1], "operator"], [ids[2], "admin"]]
    assert all(line.endswith(end) for line, end in zip(lines, ("team-a-", "team-b-", "(every job)"), strict=True))
    assert ["never" in line for line in lines] == [True, False, True]
    assert token("revoke", ids[1])[0] == 0
    assert list(read_tokens(file)) == [ids[0], ids[2]]
    status, _, err = token("revoke", ids[1])
    assert (status, ids[1] in err) == (1, True)


def test_mode_and_comments_survive_a_change(token: Type, file: Path) -> None:
    """A change keeps the file's mode and its comments."""
    token("create", "--role", "admin")
    file.chmod(0o640)
    file.write_text("# the cluster's admins\n" + file.read_text())
    token("create", "--role", "admin")
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    assert file.read_text().startswith("# the cluster's admins\n")
    assert len(read_tokens(file)) == 2


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_owner_survives_a_change(token: Type, file: Path) -> None:
    """A token that root adds leaves the file to the server's user."""
    token("create", "--role", "admin")
    os.chown(file, 1234, 4321)
    token("create", "--role", "admin")
    assert (file.stat().st_uid, file.stat().st_gid) == (1234, 4321)


@pytest.mark.parametrize("role", ["trainer", "operator"])
def test_only_admins_and_viewers_go_without_a_prefix(token: Type, file: Path, role: str) -> None:
    """A trainer or operator token without a prefix is refused, and no file is created."""
    status, printed, err = token("create", "--role", role)
    assert (status, printed) == (1, "")
    assert "--prefix is empty" in err
    assert f"role {role} " in err
    assert not file.exists()


@pytest.mark.parametrize("days", ["0", "-1", "1.5", "soon", "99999"])
def test_bad_lifetime_is_refused(token: Type, file: Path, days: str) -> None:
    """An invalid lifetime is refused with the valid range."""
    with pytest.raises(SystemExit):
        token("create", "--role", "admin", "--expires", days)
    assert not file.exists()


@pytest.mark.parametrize(
    ("prefix", "refusal", "expected"), [("a\n", 2, "--prefix has the control character"), ("a" * 201, 1, "at most 200")]
)
def test_prefix_that_no_job_can_have_is_refused(
    token: Type, file: Path, prefix: str, refusal: int, expected: str
) -> None:
    """A prefix that no job id can start with is refused."""
    status, printed, error = token("create", "--role", "trainer", "--prefix", prefix)
    assert (status, printed) == (refusal, "")
    assert expected in error
    assert not file.exists()


@pytest.mark.parametrize(("prefix", "warns"), [("team-a", True), ("team-a-", False)])
def test_prefix_without_separator_gets_a_warning(token: Type, prefix: str, warns: bool) -> None:
    """The token of team-a is created, and the command says that it also matches the jobs of others, such as team-ax."""
    status, printed, error = token("create", "--role", "trainer", "--prefix", prefix)
    assert status == 0
    assert printed.startswith("ww_")
    assert ("'team-ax'" in error) is warns


def test_unwritable_file_is_reported(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """If the folder is missing, or the path is a folder, no token is created or printed."""
    for path, expected in (
        (tmp_path / "no/such/tokens", "there is no folder"),
        (tmp_path, "cannot read the token file"),
    ):
        assert main(["token", "create", "--role", "admin", "--tokens", str(path)]) == 1
        printed = capsys.readouterr()
        assert printed.out == ""
        assert expected in printed.err
    assert not (tmp_path / "no").exists()


def test_file_is_followed_through_a_link(token: Type, file: Path, tmp_path: Path) -> None:
    """A change through a symbolic link changes its target and keeps the link."""
    real = tmp_path / "real.tokens"
    real.touch(mode=0o600)
    file.symlink_to(real)
    token("create", "--role", "admin")
    assert file.is_symlink()
    assert len(read_tokens(real)) == 1


def test_changes_at_once_lose_none(file: Path) -> None:
    """Tokens that several processes create concurrently are all in the file."""
    command = [sys.executable, "-c", "import sys; from wattwise.commands.main import main; sys.exit(main())"]
    command += ["token", "create", "--role", "admin", "--tokens", str(file)]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(5)]
    texts = [process.communicate(timeout=60)[0].strip() for process in started]
    tokens = read_tokens(file)
    assert len(tokens) == 5
    assert all(verified(tokens, text) for text in texts)


def _line(**changes: object) -> str:
    _, made = new_token(Role.TRAINER, "team-a-", None)
    values = {
        "version": 1,
        "id": made.id,
        "role": "trainer",
        "prefix": "team-a-",
        "sha256": made.sha256,
        "created": "2026-01-31T12:00:00Z",
        "expires": None,
    }
    return json.dumps(values | changes)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("rubbish", "line 2 is not a JSON object"),
        ("[]", "line 2 is not a JSON object"),
        ('["version"]', "line 2 is not a JSON object"),
        ("{}", "line 2 is not a JSON object"),
        (_line(version=2), "has version 2"),
        (_line(more=1), "must have exactly the keys version, id, role, prefix, sha256, created, expires;"),
        ("[" * 100_000, "line 2 is not a JSON object"),
        ('{"version": 1, "version": 1}', "line 2 is not a JSON object"),
        (_line(role=["admin"]), "role that is not one of viewer, trainer, operator, admin"),
        (_line(role="king"), "role that is not one of viewer, trainer, operator, admin"),
        (_line(id="XYZ"), '"id" that is not 12 hexadecimal digits'),
        (_line(sha256="abc"), '"sha256" that is not 64 hexadecimal digits'),
        (_line(prefix=7), '"prefix" that is not a string'),
        (_line(prefix=""), "only an admin"),
        (_line(created="yesterday"), '"created" that is not a time'),
        (_line(expires=3), '"expires" that is not a time'),
    ],
)
def test_malformed_line_is_named(file: Path, line: str, expected: str) -> None:
    """Reading and changing a file with a malformed line fail with its number and leave the file unchanged."""
    file.write_text(f"{_line()}\n{line}\n")
    before = file.read_bytes()
    with pytest.raises(StartError, match="line 2"):
        add_token(file, new_token(Role.ADMIN, "", None)[1])
    assert file.read_bytes() == before
    with pytest.raises(StartError) as caught:
        read_tokens(file)
    assert expected in str(caught.value)


@pytest.mark.parametrize("zone", ["UTC", "NOWHERE-9"])
def test_times_of_the_file_are_in_utc(file: Path, monkeypatch: pytest.MonkeyPatch, zone: str) -> None:
    """Times with any offset are read as UTC, in whatever zone this machine is."""
    file.write_text(_line(created="2026-01-31T12:00:00+02:00", expires="2026-02-01T00:00:00Z"))
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    (token,) = read_tokens(file).values()
    monkeypatch.undo()
    time.tzset()
    assert [str(each) for each in (token.created, token.expires)] == [
        "2026-01-31 10:00:00+00:00",
        "2026-02-01 00:00:00+00:00",
    ]


def test_server_does_not_start_with_a_malformed_file(file: Path, tmp_path: Path) -> None:
    """A server with an invalid token file does not start."""
    file.write_text("rubbish\n")
    error = refuse("--address", "127.0.0.1:0", "--tokens", str(file), folder=tmp_path)
    assert f"{file}, line 1 " in error


def test_revoking_from_no_file_leaves_nothing(token: Type, file: Path) -> None:
    """A mistyped file name is reported, and no lock file is left behind."""
    status, _, err = token("revoke", "0" * 12)
    assert (status, "no token file" in err) == (1, True)
    assert not list(file.parent.iterdir())


def test_unreadable_file_is_reported(file: Path, tmp_path: Path) -> None:
    """A missing file, a binary file and a folder are errors with a remedy."""
    with pytest.raises(StartError, match="wattwise token create"):
        read_tokens(file)
    with pytest.raises(StartError, match="cannot read"):
        read_tokens(tmp_path)
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(StartError, match="not UTF-8"):
        read_tokens(file)


@pytest.mark.parametrize("kind", SPECIAL)
def test_token_file_that_is_none(file: Path, kind: str) -> None:
    """A pipe or a device would block the server."""
    SPECIAL[kind](file)
    with pytest.raises(StartError, match=file.name):
        read_tokens(file)


def test_token_file_of_windows(file: Path) -> None:
    """A byte order mark and the line ends of Windows are read."""
    file.write_bytes(f"{_line()}\r\n".encode("utf-8-sig"))
    assert len(read_tokens(file)) == 1


def test_prefix_that_is_not_utf_8_is_refused(token: Type, file: Path) -> None:
    """A prefix in bytes of another encoding would make the file unreadable."""
    status, printed, error = token("create", "--role", "trainer", "--prefix", "caf\udce9")
    assert (status, printed, "UTF-8" in error, file.exists()) == (1, "", True, False)


def test_prefixes_are_shown_escaped(token: Type) -> None:
    """A prefix cannot reverse what a terminal shows."""
    _, _, error = token("create", "--role", "trainer", "--prefix", "team-\u202ea-")
    _, listed, _ = token("list")
    for shown in (error, listed):
        assert "team-\\u202ea-" in shown
        assert all(line.isprintable() for line in shown.splitlines())


def test_duplicate_id_is_refused(file: Path) -> None:
    """Two lines with the same id are refused."""
    line = _line()
    file.write_text(f"{line}\n{line}\n")
    with pytest.raises(StartError, match="same id"):
        read_tokens(file)


def test_running_server_follows_the_file(guarded: LiveServer, file: Path) -> None:
    """A created token is accepted and a revoked one refused as the file changes, without a signal to the server."""
    text, made = new_token(Role.OPERATOR, "team-a-", None)
    assert not gets_in(guarded, text)
    add_token(file, made)
    wait_until(lambda: gets_in(guarded, text))
    assert main(["token", "revoke", "--tokens", str(file), made.id]) == 0
    wait_until(lambda: not gets_in(guarded, text))
    assert "SIGHUP" not in guarded.log.read_text()


def test_revoked_token_ends_streams(guarded: LiveServer, file: Path) -> None:
    """A revoked token ends an open watch before the next change, and an open stream at its next message."""
    admin = issue(file, Role.ADMIN, "")
    leaving, made = new_token(Role.OPERATOR, "team-a-", None)
    add_token(file, made)
    wait_until(lambda: gets_in(guarded, leaving) and gets_in(guarded, admin))
    job = v1.RegisterJobRequest(job=job_spec(job_id="team-a-1", job_id_prefix="team-a"))
    guarded.trainer.RegisterJob(job, metadata=bearing(admin))
    ask = v1.GetNextBatchSizeRequest(job_id="team-a-1", launch_id=new_id())
    trial = guarded.trainer.GetNextBatchSize(ask, metadata=bearing(admin)).trial
    messages: queue.SimpleQueue[v1.StreamResultsRequest] = queue.SimpleQueue()
    stream = guarded.trainer.StreamResults(iter(messages.get, None), metadata=bearing(leaving))
    messages.put(v1.StreamResultsRequest(result=result(trial, 1.0, metric=0.1)))
    assert not next(stream).decision.stop_train
    states = guarded.admin.WatchJob(v1.WatchJobRequest(job_id="team-a-1"), metadata=bearing(leaving))
    assert next(states).job.num_trials == 1
    main(["token", "revoke", "--tokens", str(file), made.id])
    wait_until(lambda: not gets_in(guarded, leaving))
    another = v1.GetNextBatchSizeRequest(job_id="team-a-1", launch_id=new_id())
    guarded.trainer.GetNextBatchSize(another, metadata=bearing(admin))
    messages.put(v1.StreamResultsRequest(result=result(trial, 2.0, metric=0.1, epoch=2)))
    for answers in (states, stream):
        with refused() as refusal:
            next(answers)
        assert refusal.code is grpc.StatusCode.UNAUTHENTICATED
        assert "revoked" in refusal.message
    messages.put(v1.StreamResultsRequest())


def test_malformed_file_leaves_the_tokens_valid(guarded: LiveServer, file: Path) -> None:
    """A malformed or missing file is logged; the current tokens stay valid until the file is fixed."""
    admin = issue(file, Role.ADMIN, "")
    wait_until(lambda: gets_in(guarded, admin))
    good = file.read_text()
    file.write_text("rubbish\n")
    wait_until(lambda: "tokens not read" in guarded.log.read_text())
    assert f"{file}, line 1 " in guarded.log.read_text()
    assert gets_in(guarded, admin)
    file.unlink()
    wait_until(lambda: "no token file" in guarded.log.read_text())
    assert gets_in(guarded, admin)
    file.write_text("\n".join(line for line in good.splitlines() if admin.split("_")[1] not in line))
    wait_until(lambda: not gets_in(guarded, admin))


def test_stream_ends_with_the_server(guarded: LiveServer, file: Path) -> None:
    """A stream with a token ends between two messages at shutdown, like any other."""
    admin = issue(file, Role.ADMIN, "")
    wait_until(lambda: gets_in(guarded, admin))
    guarded.trainer.RegisterJob(v1.RegisterJobRequest(job=job_spec(job_id="test-end")), metadata=bearing(admin))
    ask = v1.GetNextBatchSizeRequest(job_id="test-end", launch_id=new_id())
    trial = guarded.trainer.GetNextBatchSize(ask, metadata=bearing(admin)).trial
    messages: queue.SimpleQueue[v1.StreamResultsRequest] = queue.SimpleQueue()
    stream = guarded.trainer.StreamResults(iter(messages.get, None), metadata=bearing(admin))
    messages.put(v1.StreamResultsRequest(result=result(trial, 1.0, metric=0.1)))
    next(stream)
    assert guarded.stop() == 0
    with refused() as refusal:
        next(stream)
    assert refusal.reason == "ERROR_REASON_SHUTTING_DOWN"
    messages.put(v1.StreamResultsRequest())


def test_sighup_reads_the_tokens_again(guarded: LiveServer, file: Path) -> None:
    """SIGHUP reads the file even if it looks unchanged, and the server continues."""
    read = f"tokens read file={file} tokens=1"
    assert guarded.log.read_text().count(read) == 1
    guarded.hang_up()
    wait_until(lambda: guarded.log.read_text().count(read) == 2)
    assert guarded.stop() == 0


@pytest.mark.parametrize(("mode", "warns"), [(0o600, False), (0o644, False), (0o620, True), (0o602, True)])
def test_file_that_others_may_write_is_warned_of(
    file: Path, caplog: pytest.LogCaptureFixture, mode: int, warns: bool
) -> None:
    """A token file that others can write, and no other one, is logged as a warning."""
    issue(file, Role.ADMIN, "")
    file.chmod(mode)
    TokenBook(file)
    assert ("token file writable by others" in caplog.text) is warns
    assert "no tokens" not in caplog.text


def test_file_without_tokens_is_warned_of(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A file without a token is valid, but a server that refuses every call says so."""
    file.touch()
    TokenBook(file)
    assert "no tokens" in caplog.text
