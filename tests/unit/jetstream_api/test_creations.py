"""Two new streams on the same subjects, neither of which exists yet."""

from __future__ import annotations

from liftlog.server.jetstream_api.creations import Creations

ORDERS = {"subjects": ["orders.>"]}


def test_a_stream_that_is_being_created_is_in_the_way_until_its_creation_ends() -> None:
    creations = Creations()
    with creations.of("first", ORDERS):
        assert creations.overlap("second", ["orders.eu"])
        assert not creations.overlap("second", ["other"])
        with creations.of("second", {"subjects": ["other"]}):
            assert creations.overlap("third", ["other"])
        assert not creations.overlap("third", ["other"])
        assert creations.overlap("second", ["orders.eu"])
    assert not creations.overlap("second", ["orders.eu"])


def test_the_same_stream_twice_and_a_witness_are_not_in_the_way() -> None:
    creations = Creations()
    with creations.of("first", ORDERS), creations.of("witness", {**ORDERS, "no_ack": True}):
        assert not creations.overlap("first", ["orders.>"])
        with creations.of("first", ORDERS):
            assert creations.overlap("second", ["orders.>"])
        assert creations.overlap("second", ["orders.>"])
    with creations.of("witness", {**ORDERS, "no_ack": True}):
        assert not creations.overlap("second", ["orders.>"])
