"""--set key=value of `stream create`."""

import pytest
from click.testing import CliRunner

from liftlog.cli.lib import setting_options
from liftlog.cli.lib.exit_codes import ExitCode
from liftlog.cli.lib.options import parse_assignments
from liftlog.cli.root import cli
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


@pytest.mark.parametrize(
    ("option", "key"),
    [("--max-age", "retention.max_age"), ("--max-msgs", "retention.max_messages"),
     ("--acks", "acks"), ("--max-msg-size", "max_message_bytes"), ("--replicas", "replicas"),
     ("--enabled-not", None)],
)  # fmt: skip
def test_an_option_that_is_called_like_a_setting(option: str, key: str | None) -> None:
    for words in (["stream", "edit", "orders"], ["stream", "add", "orders", "-s", "orders.>"]):
        refused = CliRunner().invoke(cli, [*words, option, "1d"])
        assert refused.exit_code == ExitCode.USAGE
        assert f"No such option '{option}'" in refused.stderr
        assert ("--set" in refused.stderr) == (key is not None)
        if key is not None:
            assert f"--set {key}=VALUE" in " ".join(refused.stderr.split())


def test_every_word_of_nats_is_a_setting_here() -> None:
    for key in setting_options.WORDS_OF_NATS.values():
        assert setting_options.setting_called(key.split(".")[-1]) == key
