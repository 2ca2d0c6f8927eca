import hashlib
from pathlib import Path
from random import Random

import argon2
import pytest
from support.clients.nkey_seeds import seed_of

from acl import nkeys, tokens
from acl.policy import Policy
from acl.rules import OVER_NATS, AclError, Operation, StreamMatcher, stream_matches
from acl.tokens import hash_token, new_secret

SECRET = "a-secret-for-the-tests-only"
KEY = nkeys.SigningKey(seed_of(b"1" * 32))
HASH = "sha256:" + hashlib.sha256(SECRET.encode()).hexdigest()
EXAMPLE = Path(__file__).parents[3] / "config" / "acl.yaml"

TEXT = f"""
principals:
  billing: {{token_hash: "{HASH}"}}
  ops: {{nkey: "{KEY.public_key}"}}
  spark: {{certificate_cn: "spark-1"}}
  local: {{unix_uid: 0}}
roles:
  reader:
    - {{allow: [read, commit], streams: ["orders*"], subjects: ["orders.eu.>", "orders.us"]}}
  all-reader:
    - {{allow: [read], streams: ["orders-eu"]}}
  owner:
    - {{allow: [create, delete, admin, read, commit], streams: ["*"], attach: ["orders.>"]}}
  system:
    - {{allow: [read], streams: ["_*"]}}
bindings:
  billing: [reader]
  ops: [owner]
  spark: [reader, all-reader]
  local: [system]
"""


@pytest.fixture(scope="module")
def policy() -> Policy:
    return Policy.load(TEXT)


@pytest.mark.parametrize(
    ("principal", "operation", "stream", "subject", "allowed"),
    [
        ("billing", "commit", "orders", None, True),
        ("billing", "commit", "orders-2", None, True),
        ("billing", "commit", "order", None, False),
        ("billing", "commit", "my-orders", None, False),
        ("billing", "delete", "orders", None, False),
        ("billing", "create", "orders", "orders.x", False),
        ("billing", "admin", "orders", None, False),
        # Only some subjects: not without a filter within them.
        ("billing", "read", "orders", None, False),
        ("billing", "read", "orders", "orders.eu.1", True),
        ("billing", "read", "orders", "orders.eu.*", True),
        ("billing", "read", "orders", "orders.us", True),
        ("billing", "read", "orders", "orders.*.1", False),
        ("billing", "read", "orders", ">", False),
        ("billing", "read", "orders", "orders..eu", False),
        ("billing", "read", "payments", "orders.eu.1", False),
        ("spark", "read", "orders-eu", None, True),
        ("spark", "read", "orders-us", None, False),
        ("ops", "create", "x", "orders.eu.*", True),
        ("ops", "create", "x", "orders.>", True),
        ("ops", "create", "x", "orders", False),
        ("ops", "create", "x", ">", False),
        ("ops", "create", "x", "*.a", False),
        ("ops", "create", "x", None, False),
        ("ops", "create", "x", "orders.a b", False),
        ("ops", "delete", "anything", None, True),
        ("ops", "read", "anything", None, True),
        ("ops", "read", "_offsets", None, False),
        ("local", "read", "_offsets", None, True),
        ("local", "read", "orders", None, False),
        ("anonymous", "read", "orders-eu", None, False),
        ("nobody", "read", "orders-eu", None, False),
        ("", "read", "orders-eu", None, False),
    ],
)
def test_decisions(
    policy: Policy,
    principal: str,
    operation: Operation,
    stream: str,
    subject: str | None,
    allowed: bool,
) -> None:
    decision = policy.decide(principal, operation, stream, subject)
    assert decision.allowed is allowed
    assert bool(decision) is allowed
    assert decision.explanation.startswith("allowed: " if allowed else "denied: ")


def test_explanations(policy: Policy) -> None:
    assert policy.decide("spark", "commit", "orders").explanation == (
        "allowed: spark may commit checkpoints of stream 'orders' by rule 1 of role 'reader'"
    )
    assert policy.decide("billing", "delete", "orders").explanation == (
        "denied: no rule allows billing to delete stream 'orders'"
    )
    assert "orders.eu.>, orders.us, not on all subjects" in (
        policy.decide("billing", "read", "orders").explanation
    )
    assert "only to orders.>, not to '>'" in policy.decide("ops", "create", "x", ">").explanation


def test_an_explanation_cannot_forge_a_log_line(policy: Policy) -> None:
    for decision in (
        policy.decide("x\nallowed: all", "read", "s"),
        policy.decide("billing", "read", "s\r\nallowed"),
        policy.decide("ops", "create", "s", "a\u2028b"),
        policy.decide("billing", "read", "x" * 100_000),
    ):
        assert len(decision.explanation.splitlines()) == 1
        assert len(decision.explanation) < 300
        assert not decision.allowed


def test_an_unknown_operation_is_a_mistake_of_the_caller(policy: Policy) -> None:
    with pytest.raises(ValueError, match="unknown operation"):
        policy.decide("ops", "publish", "orders")  # type: ignore[arg-type]


def test_readable_subjects(policy: Policy) -> None:
    assert policy.readable_subjects("billing", "orders") == ("orders.eu.>", "orders.us")
    assert policy.readable_subjects("spark", "orders-eu") is None
    assert policy.readable_subjects("billing", "payments") == ()
    assert policy.readable_subjects("nobody", "orders") == ()


# --- tokens -------------------------------------------------------------------


def test_a_token_names_its_principal(policy: Policy) -> None:
    assert policy.authenticate_token(f"billing.{SECRET}") == "billing"


@pytest.mark.parametrize(
    "token",
    [
        "",
        ".",
        "billing",
        "billing.",
        "billing.\ud800",
        "x" * 100_000,
        SECRET,
        f".{SECRET}",
        f"billing.{SECRET} ",
        f"billing.{SECRET}.x",
        f"billing.{HASH}",
        f"BILLING.{SECRET}",
        f"ops.{SECRET}",
        f"nobody.{SECRET}",
        f"anonymous.{SECRET}",
    ],
)
def test_wrong_tokens(policy: Policy, token: str) -> None:
    assert policy.authenticate_token(token) is None


def test_a_token_that_is_not_text(policy: Policy) -> None:
    assert policy.authenticate_token(None) is None  # type: ignore[arg-type]
    assert policy.authenticate_token(f"billing.{SECRET}".encode()) is None  # type: ignore[arg-type]


def test_a_secret_may_hold_dots() -> None:
    secret = "dots.in.a.secret.are.fine"
    policy = Policy.load(f"principals: {{a: {{token_hash: '{hash_token(secret)}'}}}}")
    assert policy.authenticate_token(f"a.{secret}") == "a"


def test_hash_token() -> None:
    secret = new_secret()
    assert secret != new_secret()
    assert hash_token(secret) == "sha256:" + hashlib.sha256(secret.encode()).hexdigest()
    with pytest.raises(ValueError, match="at least 20"):
        hash_token("hunter2")


def argon2_policy() -> Policy:
    hashed = argon2.PasswordHasher(time_cost=1, memory_cost=64, parallelism=1).hash(SECRET)
    return Policy.load(
        f"principals: {{a: {{token_hash: '{hashed}'}}, b: {{token_hash: '{HASH}'}}, "
        f"c: {{unix_uid: 1}}}}"
    )


def test_a_token_with_argon2() -> None:
    policy = argon2_policy()
    assert policy.authenticate_token(f"a.{SECRET}") == "a"
    assert policy.authenticate_token(f"b.{SECRET}") == "b"
    for token in (f"a.{SECRET}x", "a.", "a", f"c.{SECRET}", f"nobody.{SECRET}", f".{SECRET}", ""):
        assert policy.authenticate_token(token) is None
    assert hash_token(SECRET, "argon2id").startswith("$argon2id$v=19$")


def test_an_unknown_principal_costs_as_much_as_a_wrong_secret(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    policy = argon2_policy()
    checked: list[str] = []

    def verify(expected: str, raw: bytes) -> bool:
        checked.append(expected)
        return True  # even so no token is accepted

    monkeypatch.setattr(tokens, "_verify_argon2", verify)
    assert policy.authenticate_token("nobody.guess") is None
    assert policy.authenticate_token("c.guess") is None
    assert len(checked) == 2


@pytest.mark.parametrize(
    "parameters",
    [
        "m=65536,t=0,p=4",  # no passes
        "m=8,t=1,p=4",  # less memory than lanes need
        "m=65536,t=3,p=0",
        "m=4294967295,t=1,p=1",  # 4 TiB
        "m=1048576,t=1000,p=1",
        "m=65536,t=3,p=99",
        "m=65536,t=3",
    ],
)
def test_a_hash_that_nobody_could_check_is_refused(parameters: str) -> None:
    hashed = f"$argon2id$v=19${parameters}$c29tZXNhbHRzb21l$" + "A" * 43
    with pytest.raises(AclError, match=r"argon2"):
        Policy.load(f"principals: {{a: {{token_hash: '{hashed}'}}}}")


# --- the other ways --------------------------------------------------------------


def test_an_nkey_signature() -> None:
    policy = Policy.load(TEXT)
    text = b"\xffsomething to sign"
    signature = KEY.sign(text)
    assert policy.authenticate_nkey(KEY.public_key, text, signature) == "ops"
    assert policy.authenticate_nkey(KEY.public_key, text + b"x", signature) is None
    assert policy.authenticate_nkey(KEY.public_key, text, bytes(64)) is None
    assert policy.authenticate_nkey(KEY.public_key, text, b"") is None
    other = nkeys.SigningKey(seed_of(b"2" * 32))
    assert policy.authenticate_nkey(other.public_key, text, other.sign(text)) is None
    assert policy.authenticate_nkey(KEY.public_key, text, other.sign(text)) is None


def test_certificates_and_users() -> None:
    text = """
principals: {a: {certificate_cn: one}, b: {certificate_cn: two}, root: {unix_uid: 0}}
"""
    policy = Policy.load(text)
    assert policy.principal_of_certificate(["one"]) == "a"
    assert policy.principal_of_certificate(["other", "two"]) == "b"
    assert policy.principal_of_certificate(["one", "two"]) is None, "which of them?"
    assert policy.principal_of_certificate(["ONE", "one\0", "on", ""]) is None
    assert policy.principal_of_certificate([]) is None
    assert policy.principal_of_uid(0) == "root"
    assert policy.principal_of_uid(1) is None


def test_what_a_principal_authenticates_with() -> None:
    policy = Policy.load(TEXT)
    assert policy.credential("billing", "token") == HASH
    assert policy.credential("ops", "nkey") == KEY.public_key
    assert policy.credential("spark", "certificate") == "spark-1"
    assert policy.credential("local", "unix") == 0
    for name, method in (("billing", "nkey"), ("nobody", "token"), ("billing", "anonymous")):
        assert policy.credential(name, method) is None


def test_a_hash_is_not_shown(policy: Policy) -> None:
    assert HASH not in repr(policy.principals)
    with pytest.raises(AclError) as caught:
        Policy.load("principals: {a: {token_hash: 'sha256:hunter2'}, b: {token_hash: hunter2}}")
    assert "hunter2" not in str(caught.value)


# --- anonymous ----------------------------------------------------------------


def test_anonymous_exists_only_by_name() -> None:
    text = (
        "principals: {anonymous: {}}\n"
        "roles: {r: [{allow: [read], streams: [public]}]}\n"
        "bindings: {anonymous: [r]}"
    )
    policy = Policy.load(text)
    assert policy.allows_anonymous
    assert policy.decide("anonymous", "read", "public").allowed
    assert not policy.decide("anonymous", "read", "private").allowed
    assert policy.authenticate_token("anonymous.") is None
    assert not Policy.load(TEXT).allows_anonymous


# --- the file -----------------------------------------------------------------


def findings(text: str) -> list[str]:
    with pytest.raises(AclError) as caught:
        Policy.load(text)
    return list(caught.value.findings)


def test_all_findings_at_once() -> None:
    text = """
principals:
  a: {token_hash: short}
  b: {}
  c.d: {unix_uid: 1}
  e: {unix_uid: true, nkey: X, certificate_cn: ""}
  f: {unix_uid: 7}
  g: {unix_uid: 7}
  anonymous: {unix_uid: 8}
rolez: {}
roles:
  r:
    - {allow: [reed], streams: ["a.b"], subjects: ["a..b"]}
    - {allow: [create], streams: [x]}
    - {allow: [commit], streams: [x], subjects: [a], attach: [b]}
    - {allow: [], streams: x, strems: []}
  empty: []
bindings:
  a: [r, s]
  nobody: [r]
  f: r
"""
    found = findings(text)
    for expected in (
        "principals.a.token_hash: expected sha256:",
        "principals.b: expected at least one of token_hash",
        "principals.'c.d': expected a name",
        "principals.e.unix_uid: expected a user id",
        "principals.e.nkey: expected the public nkey",
        "principals.e.certificate_cn: expected the common name",
        "principals.g.unix_uid: principal 'f' has the same one",
        "principals.anonymous: stands for clients that did not authenticate",
        "rolez: unknown key; did you mean 'roles'?",
        "roles.r[0].allow[0]: unknown operation; did you mean 'read'?",
        "roles.r[0].streams[0]: expected a stream name",
        "roles.r[0].subjects[0]: not a NATS subject",
        "roles.r[1]: `create` needs `attach`",
        "roles.r[2].attach: has no effect without `create`",
        "roles.r[2].subjects: has no effect without `read` or `erase`",
        "roles.r[3].allow: expected a list with at least one entry",
        "roles.r[3].streams: expected a list with at least one entry",
        "roles.r[3].strems: unknown key; did you mean 'streams'?",
        "roles.empty: expected a list of rules",
        "bindings.a[1]: unknown role",
        "bindings.nobody: unknown principal",
        "bindings.f: expected a list of role names",
    ):
        assert [line for line in found if line.startswith(expected)], expected
    assert len(found) == 22
    assert next(line for line in found if line.startswith("principals.a")).endswith("[line 3]")


@pytest.mark.parametrize("rule", ["allow: [read], subjects:", "allow: [create], attach:"])
def test_a_key_with_nothing_behind_it_does_not_mean_all(rule: str) -> None:
    """As it looks when every entry of the list was commented out."""
    text = f"principals: {{a: {{unix_uid: 1}}}}\nroles: {{r: [{{{rule} , streams: [x]}}]}}\n"
    assert [line.partition(":")[2] for line in findings(text)] == [
        " expected a list with at least one entry [line 2]"
    ]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "principals: {}",
        "- a",
        "just text",
        "a: [",
        "principals: {a: {unix_uid: 1}, a: {unix_uid: 2}}",
        "principals: [a]",
        "principals: {a: {unix_uid: 1}}\nroles: {r: {allow: [read]}}",
        "principals: {a: {unix_uid: 1}}\nroles: {r: [{allow: read, streams: ['*']}]}",
        "principals: {a: {unix_uid: 1}}\nroles: {r: [{allow: [read], streams: [s], subjects: []}]}",
        "principals: {a: {unix_uid: 1}}\nroles: {r: [read]}",
        "principals: {a: {unix_uid: 1}}\nbindings: {a: [{}]}",
        "principals: {a: {unix_uid: -1}}",
        "principals: {a: {unix_uid: 1.0}}",
        "principals: {a: {password: x}}",
        "principals: &a {b: *a}",
    ],
)
def test_refused(text: str) -> None:
    assert findings(text)


def test_the_example_loads() -> None:
    policy = Policy.load(EXAMPLE.read_text())
    assert policy.decide("billing", "read", "orders", "orders.eu.1").allowed
    assert policy.decide("ops", "create", "x", "payments.*").allowed
    assert not policy.allows_anonymous


def test_the_error_stays_readable_however_much_is_wrong() -> None:
    with pytest.raises(AclError) as caught:
        Policy.load("".join(f"key{n}: 1\n" for n in range(5000)))
    assert len(caught.value.findings) >= 5000
    assert len(str(caught.value).splitlines()) < 110


@pytest.mark.parametrize(
    ("pattern", "stream", "expected"),
    [
        ("orders", "orders", True),
        ("orders", "orders2", False),
        ("orders*", "orders", True),
        ("*-eu", "orders-eu", True),
        ("*-eu", "-eu", True),
        ("a*b*c", "a-b-b-c", True),
        ("a*b*c", "abc", True),
        ("a*b*c", "acb", False),
        ("a*bc*c", "abc", False),
        ("ab*ba", "aba", False),
        ("*", "x", True),
        (">", "x", True),
        ("*", "_offsets", False),
        (">", "_offsets", False),
        ("_*", "_offsets", True),
        ("**", "x", True),
    ],
)
def test_stream_patterns(pattern: str, stream: str, expected: bool) -> None:
    assert stream_matches(pattern, stream) is expected
    assert StreamMatcher(["zzz", pattern, "z*z"]).matches(stream) is expected


def test_a_matcher_says_what_its_patterns_say() -> None:
    random = Random(1)
    for _ in range(3000):
        patterns = ["".join(random.choices("ab_-*", k=random.randint(1, 5))) for _ in range(3)]
        stream = "".join(random.choices("ab_-", k=random.randint(1, 6)))
        expected = any(stream_matches(one, stream) for one in patterns)
        assert StreamMatcher(patterns).matches(stream) is expected, (patterns, stream)


NATS_RULE = 'nats: {allow: [create, read, delete], streams: ["js*"], attach: ["js.>"]}\n'


def test_without_a_section_nats_its_clients_may_do_nothing(policy: Policy) -> None:
    for operation in ("create", "read", "delete", "admin"):
        decision = policy.decide(OVER_NATS, operation, "orders", "orders.x")
        assert not decision
        assert "no rule" in decision.explanation


@pytest.mark.parametrize(
    ("operation", "stream", "subject", "allowed"),
    [
        ("read", "js-1", None, True),
        ("read", "orders", None, False),
        ("read", "_js", None, False),
        ("create", "js-1", "js.a", True),
        ("create", "js-1", "orders.a", False),
        ("delete", "js-1", None, True),
        ("admin", "js-1", None, False),
        ("commit", "js-1", None, False),
    ],
)
def test_the_section_nats_is_a_rule_for_all_its_clients(
    operation: Operation, stream: str, subject: str | None, allowed: bool
) -> None:
    decision = Policy.load(TEXT + NATS_RULE).decide(OVER_NATS, operation, stream, subject)
    assert decision.allowed is allowed
    if allowed:
        assert "section 'nats'" in decision.explanation


def test_where_clients_of_nats_may_have_records_sent() -> None:
    assert Policy.load(TEXT).deliverable == ()
    assert Policy.load(TEXT + NATS_RULE).deliverable == ()
    section = 'nats: {allow: [read], streams: ["*"], deliver: ["a.>", "b"]}\n'
    assert Policy.load(TEXT + section).deliverable == ("a.>", "b")
    with pytest.raises(AclError, match="unknown key"):
        Policy.load("principals: {a: {unix_uid: 1}}\nroles: {r: [" + section[6:].strip() + "]}\n")


def test_a_grant_of_nearly_all_subjects_is_odd() -> None:
    section = 'nats: {{allow: [read], streams: ["*"], deliver: ["{}"]}}\n'
    for pattern, is_odd in (("a.>", False), (">", True), ("*.>", True), ("*", True)):
        found = Policy.load(TEXT + section.format(pattern)).oddities()
        assert any(f"sent to {pattern}:" in one for one in found) is is_odd


def test_no_principal_can_have_the_name_of_the_clients_of_nats() -> None:
    text = TEXT.replace("principals:\n", f'principals:\n  "{OVER_NATS}": {{unix_uid: 7}}\n')
    with pytest.raises(AclError, match="expected a name"):
        Policy.load(text)
    assert Policy.load(TEXT + NATS_RULE).authenticate_token(f"{OVER_NATS}.secret") is None


@pytest.mark.parametrize(
    ("section", "finding"),
    [
        ("nats: {allow: [admin], streams: ['*']}", "expected some of create, read, work, delete"),
        ("nats: {allow: [create], streams: ['*']}", "`create` needs `attach`"),
        ("nats: {allow: [read]}", "streams"),
        ("nats: {allow: [read], streams: ['*'], who: x}", "unknown key"),
        ("nats: {allow: [read], streams: ['*'], deliver: ['a b']}", "not a NATS subject"),
        ("nats: {allow: [create], streams: ['*'], attach: [a], deliver: [b]}", "without `read`"),
        ("nats: [read]", "expected a mapping"),
        ("nats:", "expected a mapping"),
    ],
)
def test_a_wrong_section_nats_is_found(section: str, finding: str) -> None:
    with pytest.raises(AclError, match=finding):
        Policy.load(f"{TEXT}{section}\n")
