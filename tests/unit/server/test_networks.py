"""The network of the tests' machines loses what is sent over a line that is cut, one way."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import permutations

import pytest
from support.daemons.networks import Network

NAMES = ("a", "b", "c")
PORT = 4000


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    with Network(NAMES) as network:
        yield network


@pytest.fixture
def sockets(network: Network) -> Iterator[dict[str, socket.socket]]:
    """Of each machine, at its port."""
    with ExitStack() as stack:
        found = {
            name: stack.enter_context(network.socket(name, socket.SOCK_DGRAM)) for name in NAMES
        }
        for name, one in found.items():
            one.bind((network.host(name), PORT))
            one.settimeout(60)
        yield found
        network.heal()


Lines = set[tuple[str, str]]
ALL: Lines = set(permutations(NAMES, 2))


def open_lines(network: Network, sockets: dict[str, socket.socket]) -> Lines:
    """Over which lines does something arrive? Each sends to each other, then all is mended, and
    each sends again: what comes first on a line tells."""
    for sender, receiver in ALL:
        sockets[sender].sendto(f"{sender} cut".encode(), (network.host(receiver), PORT))
    network.heal()
    for sender, receiver in ALL:
        sockets[sender].sendto(f"{sender} mended".encode(), (network.host(receiver), PORT))
    found: Lines = set()
    for receiver in NAMES:
        left = set(NAMES) - {receiver}
        while left:
            sender, when = sockets[receiver].recv(100).decode().split()
            if when == "cut":
                found.add((sender, receiver))
            else:
                left.discard(sender)
    return found


def test_lines_are_cut_in_each_direction_alone(
    network: Network, sockets: dict[str, socket.socket]
) -> None:
    assert open_lines(network, sockets) == ALL
    network.cut("a", "b")
    assert open_lines(network, sockets) == ALL - {("a", "b")}
    network.isolate("a")
    assert open_lines(network, sockets) == {("b", "c"), ("c", "b")}
    network.isolate("a", hears=True)
    assert open_lines(network, sockets) == ALL - {("a", "b"), ("a", "c")}
    network.isolate("a", is_heard=True)
    assert open_lines(network, sockets) == ALL - {("b", "a"), ("c", "a")}
    network.separate("b", "c")
    assert open_lines(network, sockets) == ALL - {("b", "c"), ("c", "b")}
    assert open_lines(network, sockets) == ALL
