"""--set key=value of `stream create`."""

import pytest

from liftlog.cli.options import parse_assignments
from liftlog.errors import InvalidArgument


def test_keys_nest_and_values_are_yaml() -> None:
    assert parse_assignments(
        [
            "retention.max_messages=1000",
            "retention.max_age=7d",
            "acks=off",
            "durability=interval",
            "queue_group=null",
            "flush={messages: 10}",
            "flush.interval=1s",
            "subject=orders.>",
        ]
    ) == {
        "retention": {"max_messages": 1000, "max_age": "7d"},
        "acks": False,  # YAML 1.1; the daemon takes it for `off`
        "durability": "interval",
        "queue_group": None,
        "flush": {"messages": 10, "interval": "1s"},
        "subject": "orders.>",
    }


@pytest.mark.parametrize("text", [">", "*", "*.new", "orders.*", "2026-01-31"])
def test_subjects_arrive_as_they_stand(text: str) -> None:
    assert parse_assignments([f"subject={text}"]) == {"subject": text}


@pytest.mark.parametrize(
    "assignments", [["subject"], ["=x"], ["a..b=1"], ["a=1", "a.b=2"], ["flush={a: "]]
)
def test_what_is_no_assignment_is_refused(assignments: list[str]) -> None:
    with pytest.raises(InvalidArgument):
        parse_assignments(assignments)
