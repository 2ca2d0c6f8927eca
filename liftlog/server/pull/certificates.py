"""Creates the TLS context of `PullServer` from the settings, at the start and after a reload. Logs
a warning about an unsuitable certificate."""

from __future__ import annotations

import logging
import ssl
import time

from liftlog.settings.checks import Caution
from liftlog.settings.daemon import PullTlsSettings
from liftlog.tls import own_certificate, prospect_of, server_context

logger = logging.getLogger("liftlog.server.pull")

_SOON_DAYS = 14
_DAY_SECONDS = 86_400


def load_pull_tls(tls: PullTlsSettings) -> ssl.SSLContext | None:
    """Return the TLS context; None if no certificate is configured. Reads and tests the files, and
    logs a warning if clients will refuse the certificate. Raises ConfigError."""
    context, found = _load(tls)
    if found is not None:
        logger.warning(
            "caution setting=%s problem=%s advice=%s", found.setting, found.problem, found.advice
        )
    return context


def check_pull_tls(tls: PullTlsSettings) -> Caution | None:
    """Return the warning that a daemon with these settings would log at its start, if any. Raises
    ConfigError."""
    return _load(tls)[1]


def _load(tls: PullTlsSettings) -> tuple[ssl.SSLContext | None, Caution | None]:
    if tls.cert is None or tls.key is None:
        return None, None
    context = server_context(
        tls.cert, tls.key, client_ca=tls.client_ca, min_version=tls.min_version
    )
    refused, expires_at = prospect_of(context, own_certificate(context))
    advice = "replace the file and send the daemon HUP"
    if refused:
        return context, Caution("pull.tls.cert", f"clients refuse {tls.cert}: {refused}", advice)
    if expires_at is not None and (left := expires_at - time.time()) < _SOON_DAYS * _DAY_SECONDS:
        day = time.strftime("%Y-%m-%d", time.gmtime(expires_at))
        days = max(int(left // _DAY_SECONDS), 0)
        problem = f"{tls.cert} expires on {day}, in {days} days"
        return context, Caution("pull.tls.cert", problem, advice)
    return context, None
