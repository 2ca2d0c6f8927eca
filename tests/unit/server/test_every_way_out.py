"""Nothing is published to a subject that a client has chosen without `Destinations` being asked.

The ways out are collected from the code: whatever composes a NATS command, publishes through a
client, or makes a `Destination`. One that is new fails here until it is written down, with what
keeps a client from choosing the subject; `tests/integration/test_every_way_out.py` tries them.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

from support.repository import REPOSITORY

from liftlog.protocol.messages import REQUESTS
from liftlog.protocol.wire import wire_fields
from liftlog.server.http.bodies import PostedMessage
from liftlog.settings import StreamSettings

_COMMAND = re.compile(rb"\s*(?:H?PUB|[LRH]MSG) (?=[%{])|\s*(?:H?PUB|[LRH]MSG) $")
_CALLS = {"own_subject", "Destination", "publish", "publish_commands"}

TYPED = "takes a `Destination`, which mypy demands of its callers"
CHECKED = "`Tail._checked` and `Destinations.all_allowed` have seen the reply subjects"
OWN = "the daemon chooses the subject"

WAYS_OUT = {
    "liftlog/server/jetstream_api/answers.py: command: PUB": TYPED,
    "liftlog/server/jetstream_api/answers.py: command: HPUB": TYPED,
    "liftlog/server/jetstream_api/consumers/leaf_frames.py: leaf_message: LMSG": TYPED,
    "liftlog/server/jetstream_api/consumers/leaf_frames.py: leaf_message: HMSG": TYPED,
    "liftlog/server/jetstream_api/consumers/leaf_frames.py: delivery_forms: LMSG": TYPED,
    "liftlog/server/jetstream_api/consumers/leaf_frames.py: delivery_forms: HMSG": TYPED,
    "liftlog/server/jetstream_api/consumers/leaf_frames.py: leaf_deliveries: LMSG": TYPED,
    "liftlog/server/jetstream_api/own_requests.py: OwnRequests.ask: own_subject": (
        "the daemon chooses the subject; a node that gets the request asks the ACL again"
    ),
    "liftlog/server/jetstream_api/workers/advisories.py: Advisories._send: own_subject": (
        "below $JS.EVENT.ADVISORY; the client chooses the last token, the name of a consumer"
    ),
    "liftlog/server/jetstream_api/passed_pulls.py: passed_pulls_of: own_subject": (
        "below the own prefix of a known node: PULLS, or TAKEN and digits"
    ),
    "liftlog/server/jetstream_api/service.py: JetStreamApi._pass_on: own_subject": (
        "a node of the cluster, which asks again before it answers"
    ),
    "liftlog/server/checkpoints/over_nats.py: CheckpointIntake._take_some: publish_commands": (
        "`_answer` gives the targets, which it has from `for_answer`"
    ),
    "liftlog/server/checkpoints/over_nats.py: CheckpointIntake._answer: publish_commands": (
        "`for_answer` gives the target"
    ),
    "liftlog/server/ingest/jetstream.py: _Look._answered: PUB": OWN,
    "liftlog/server/ingest/nats_link.py: NatsLink.send: PUB": "it counts them",
    "liftlog/sequencing/acks.py: : PUB": CHECKED,
    "liftlog/sequencing/acks.py: AckFormat._make_form: PUB": CHECKED,
    "liftlog/sequencing/acks.py: AckFormat.asked: publish_commands": CHECKED,
    "liftlog/sequencing/acks.py: AckFormat.mixed: publish_commands": CHECKED,
    "liftlog/sequencing/acks.py: AckFormat.repeating: PUB": CHECKED,
    "liftlog/sequencing/acks.py: publish_commands: PUB": "see its callers",
    "liftlog/sequencing/liftbridge.py: _commands: publish_commands": CHECKED,
    "liftlog/sequencing/sequencer.py: Sequencer.refuse_run: publish_commands": CHECKED,
    "liftlog/sequencing/tail.py: Tail._acknowledge: publish_commands": CHECKED,
    "liftlog/sequencing/tail.py: Tail._refuse: publish_commands": CHECKED,
    "liftlog/sequencing/tail.py: Tail.failed: publish_commands": CHECKED,
    "liftlog/server/ingest/handover.py: Handover._send_mark: publish_commands": OWN,
    "liftlog/server/metadata/kv_link.py: _frame: PUB": OWN,
    "liftlog/server/metadata/kv_link.py: _frame: HPUB": OWN,
    "liftlog/server/http/appending.py: Appender.append: publish": (
        "`subject_of`, within a stream that acks, so it is no address of a service; `recording`"
    ),
    "liftlog/sequencing/destinations.py: own_subject: Destination": "see its callers",
    "liftlog/sequencing/destinations.py: Destinations.for_answer: Destination": "it decides",
    "liftlog/sequencing/destinations.py: Destinations.for_records: Destination": "it decides",
}


def ways_out(tree: ast.AST, name: str = "") -> Iterator[tuple[str, str]]:
    """(function, what it does) of each place that publishes."""
    for node in ast.iter_child_nodes(tree):
        inner = name
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            inner = f"{name}.{node.name}".lstrip(".")
        text = node.value if isinstance(node, ast.Constant) else None
        text = text.encode() if isinstance(text, str) else text
        if isinstance(text, bytes) and _COMMAND.match(text):
            yield name, text.split()[0].decode()
        if isinstance(node, ast.Call):
            function = node.func
            called = function.attr if isinstance(function, ast.Attribute) else ""
            called = function.id if isinstance(function, ast.Name) else called
            if called in _CALLS:
                yield name, called
        yield from ways_out(node, inner)


def found_in(path: Path) -> set[str]:
    place = path.relative_to(REPOSITORY).as_posix()
    tree = ast.parse(path.read_text())
    return {f"{place}: {function}: {what}" for function, what in ways_out(tree)}


def test_every_way_out_is_known() -> None:
    found: set[str] = set()
    for room in ("server", "sequencing", "groups", "cluster", "log"):
        for path in sorted((REPOSITORY / "liftlog" / room).rglob("*.py")):
            found |= found_in(path)
    new = found - WAYS_OUT.keys()
    assert not new, "who keeps clients from choosing the subject? then say so in WAYS_OUT"
    assert not WAYS_OUT.keys() - found, "these are gone"


def test_a_new_way_out_is_noticed() -> None:
    new = ast.parse(
        "class A:\n"
        "    def echo(self, reply):\n"
        "        self.link.send(b'PUB %b 0\\r\\n\\r\\n' % reply)\n"
        "        self.link.send(f'HPUB {reply} 0 0'.encode())\n"
        "    async def tell(self, subject):\n"
        "        await self.client.publish(subject, b'')\n"
    )
    assert set(ways_out(new)) == {("A.echo", "PUB"), ("A.echo", "HPUB"), ("A.tell", "publish")}


PLACES = re.compile(
    "path|file|dir(ectory)?|address(es)?|advertise|urls?|uri|servers?|hosts?|ports?|stores?"
    "|sources?|targets?|destinations?|reply|inbox|prefix|command|exec"
)
"""Words for what a daemon would open, dial or publish to."""


def names_in(schema: object) -> Iterator[str]:
    """The properties of a JSON schema, those of its parts included."""
    if isinstance(schema, dict):
        yield from schema.get("properties", {})
        for one in schema.values():
            yield from names_in(one)
    elif isinstance(schema, list):
        for one in schema:
            yield from names_in(one)


def test_no_request_names_a_file_a_server_or_a_destination() -> None:
    """Requests of the pull API and the log API, and the settings of a stream, which clients send.
    One that does needs a rule for what it may name, and a test beside this one."""
    asked = {f"{kind.KIND}.{one.name}" for kind in REQUESTS.values() for one in wire_fields(kind)}
    asked |= {f"stream.{name}" for name in names_in(StreamSettings.model_json_schema())}
    asked |= {f"posted.{one.name}" for one in fields(PostedMessage)}
    assert len(asked) > 100
    words = {one: re.split(r"[._]", one.partition(".")[2]) for one in asked}
    found = {one for one, parts in words.items() if any(map(PLACES.fullmatch, parts))}
    assert found == set()
