"""The unit: systemd takes it, it is hardened, and it agrees with the daemon."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from support.repository import REPOSITORY

from liftlog.cli.lib.exit_codes import ExitCode
from liftlog.settings import Settings

UNIT = REPOSITORY / "config" / "systemd" / "liftlog.service"
ANALYZE = shutil.which("systemd-analyze")
MAX_EXPOSURE = 2.0

needs_systemd = pytest.mark.skipif(ANALYZE is None, reason="systemd-analyze is not installed")


def setting(name: str) -> list[str]:
    return re.findall(rf"^{name}=(.*)$", UNIT.read_text(), re.MULTILINE)


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """As it would be where liftlog is installed."""
    path = tmp_path / UNIT.name
    text = UNIT.read_text()
    program = setting("ExecStart")[0].split()[0]
    path.write_text(text.replace(program, "/bin/true"))
    return path


def analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    assert ANALYZE is not None
    return subprocess.run([ANALYZE, *arguments], capture_output=True, text=True, timeout=60)


@needs_systemd
def test_systemd_takes_it(installed: Path) -> None:
    done = analyze("verify", "--man=no", str(installed))
    assert done.returncode == 0, done.stderr
    assert UNIT.name not in done.stderr, done.stderr


@needs_systemd
def test_systemd_would_refuse_what_is_wrong(installed: Path) -> None:
    installed.write_text(installed.read_text().replace("WatchdogSec=", "WatchdogSecs="))
    assert "WatchdogSecs" in analyze("verify", "--man=no", str(installed)).stderr


@needs_systemd
def test_it_is_hardened(installed: Path) -> None:
    done = analyze("security", "--offline=true", "--no-pager", str(installed))
    found = re.search(r"Overall exposure level for .*: ([\d.]+)", done.stdout)
    assert found is not None, done.stdout + done.stderr
    assert float(found[1]) <= MAX_EXPOSURE, done.stdout


def test_it_agrees_with_the_daemon() -> None:
    assert setting("Type") == ["notify"]
    assert setting("ExecReload") == ["/bin/kill -HUP $MAINPID"]
    assert setting("RestartPreventExitStatus") == [
        f"{ExitCode.USAGE.value} {ExitCode.CONFIG.value}"
    ]
    assert setting("SuccessExitStatus") == [str(128 + signal.SIGINT)]
    stop_seconds = int(setting("TimeoutStopSec")[0].removesuffix("s"))
    assert stop_seconds > Settings().drain_timeout_seconds * 2
    (program,) = setting("ExecStart")
    assert program.split()[1:3] == ["serve", "-c"]
    assert setting("TimeoutStartSec") == ["infinity"]
    assert setting("Environment") == ["LIFTLOG_DATA_DIR=%S/liftlog"]
    assert setting("StateDirectory") == ["liftlog"]
    assert setting("StateDirectoryMode") == ["0700"], "as the daemon makes its directory"
    # Principals may be known by their uid.
    assert setting("PrivateUsers") == []
    # The subset of processes hides the boot id: see test_boot_id.py.
    assert setting("ProcSubset") == []
