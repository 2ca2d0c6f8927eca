"""What is said about the daemon's own certificate: by the daemon, `config check` and `doctor`."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from click.testing import CliRunner
from support.daemons.certificates import Authority, Pair

from liftlog.cli.doctor import FAILED, OK, WARNING, setup
from liftlog.cli.lib.exit_codes import ExitCode
from liftlog.cli.root import cli
from liftlog.server.pull.certificates import check_pull_tls, load_pull_tls
from liftlog.settings import Settings, load_settings


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def overrides(pair: Pair, *more: str) -> list[str]:
    tls = [f"pull.tls.cert={pair.cert}", f"pull.tls.key={pair.key}"]
    return ["pull.listen=tls://127.0.0.1:0", *tls, *more]


def settings(pair: Pair, *more: str) -> Settings:
    return load_settings(None, {}, overrides(pair, *more))


@pytest.mark.parametrize(
    ("days", "said"),
    [
        (-1, "clients refuse {cert}: certificate has expired"),
        (3, "in 2 days"),
        (30, ""),
    ],
)
def test_a_certificate_that_clients_refuse_or_will_soon(
    authority: Authority, caplog: pytest.LogCaptureFixture, days: int, said: str
) -> None:
    pair = authority.issue("daemon", days=days)
    for more in ((), (f"pull.tls.client_ca={authority.ca}",)):
        tls = settings(pair, *more).pull.tls
        found = check_pull_tls(tls)
        assert said.format(cert=pair.cert) in (str(found) if found else "")
        assert bool(found) == bool(said)
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            assert load_pull_tls(tls) is not None  # it is served all the same
        assert [record.levelname for record in caplog.records] == ["WARNING"] * bool(said)
        if said:
            assert caplog.messages[0].startswith("caution setting=pull.tls.cert problem=")


def test_the_commands_say_it(authority: Authority) -> None:
    def check(pair: Pair) -> tuple[int, str]:
        sets = [word for one in overrides(pair) for word in ("--set", one)]
        done = CliRunner().invoke(cli, ["config", "check", *sets])
        return done.exit_code, done.stderr

    good, expired = authority.issue("good"), authority.issue("expired", days=-1)
    assert check(good) == (ExitCode.OK, "")
    code, said = check(expired)
    assert code == ExitCode.OK
    assert "warning: pull.tls.cert: clients refuse" in said
    # With which no daemon would start.
    strange = Pair(good.cert, expired.key)
    code, said = check(strange)
    assert code == ExitCode.CONFIG
    assert "are not a certificate and its key" in said

    def status(pair: Pair) -> list[str]:
        return [one.status for one in setup.check_certificate(settings(pair))]

    assert (status(good), status(expired), status(strange)) == ([OK], [WARNING], [FAILED])
    assert list(setup.check_certificate(load_settings(None, {}, []))) == []
