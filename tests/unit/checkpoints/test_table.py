"""Checkpoints are listed by consumer and stream, of all or of one, from any place."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from liftlog.server.checkpoints.checkpoint import CheckpointKey, Stored
from liftlog.server.checkpoints.table import CheckpointTable

NAMES = ["", "a", "a.b", "b", "c"]
keys = st.tuples(st.sampled_from(NAMES), st.sampled_from(NAMES))
STORED = Stored(1, 0, "incarnation", 0, "", "owner")


@given(
    begun=st.lists(keys),
    changes=st.lists(st.dictionaries(keys, st.sampled_from([STORED, None]))),
    after=st.none() | keys,
    consumer=st.none() | st.sampled_from(NAMES),
    stream=st.none() | st.sampled_from(NAMES),
)
def test_listing_equals_a_search_of_everything(
    begun: list[CheckpointKey],
    changes: list[dict[CheckpointKey, Stored | None]],
    after: CheckpointKey | None,
    consumer: str | None,
    stream: str | None,
) -> None:
    table = CheckpointTable(dict.fromkeys(begun, STORED))
    expected = set(begun)
    for some in changes:
        table.apply(some)
        expected -= some.keys()
        expected |= {key for key, stored in some.items() if stored is not None}
    found = [key for key, _ in table.after(after, consumer=consumer, stream=stream)]
    assert found == sorted(
        key
        for key in expected
        if (after is None or key > after)
        and consumer in (None, key[0])
        and stream in (None, key[1])
    )
