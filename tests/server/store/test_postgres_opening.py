"""Which PostgreSQL a server opens, what it changes there, and what it says of one that it cannot use."""

from __future__ import annotations

import asyncio
import pwd
import socket
import ssl
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

import asyncpg
import pytest
from wattwise_server.errors import StartError
from wattwise_server.store.open import shown_url
from wattwise_server.store.postgres.connecting import Connector
from wattwise_server.store.postgres.migrate import Migration, migrate, migrations
from wattwise_server.store.postgres.options import password_source

from tests.client.test_files import SPECIAL
from tests.credentials import Authority
from tests.postgres import PostgresServer
from tests.server.store.conformance import a_job
from tests.server.store.two_stores import open_postgres_store

NEWEST = max(migrations())


@pytest.fixture(scope="module")
def own() -> Iterator[PostgresServer]:
    """A PostgreSQL whose settings tests change; one role has a password."""
    with PostgresServer.running() as server:
        rules = server.data / "pg_hba.conf"
        rules.write_text(f"host all locked 127.0.0.1/32 scram-sha-256\n{rules.read_text()}")
        server.execute("CREATE ROLE locked LOGIN PASSWORD 'sesame'")
        server.configure(log_connections="on")
        yield server


async def refusal(url: str) -> str:
    """Why a database cannot be opened."""
    with pytest.raises(StartError) as caught:
        async with open_postgres_store(url):
            pass
    return str(caught.value)


async def test_migration_that_fails_changes_nothing(postgres_server: PostgresServer, postgres_url: str) -> None:
    """All missing versions are applied, or none."""
    steps = migrations()
    broken = steps | {NEWEST + 1: Migration("CREATE TABLE extra (n int); SELECT 1 / 0;", NEWEST)}
    connection = await asyncpg.connect(postgres_url)
    with pytest.raises(asyncpg.DivisionByZeroError):
        await migrate(connection, "it", broken)
    assert postgres_server.execute("SELECT to_regclass('extra'), to_regclass('jobs')", postgres_url) == [["", ""]]
    await migrate(connection, "it")
    with pytest.raises(asyncpg.DivisionByZeroError):
        await migrate(connection, "it", broken)
    assert postgres_server.execute("SELECT version FROM wattwise_schema", postgres_url) == [[str(NEWEST)]]
    await connection.close()


@pytest.mark.parametrize("min_reader", [NEWEST, NEWEST + 1])
async def test_later_migration_says_who_can_work_with_it(
    postgres_server: PostgresServer, postgres_url: str, min_reader: int
) -> None:
    """Its rows stay, and this program goes on with the new schema unless the migration needs a newer one."""
    async with open_postgres_store(postgres_url) as store, store.transaction("j") as tx:
        tx.save_job(a_job())
    later = migrations() | {NEWEST + 1: Migration("ALTER TABLE jobs ADD COLUMN extra int DEFAULT 7", min_reader)}
    connection = await asyncpg.connect(postgres_url)
    assert await migrate(connection, "it", later) == (NEWEST, NEWEST + 1, False)
    assert await migrate(connection, "it", later) == (NEWEST + 1, NEWEST + 1, False)
    await connection.close()
    schema = [[str(NEWEST + 1), str(min_reader)]]
    assert postgres_server.execute("SELECT * FROM wattwise_schema", postgres_url) == schema
    if min_reader > NEWEST:
        assert "run a newer Wattwise" in await refusal(postgres_url)
        return
    async with open_postgres_store(postgres_url) as store, store.transaction("k") as tx:
        tx.save_job(a_job("k"))
    assert postgres_server.execute("SELECT job_id, extra FROM jobs ORDER BY 1", postgres_url) == [
        ["j", "7"],
        ["k", "7"],
    ]


async def test_tables_of_another_program_are_refused(postgres_server: PostgresServer, postgres_url: str) -> None:
    """A database with a table `jobs` that is not Wattwise's is refused and unchanged."""
    postgres_server.execute("CREATE TABLE jobs (n int)", postgres_url)
    assert "another program" in await refusal(postgres_url)
    assert postgres_server.execute("SELECT to_regclass('wattwise_schema')", postgres_url) == [[""]]


async def test_owner_migrates_for_a_user_with_fewer_rights(own: PostgresServer) -> None:
    """A user that may not create tables is told who may; once they exist, the rights on their rows suffice."""
    url = own.create_database()
    own.execute("CREATE ROLE clerk LOGIN")
    as_clerk = url.replace("postgres@", "clerk@")
    assert 'GRANT CREATE ON SCHEMA "public"' in await refusal(as_clerk)
    async with open_postgres_store(url):
        pass
    assert "SELECT, INSERT, UPDATE and DELETE" in await refusal(as_clerk)
    database = url.rpartition("/")[2]
    own.execute(f"REVOKE TEMPORARY ON DATABASE {database} FROM PUBLIC")
    own.execute(
        "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO clerk;"
        "GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO clerk",
        url,
    )
    assert "TEMPORARY on the database" in await refusal(as_clerk)
    own.execute(f"GRANT TEMPORARY ON DATABASE {database} TO clerk")
    async with open_postgres_store(as_clerk) as store:
        async with store.transaction("j") as tx:
            tx.save_job(a_job())
        async with store.transaction("j") as tx:
            tx.delete_job()


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
async def test_encoding_that_cannot_hold_all_texts_is_refused(own: PostgresServer, encoding: str) -> None:
    """A database of another encoding than UTF-8 is refused and unchanged."""
    url = own.create_database()
    name = url.rpartition("/")[2]
    own.execute(f"DROP DATABASE {name}")
    own.execute(f"CREATE DATABASE {name} ENCODING '{encoding}' LOCALE 'C' TEMPLATE template0")
    assert encoding in await refusal(url)
    assert own.execute("SELECT to_regclass('wattwise_schema')", url) == [[""]]


async def test_server_that_may_lose_commits_is_refused(own: PostgresServer) -> None:
    """With fsync=off a crash may lose what was acknowledged."""
    url = own.create_database()
    own.configure(fsync="off")
    assert "fsync=off" in await refusal(url)
    own.configure(fsync="on")
    async with open_postgres_store(url):
        pass


async def test_commits_are_flushed_whatever_the_default_says(own: PostgresServer) -> None:
    """A default of synchronous_commit=off does not hold for what a server acknowledges."""
    url = own.create_database()
    name = url.rpartition("/")[2]
    for default, used in (("off", "on"), ("local", "on"), ("remote_apply", "remote_apply")):
        own.execute(f"ALTER DATABASE {name} SET synchronous_commit = {default}")
        async with open_postgres_store(url) as store:
            connection = store.saver.connection
            assert connection is not None
            assert await connection.fetchval("SHOW synchronous_commit") == used


async def test_wrong_password_or_names_are_told_without_the_password(own: PostgresServer) -> None:
    """A wrong password, user or database is refused at once, by what PostgreSQL said."""
    url = own.create_database()
    name = url.rpartition("/")[2]
    for wrong, code in (
        (f"locked:open@{own.host}/{name}", "28P01"),
        (f"nobody:open@{own.host}/{name}", "28000"),
        (f"locked:sesame@{own.host}/missing", "3D000"),
    ):
        error = await refusal(f"postgresql://{wrong}")
        assert code in error
        assert own.host in error
        assert "open@" not in error
        assert ":open" not in error
        assert "sesame" not in error


async def test_file_of_the_password(own: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A password comes from a file; one that would be ignored is refused with what to do, before it is needed."""
    for variable in ("PGPASSWORD", "PGPASSFILE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    name = own.create_database().rpartition("/")[2]
    own.execute(f"GRANT ALL ON DATABASE {name} TO locked; ALTER DATABASE {name} OWNER TO locked")
    url, file = f"postgresql://locked@{own.host}/{name}", tmp_path / ".pgpass"
    assert str(file) in await refusal(url)
    assert "does not exist" in await refusal(f"{url}?passfile={file}")
    file.write_text("*:*:*:locked:sesame\n")
    file.chmod(0o644)
    for ignored in (url, f"{url}?passfile={file}"):
        error = await refusal(ignored)
        assert f"chmod 600 {file}" in error
    monkeypatch.setenv("PGPASSFILE", str(file))
    assert f"chmod 600 {file}" in await refusal(url)
    monkeypatch.delenv("PGPASSFILE")
    file.chmod(0o600)
    for usable in (url, f"{url}?passfile={file}"):
        async with open_postgres_store(usable):
            pass
    file.write_text("*:*:*:other:sesame\n")
    assert "first line" in await refusal(url)
    assert "not a plain file" in await refusal(f"{url}?passfile={tmp_path}")
    monkeypatch.setenv("PGPASSWORD", "open")
    assert "PGPASSWORD" in await refusal(url)


async def test_file_that_is_not_needed(own: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A password file does not matter beside a password or where none is needed, nor a certificate without TLS."""
    url = own.create_database()
    name = url.rpartition("/")[2]
    own.execute(f"ALTER DATABASE {name} OWNER TO locked")
    locked = f"postgresql://locked:sesame@{own.host}/{name}"
    async with open_postgres_store(f"{locked}?passfile=/missing&sslmode=disable&sslrootcert=/missing"):
        pass
    for named in ("", "/missing"):
        monkeypatch.setenv("PGPASSFILE", named)
        for usable in (url, locked):
            async with open_postgres_store(usable):
                pass
    monkeypatch.setenv("PGPASSWORD", "sesame")
    async with open_postgres_store(f"{locked.replace(':sesame', ':')}?passfile=/missing"):
        pass


URL = "postgresql://a@127.0.0.1:1/x"
PLACES = {
    "sslrootcert": ("PGSSLROOTCERT", ".postgresql/root.crt"),
    "sslcrl": ("PGSSLCRL", ".postgresql/root.crl"),
    "sslcert": ("PGSSLCERT", ".postgresql/postgresql.crt"),
    "sslkey": ("PGSSLKEY", ".postgresql/postgresql.key"),
    "service": ("PGSERVICEFILE", ".pg_service.conf"),
}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home, and an environment without variables of PostgreSQL."""
    for variable in ("PGPASSWORD", "PGPASSFILE", "PGSSLMODE", *(variable for variable, _ in PLACES.values())):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".postgresql").mkdir()
    return tmp_path


@pytest.mark.parametrize("kind", ["pipe", "folder", "link to a device", "a terabyte"])
@pytest.mark.parametrize(
    ("option", "place"),
    [*product(PLACES, ("variable", "home")), *product(sorted(PLACES.keys() - {"service"}), ("URL", "service"))],
)
def test_special_files_are_not_read(
    option: str, place: str, kind: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that would block its reader or never end is refused, whatever names it."""
    variable, default = PLACES[option]
    named = home / (default if place == "home" else "special")
    SPECIAL[kind](named)
    query = "?sslmode=require"
    if option == "service":
        query += "&service=mine"
    else:
        (home / ".postgresql/postgresql.crt").touch(exist_ok=True)
    if place == "variable":
        monkeypatch.setenv(variable, str(named))
    elif place == "URL":
        query += f"&{option}={named}"
    elif place == "service":
        (home / ".pg_service.conf").write_text(f"[mine]\n{option} = {named}\n")
        query += "&service=mine"
    with pytest.raises(StartError, match=f"{named},? is (not a plain file|larger)"):
        Connector(URL + query, URL)


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (None, "does not exist"),
        (b"[other]\nport = 1\n", "has no service mine"),
        (b"[mine]\nuser = \xff\n", "is not UTF-8"),
        (b"[mine]\npassword = sesame%\n", "write it as %%"),
        (b"password = sesame\n", "is malformed"),
        (b"[mine]\npassword = sesame\npassword = sesame\n", "is malformed"),
    ],
)
@pytest.mark.parametrize("is_variable", [False, True])
def test_file_of_services(
    content: bytes | None, fault: str, is_variable: bool, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A service that cannot be read is refused with the file and without its content."""
    file = home / ("services" if is_variable else ".pg_service.conf")
    if content is not None:
        file.write_bytes(content)
    if is_variable:
        monkeypatch.setenv("PGSERVICEFILE", str(file))
    with pytest.raises(StartError, match=f"{file},? {fault}|{file},? .*{fault}") as refused:
        Connector(f"{URL}?service=mine", URL)
    assert "sesame" not in str(refused.value)


def test_file_that_no_connection_reads(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing file of a variable matters only if connections read it; a missing one in the home never does."""
    for option in ("sslrootcert", "sslcrl", "sslkey"):
        monkeypatch.setenv(PLACES[option][0], str(home / "missing"))
    Connector(URL, URL)
    with pytest.raises(StartError, match="PGSSLROOTCERT"):
        Connector(f"{URL}?sslmode=require", URL)
    monkeypatch.setenv("PGSSLMODE", "verify-full")
    with pytest.raises(StartError, match="PGSSLROOTCERT"):
        Connector(URL, URL)
    monkeypatch.setenv("PGSSLMODE", "disable")
    monkeypatch.setenv("PGSSLCERT", str(home / "missing"))
    Connector(URL, URL)
    monkeypatch.setenv("HOME", "/dev/null")
    for option in ("sslrootcert", "sslcrl", "sslkey", "sslcert"):
        monkeypatch.delenv(PLACES[option][0])
    Connector(f"{URL}?sslmode=require", URL)


async def test_password_file_that_is_not_text(own: PostgresServer, home: Path) -> None:
    """A password file that is not UTF-8 is ignored, and named if the password is missing."""
    (home / ".pgpass").write_bytes(b"*:*:*:locked:\xff\n")
    (home / ".pgpass").chmod(0o600)
    assert f"{home}/.pgpass, line 1, is not UTF-8" in await refusal(f"postgresql://locked@{own.host}/postgres")


def test_source_of_a_password(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is said of each place from which a password comes, also where there is no home."""
    for variable in ("PGPASSWORD", "PGPASSFILE", "PGSERVICE", "HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", dict[int, pwd.struct_passwd]().__getitem__)
    assert "none was sent" in password_source({"password": ""}, in_url=False)
    assert "in the URL" in password_source({"password": "p"}, in_url=False)
    assert "in the URL" in password_source({}, in_url=True)
    assert "the service mine" in password_source({"service": "mine"}, in_url=False)
    assert "cannot be read" in password_source({"passfile": "\0"}, in_url=False)


async def test_settings_in_the_url(own: PostgresServer) -> None:
    """A URL may have settings of PostgreSQL; those on which commits rely stay."""
    url = f"{own.create_database()}?options=-c%20work_mem%3D8MB%20-c%20lock_timeout%3D1%20-c%20application_name%3Dmine"
    async with open_postgres_store(url) as store:
        connection = store.saver.connection
        assert connection is not None
        shown = [await connection.fetchval(f"SHOW {name}") for name in ("application_name", "work_mem", "lock_timeout")]
    assert shown == ["wattwise", "8MB", "0"]


async def test_server_without_tls_is_refused_at_once(own: PostgresServer) -> None:
    """A URL that demands TLS finds a PostgreSQL without it: to wait would not help."""
    assert "SSL" in await asyncio.wait_for(refusal(f"{own.url()}?sslmode=require"), 20)


@pytest.mark.parametrize("greeting", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\0\0\x12\4\0\0\0\0\0"])
@pytest.mark.usefixtures("home")
async def test_port_of_another_program_is_refused_at_once(greeting: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """A port that does not speak PostgreSQL's protocol is an error of the URL, and not one of its sslmode."""

    async def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(greeting)
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        url = f"postgresql://a@127.0.0.1:{server.sockets[0].getsockname()[1]}/x"
        for usual in (url, f"{url}?sslmode=allow"):
            error = await asyncio.wait_for(refusal(usual), 20)
            assert "is not PostgreSQL" in error
            assert "sslmode" not in error.replace(usual, "")
        monkeypatch.setenv("PGSSLMODE", "require")
        assert "sslmode=prefer" in await asyncio.wait_for(refusal(url), 20)


@pytest.mark.parametrize(
    ("statement", "remedy"),
    [
        ("REVOKE CONNECT ON DATABASE {0} FROM PUBLIC", "GRANT CONNECT"),
        ("ALTER DATABASE {0} ALLOW_CONNECTIONS false", "ALLOW_CONNECTIONS true"),
    ],
)
@pytest.mark.parametrize("query", ["", "?options=-c%20work_mem%3D8MB"])
async def test_database_that_takes_no_connection(own: PostgresServer, statement: str, remedy: str, query: str) -> None:
    """A database that a user may not connect to is refused at once, with the statement that allows it."""
    url = own.create_database()
    own.execute(statement.format(url.rpartition("/")[2]))
    assert remedy in await asyncio.wait_for(refusal(f"postgresql://locked:sesame@{url.partition('@')[2]}{query}"), 20)


async def test_certificate_of_a_stranger_is_refused_at_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A certificate that the URL does not trust is no outage: the error says where to name its authority."""
    pair, other = Authority(tmp_path).issue("db"), Authority(tmp_path, "other")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*pair)
    with socket.create_server(("127.0.0.1", 0)) as listening, ThreadPoolExecutor(1) as pool:

        def shake_hands() -> None:
            connection, _ = listening.accept()
            with connection:
                # A request for TLS, which is granted.
                connection.recv(8)
                connection.sendall(b"S")
                with pytest.raises(ssl.SSLError):
                    context.wrap_socket(connection, server_side=True)

        shaking = pool.submit(shake_hands)
        host = f"127.0.0.1:{listening.getsockname()[1]}"
        assert "sslrootcert" in await refusal(f"postgresql://a@{host}/x?sslmode=verify-full&sslrootcert={other.file}")
        shaking.result()
    assert "sslrootcert" in await refusal(f"postgresql://a@{host}/x?sslmode=verify-full&sslrootcert={pair.key}")
    assert "database not reached" not in caplog.messages


@pytest.mark.parametrize("options", ["-c%20nonsense%3D1", "-c%20work_mem%3Dmuch"])
async def test_options_that_postgres_refuses_are_named_at_once(
    options: str, own: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    """A setting that is unknown or has a wrong value is an error of the URL."""
    assert "correct the options of the URL" in await refusal(f"{own.create_database()}?options={options}")
    assert "database not reached" not in caplog.messages


async def test_too_many_connections_are_named(own: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A role without a connection left may get one later; then the error says what to raise."""
    monkeypatch.setattr("wattwise_server.store.postgres.connecting._START_SECONDS", 0.0)
    own.execute("CREATE ROLE few LOGIN CONNECTION LIMIT 1")
    url = own.create_database()
    own.execute(f"ALTER DATABASE {url.rpartition('/')[2]} OWNER TO few")
    error = await refusal(url.replace("postgres@", "few@"))
    assert "53300" in error
    assert "max_connections" in error
    assert "Start it" not in error


@pytest.mark.parametrize(
    ("statement", "source"),
    [
        ("ALTER DATABASE {0} SET default_transaction_read_only = on", "database"),
        ("ALTER ROLE {1} SET default_transaction_read_only = on", "user"),
        ("ALTER ROLE {1} IN DATABASE {0} SET default_transaction_read_only = on", "database user"),
    ],
)
async def test_read_only_database_is_named_at_once(
    statement: str, source: str, own: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    """It is no standby, and the error says where it was made read-only."""
    url, role = own.create_database(), f"reader_{source.replace(' ', '_')}"
    name = url.rpartition("/")[2]
    own.execute(f"CREATE ROLE {role} LOGIN; ALTER DATABASE {name} OWNER TO {role}")
    own.execute(statement.format(name, role))
    error = await refusal(url.replace("postgres@", f"{role}@"))
    assert f"default_transaction_read_only is on, set by the {source}." in error
    assert "standby" not in error
    assert "database not reached" not in caplog.messages


@pytest.mark.thorough
async def test_standby_is_named_and_may_be_promoted(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A standby is waited for, since it may be promoted; after the wait the error says that it is one."""
    with PostgresServer.running() as primary, primary.standby() as standby:
        with monkeypatch.context() as limits:
            limits.setattr("wattwise_server.store.postgres.connecting._START_SECONDS", 0.0)
            error = await refusal(standby.url())
        assert "it is a standby" in error
        assert "promote it" in error
        assert "Start it" not in error
        assert "read-only" not in error
        caplog.clear()

        async def open_it() -> None:
            async with open_postgres_store(standby.url()):
                pass

        opening = asyncio.create_task(open_it())
        while not caplog.records:  # noqa: ASYNC110 - the log tells nobody
            await asyncio.sleep(0.01)
        ((event, cause),) = [(record.msg, vars(record)["fields"]["cause"]) for record in caplog.records]
        assert event == "database not reached"
        assert "it is a standby" in cause
        await asyncio.to_thread(standby.promote)
        await asyncio.wait_for(opening, 30)


_TIMEOUTS = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout", "idle_session_timeout")


@pytest.mark.thorough
@pytest.mark.parametrize("major", [16, 18])
async def test_timeouts_of_a_database_do_not_apply(major: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A migration, commits and reads take as long as they need, whatever limits the database has for others."""
    with PostgresServer.running(major=major) as server:
        url = server.create_database()
        names = [*_TIMEOUTS, *(["transaction_timeout"] if major >= 17 else [])]
        for name in names:
            server.execute(f"ALTER DATABASE {url.rpartition('/')[2]} SET {name} = '1s'")
        steps = migrations()
        first = min(steps)
        slow = steps | {first: steps[first]._replace(sql=f"SELECT pg_sleep(1.2); {steps[first].sql}")}
        monkeypatch.setattr("wattwise_server.store.postgres.migrate.migrations", lambda: slow)
        async with open_postgres_store(url) as store:
            async with store.transaction("j") as tx:
                tx.save_job(a_job())
            async with store.saver.lock, store.reads.pool.acquire() as reading:
                writing = store.saver.connection
                assert writing is not None
                for connection in (writing, reading):
                    shown = {name: await connection.fetchval(f"SHOW {name}") for name in names}
                    own_limit = shown.pop("idle_in_transaction_session_timeout")
                    assert own_limit == ("1min" if connection is writing else "0")
                    assert set(shown.values()) == {"0"}


async def test_tables_are_in_one_schema(own: PostgresServer) -> None:
    """A search_path, a schema of the user's name and tables of the same names elsewhere mislead neither role."""
    url = own.create_database()
    name = url.rpartition("/")[2]
    own.execute("CREATE ROLE maker LOGIN; CREATE ROLE server LOGIN")
    own.execute(
        "CREATE SCHEMA server; CREATE SCHEMA traps; CREATE TABLE server.jobs (n int); CREATE TABLE traps.jobs (n int);"
        "CREATE FUNCTION traps.micros_now() RETURNS bigint LANGUAGE sql AS 'SELECT 1::bigint';"
        "CREATE FUNCTION traps.set_config(text, text, boolean) RETURNS text LANGUAGE sql AS 'SELECT 1/0 || $1';"
        "GRANT ALL ON SCHEMA public, server, traps TO maker, server;"
        f"ALTER DATABASE {name} SET search_path = traps, pg_catalog;"
        "ALTER DEFAULT PRIVILEGES FOR ROLE maker GRANT ALL ON TABLES TO server;"
        "ALTER DEFAULT PRIVILEGES FOR ROLE maker GRANT ALL ON SEQUENCES TO server",
        url,
    )
    async with open_postgres_store(url.replace("postgres@", "maker@")):
        pass
    async with open_postgres_store(url.replace("postgres@", "server@")) as store:
        async with store.saver.lock:
            writing = store.saver.connection
            assert writing is not None
            await writing.execute("CREATE TEMP TABLE jobs (n int)")
        async with store.transaction("j") as tx:
            tx.save_job(a_job())
    found = own.execute("SELECT schemaname FROM pg_tables WHERE tablename = 'wattwise_schema'", url)
    assert found == [["public"]]
    assert own.execute("SELECT job_id FROM public.jobs", url) == [["j"]]


async def test_schema_in_the_url(own: PostgresServer) -> None:
    """Another schema may be named, and is needed once it has the tables; one that is not there is named."""
    url = own.create_database()
    assert 'no schema "Ours"' in await refusal(f'{url}?options=-csearch_path%3D"Ours"')
    own.execute('CREATE SCHEMA "Ours"; CREATE SCHEMA other', url)
    for options in ('-c%20search_path%3D"Ours"', '--search-path%3D"Ours"'):
        async with open_postgres_store(f"{url}?options={options}") as store, store.transaction("j") as tx:
            tx.save_job(tx.job or a_job())
    assert own.execute('SELECT job_id FROM "Ours".jobs', url) == [["j"]]
    assert own.execute("SELECT to_regclass('public.jobs')", url) == [[""]]
    assert "options=-csearch_path%3D%22Ours%22" in await refusal(url)
    for named in ("other", "PUBLIC"):
        async with open_postgres_store(f"{url}?options=-csearch_path%3D{named}") as store:
            assert await store.reads.content() == (0, 0)
    fault = await refusal(url)
    assert all(f'"{schema}"' in fault for schema in ("Ours", "other", "public"))
    for several in ("a,b", "a,\\%20b", '"$user"', "$user", ""):
        assert "one schema" in await refusal(f"{url}?options=-csearch_path%3D{several}")


@pytest.mark.parametrize(
    ("url", "named"),
    [
        ("postgresql://a:sesame@db", "names no database"),
        ("postgresql://a:sesame@db:port/x", "port"),
        ("postgresql://a:sesame@db:0/x", "port 0"),
        ("postgresql://a:sesame@db:5432,other:99999/x", "port"),
        ("postgresql://a:sesame@db/x?target_session_attrs=standby", "target_session_attrs"),
        ("postgresql://a:sesame@127.0.0.1:1/x?sslmode=perhaps", "sslmode"),
        ("postgresql://a@127.0.0.1:1/x?password=sesame&sslmode=perhaps", "sslmode"),
        ("postgresql://a:ses/ame@db:5432/x", ""),
        ("postgresql://a:ses?ame@db:5432/x", ""),
        ("postgresql://a:ses#ame@db:5432/x", ""),
        ("postgresql://a:s[sesame@db:5432/x", ""),
        ("postgresql://a:open@ses/ame@db/x", "%40"),
        ("postgresql://a:open@ses#ame@db/x", "%23"),
        ("postgresql://a:open@ses?ame@db/x", "%3F"),
        ("postgresql://a:open?ses=ame&x=1@db/x", "%3F"),
        ("postgresql://a:sesame@db/x?passfil=f", "passfile"),
        ("postgresql://a:sesame@db/x?search_path=s", "options=-c"),
        ("postgresql://a:sesame@127.0.0.1:1/x%00", "%00"),
        ("postgresql://a:sesame%00@127.0.0.1:1/x", "%00"),
        ("postgresql://a:sesame@db/x?sslmode=disable&application_name=a@b", "option 2 of postgresql://a:***@db/x"),
        ("postgresql://a:sesame@db/x?hostaddr=1", "password, port"),
        ("postgresql://db/x?password=abc&sesame=1", "%26"),
        ("postgresql://db/x?password=abc&sesame", "%26"),
        ("postgresql://a:sesame@db/x?sslrootcert=/missing.pem", "/missing.pem, does not exist"),
        ("postgresql:/a:sesame@db/x", "postgresql:…"),
        ("postgresql:a:sesame@db/x", "postgresql:…"),
        ("postgres//a:sesame@db/x", ""),
        ("host=db user=a password=sesame", "names no database"),
        ("sqlite://a:sesame@db/x", "sqlite:…"),
    ],
)
async def test_malformed_url_is_refused_without_its_password(url: str, named: str) -> None:
    """A URL with a mistake is refused with what is wrong; its password is not shown, whatever is in it."""
    error = await refusal(url)
    assert named in error
    assert "ses" not in error.replace("postgres", "").replace("target_session", "")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://a:b@h/x", "postgresql://a:***@h/x"),
        ("postgresql://a@h:1,i:2/x?password=b", "postgresql://a@h:1,i:2/x"),
        ("postgresql:///x?host=/run", "postgresql:///x"),
        ("postgresql://h:5432/x?application_name=a@b", "postgresql://h:5432/x"),
        ("postgresql://a:b/c@d@h/x", "postgresql://a:***@h/x"),
        ("sqlite:///a:b@c", "sqlite:///a:b@c"),
    ],
)
def test_shown_url_has_no_password(url: str, shown: str) -> None:
    """Everything between a user's name and the last @ is the password."""
    assert shown_url(url) == shown
