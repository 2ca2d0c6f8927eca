"""The subscriptions that are to be requested are found without a look at all others."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from liftlog.sequencing.run import MessageRun
from liftlog.server.ingest.subscriptions import LinkSubscription, SubscriptionBook


def ignore(run: MessageRun) -> None:
    pass


def new(number: int) -> LinkSubscription:
    return LinkSubscription((f"s{number}",), None, ignore)


steps = st.lists(
    st.tuples(
        st.sampled_from(["add", "accept", "refuse", "revoke", "retarget", "remove", "disconnect"]),
        st.integers(min_value=0, max_value=4),
    ),
    max_size=30,
)


@given(steps)
def test_missing_are_those_that_nats_has_not_confirmed(found: list[tuple[str, int]]) -> None:
    book = SubscriptionBook()
    made: list[LinkSubscription] = []
    for count, (step, number) in enumerate(found):
        one = made[number % len(made)] if made else None
        if step == "add" or one is None:
            made.append(new(count))
            book.add(made[-1])
        elif step == "accept":
            one.is_changed = False  # as the connection does when it asks
            book.answered([one], {})
        elif step == "refuse":
            book.answered([one], {one: {one.subjects[0]: "no"}})
        elif step == "revoke":
            book.revoked(one, one.subjects[0], "no longer")
        elif step == "retarget":
            book.retarget(one, (f"s{count}",))
        elif step == "remove":
            book.remove(one)
        else:
            book.disconnected()
        wanted = book.wanted
        assert list(book.all_wanted) == wanted
        book.ask_at_once()
        missing = book.missing(0.0)
        assert len(missing) == len(set(missing))
        assert set(missing) == {each for each in wanted if not each.confirmed}


def test_a_subscription_changed_while_it_was_requested_is_requested_again() -> None:
    book, one = SubscriptionBook(), new(1)
    book.add(one)
    one.is_changed = False
    book.answered([one], {})
    assert book.missing(0.0) == []
    book.retarget(one, ("other",))
    assert book.missing(0.0) == [one]
    book.answered([one], {})  # the answer is about the subjects before
    assert book.missing(0.0) == [one]
