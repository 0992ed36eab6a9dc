"""Values of placeholders reach a command as they are, also through a shell that the job file asks for."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from wattwise.driver.placeholders import PLACEHOLDERS, substitute

from tests.client.driver.running import Runs, write_job

PATHS = (
    "/tmp/plain",  # noqa: S108 - a value, not a file
    "/a b",
    "/a;touch pwned",
    "/$(touch pwned)",
    "/`touch pwned`",
    "/'; touch pwned; '",
    '/"; touch pwned; "',
    "/\\",
    "/\\'$x\\\"",
    "/a\nb",
    "/*",
    "/${x}",
    "/é\x1b[2J",
)
SHELLS = [path for name in ("sh", "bash", "dash") if (path := shutil.which(name))]
SCRIPTS = {
    "printf %s {log_dir}": "{}",
    "printf %s {log_dir}/x": "{}/x",
    "printf %s --dir={log_dir}": "--dir={}",
    'printf %s "{log_dir}"': "{}",
    'printf %s "a \\" b {log_dir} \' c"': "a \" b {} ' c",
    "printf %s '{log_dir}'": "{}",
    "printf %s 'a \" b {log_dir} $x'": 'a " b {} $x',
    "x='it'; y=\"is\"; z=\\'; printf %s {log_dir}": "{}",
    'cd . && printf "%s" "$PWD" >/dev/null; printf %s "{log_dir}"': "{}",
    "for x in 'a b'; do printf %s \"$x\" {log_dir}; done": "a b{}",
}


def values(log_dir: str) -> dict[str, str]:
    """A value for each placeholder."""
    return {**dict.fromkeys(PLACEHOLDERS, "1"), "log_dir": log_dir}


@pytest.mark.parametrize("path", PATHS)
def test_arguments_are_not_evaluated(path: str) -> None:
    """Without a shell, a placeholder is replaced by its value, and each argument stays one."""
    assert substitute(["train", "--out={log_dir}", "{{x}}"], values(path)) == ("train", f"--out={path}", "{x}")
    assert substitute(["bash", "train.sh", "-c", "{log_dir}"], values(path)) == ("bash", "train.sh", "-c", path)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("shell", SHELLS)
def test_shell_takes_values_as_they_are(shell: str, script: str, path: str) -> None:
    """A value in a shell script is quoted for the place where it stands."""
    command = substitute([shell, "-c", script], values(path))
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == SCRIPTS[script].replace("{}", path)


@pytest.mark.parametrize(
    "script",
    [
        "echo $(ls {log_dir})",
        "echo `ls {log_dir}`",
        'echo "$(ls "{log_dir}")"',
        "cat <<END\n{log_dir}\nEND",
        "true # don't\necho {log_dir}",
        *(f"true{end}# don't\necho {{log_dir}}" for end in (";", "&", "|\n", ";(true)")),
        "eval 'echo {log_dir}'",
        "eval \"echo '{log_dir}'\"",
        "bash -c 'echo {log_dir}'",
        "/bin/dash x.sh '{log_dir}'",
        "python -c 'open(\"{log_dir}\")'",
        "su u -c 'echo {log_dir}'",
        "trap 'echo {log_dir}' EXIT",
        "sbatch --wrap='echo {log_dir}'",
        "echo $'{log_dir}'",
        'echo ${{HOME}} "{log_dir}"',
        "echo \\{log_dir}",
        "echo ${log_dir}",
    ],
)
def test_value_that_cannot_be_quoted(script: str) -> None:
    """Where a script is too intricate, a value that needs quotes is refused, and any other is taken."""
    with pytest.raises(ValueError, match="WATTWISE_LOG_DIR"):
        substitute(["sh", "-c", script], values("/a b"))
    assert "/ab" in substitute(["sh", "-c", script], values("/ab"))[2]


@pytest.mark.parametrize(
    "words",
    [
        ["sh", "-c"],
        ["/bin/bash", "-lc"],
        ["bash", "-euo", "pipefail", "-c"],
        ["bash", "-x", "+o", "posix", "--norc", "-c", "--"],
        ["bash", "--rcfile", "/dev/null", "-c"],
        ["nice", "-n", "5", "sh", "-c"],
        ["srun", "bash", "wrapper.sh", "zsh", "-c"],
    ],
)
def test_scripts_of_shells_are_found(words: list[str]) -> None:
    """A shell may have options, and other programs may start it."""
    assert substitute([*words, "x {log_dir}", "{log_dir}"], values("/a b"))[-2:] == ("x '/a b'", "/a b")


@pytest.mark.parametrize(
    "words",
    [
        ["sbatch", "--wrap", "train {log_dir}"],
        ["sbatch", "--wrap=train\t{log_dir}"],
        ["python", "-c", "open('{log_dir}')"],
        ["fish", "-c", "{log_dir}/train"],
        ["su", "user", "-c", "{log_dir}/train"],
        ["ssh", "host", "train", "{log_dir}"],
        ["bash", "--unknown", "option", "-c", "x;{log_dir}"],
        ["ssh", "host", "sh", "-c", "x {log_dir}"],
    ],
)
def test_scripts_of_other_programs(words: list[str]) -> None:
    """A value that needs quotes is refused where another program may evaluate it, and any other is taken."""
    with pytest.raises(ValueError, match="WATTWISE_LOG_DIR"):
        substitute(words, values("/a;touch pwned"))
    assert any("/ab" in word for word in substitute(words, values("/ab")))


def test_folder_with_any_name(runs: Runs) -> None:
    """A shell's command runs in a folder whose name a shell would evaluate."""
    folder = runs.folder / "a b;'\"$(touch pwned)`touch pwned`\\"
    folder.mkdir()
    script = 'echo \'{{"metric": 0.95, "epochs": 2}}\' > {log_dir}/result.json; ls "{log_dir}"'
    job = write_job(folder, ["sh", "-c", script], train={"workdir": str(folder)}, run={"recurrences": 1})
    done = runs.run(job)
    assert done.returncode == 0, done.stderr
    assert not list(runs.folder.rglob("pwned"))


def test_folder_with_control_characters(runs: Runs) -> None:
    """A folder whose name has control characters is refused, and printed without them."""
    folder = runs.folder / "a\nb\x1b[2J"
    folder.mkdir()
    done = runs.run(write_job(folder, ["true"]))
    assert (done.returncode, list(folder.iterdir())) == (2, [folder / "job.toml"])
    assert "\x1b" not in done.stdout + done.stderr


def test_script_that_is_too_intricate(runs: Runs) -> None:
    """A value that cannot be quoted is a fault of the job file before anything starts."""
    folder = runs.folder / "a b"
    folder.mkdir()
    done = runs.run(write_job(folder, ["sh", "-c", "echo $(ls {log_dir})"]))
    assert (done.returncode, (folder / "runs").exists()) == (2, False)
    assert "train.command: {log_dir}" in done.stderr


@pytest.mark.parametrize("table", [{"command": ["echo", "a\0b"]}, {"workdir": "a\0b"}])
def test_nul(runs: Runs, table: dict[str, object]) -> None:
    """The character NUL, which no argument can have, is a fault of the job file."""
    done = runs.run(write_job(runs.folder, ["true"], train=table))
    assert done.returncode == 2
    assert f"train.{next(iter(table))}" in done.stderr
    assert "\0" not in done.stderr


def test_dry_run_shows_no_control_characters(served: Runs) -> None:
    """The command of a dry run can be pasted into Bash, whatever its arguments are."""
    word = "it's\x1b[2J\\"
    done = served.run(write_job(served.folder, ["printf", "%s", word]), "--dry-run")
    assert "\x1b" not in done.stdout
    (line,) = {line for line in done.stdout.splitlines() if line.partition(" ")[0].endswith("/printf")}
    assert subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=True).stdout == word
