"""While the daemon imports aiohttp in a thread, other threads get the system's certificates."""

from __future__ import annotations

import ssl
from concurrent.futures import ThreadPoolExecutor

import pytest

from liftlog.tls import system_certificates_unread

PURPOSE = ssl.Purpose.SERVER_AUTH


def test_only_this_thread_reads_no_certificates(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[ssl.Purpose] = []

    def load(self: ssl.SSLContext, purpose: ssl.Purpose = PURPOSE) -> None:
        read.append(purpose)

    monkeypatch.setattr(ssl.SSLContext, "load_default_certs", load)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    with ThreadPoolExecutor(1) as threads:
        with system_certificates_unread():
            context.load_default_certs()
            assert read == []
            threads.submit(context.load_default_certs).result()
            threads.submit(context.load_default_certs, ssl.Purpose.CLIENT_AUTH).result()
            threads.submit(context.load_default_certs, purpose=PURPOSE).result()
        assert read == [PURPOSE, ssl.Purpose.CLIENT_AUTH, PURPOSE]
        context.load_default_certs()
        assert len(read) == 4
