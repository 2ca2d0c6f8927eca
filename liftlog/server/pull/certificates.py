"""The settings of TLS -> the context that `PullServer` takes, at the start and after a reload."""

from __future__ import annotations

import ssl

from liftlog.settings.daemon import PullTlsSettings
from liftlog.tls.contexts import own_certificate, server_context


def load_pull_tls(tls: PullTlsSettings) -> ssl.SSLContext | None:
    """None when no certificate is configured. Reads the files and tries what they give; raises
    ConfigError."""
    if tls.cert is None or tls.key is None:
        return None
    context = server_context(
        tls.cert, tls.key, client_ca=tls.client_ca, min_version=tls.min_version
    )
    own_certificate(context)
    return context
