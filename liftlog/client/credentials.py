"""Files and texts -> what a client authenticates with."""

from __future__ import annotations

import logging
from functools import lru_cache
from os import PathLike, fspath
from pathlib import Path

from liftlog.client.companions import nkeys
from liftlog.client.target import Address
from liftlog.errors import InvalidArgument, MissingDependency
from liftlog.protocol.proofs import Credentials, Signer

NkeyFile = str | PathLike[str]
"""A file with the seed of a user's nkey: alone, or a `.creds` file."""

_MAX_FILE_BYTES = 64 * 1024

logger = logging.getLogger("liftlog.client")


def credentials_of(token: str | None, nkey: NkeyFile | None, address: Address) -> Credentials:
    """Reads the file, once. Raises InvalidArgument, which never shows what is in it."""
    if token is not None and address.is_exposed:
        _warn(address.text)
    return Credentials(token, None if nkey is None else _signer_in(nkey))


@lru_cache(maxsize=64)  # once for each address, however many clients there are
def _warn(address: str) -> None:
    logger.warning("token-unencrypted address=%s", address)


def _signer_in(file: NkeyFile) -> Signer:
    try:
        with Path(file).open("rb") as opened:
            content = opened.read(_MAX_FILE_BYTES)
        return nkeys.SigningKey(nkeys.find_seed(content))
    except OSError as error:
        raise InvalidArgument(f"cannot read the nkey {fspath(file)}: {error.strerror}") from error
    except nkeys.NotAnNkey as error:
        raise InvalidArgument(f"{fspath(file)} holds no nkey seed: {error}") from None
    except ModuleNotFoundError as error:
        raise MissingDependency(
            f"a login by nkey needs {error.name}, which is not installed",
            hint="pip install pynacl (it is the extra nkey of liftlog-client)",
        ) from error
