"""The settings of TLS -> the context that `PullServer` takes, at the start and after a reload."""

from __future__ import annotations

import ssl

from liftlog.settings.daemon import PullTlsSettings
from liftlog.tls.contexts import server_context


def load_pull_tls(tls: PullTlsSettings) -> ssl.SSLContext | None:
    """None when no certificate is configured. Reads the files; raises ConfigError."""
    if tls.cert is None or tls.key is None:
        return None
    return server_context(tls.cert, tls.key, client_ca=tls.client_ca, min_version=tls.min_version)
