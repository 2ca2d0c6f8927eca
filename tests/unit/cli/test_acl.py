"""`liftlog acl`, as an operator types it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from acl.nkeys import SigningKey, find_seed
from acl.policy import Policy
from liftlog.cli.root import cli
from liftlog.errors import ConfigError
from liftlog.settings.load import load_policy

EXAMPLE = Path(__file__).parents[3] / "config" / "acl.yaml"


def run(*arguments: str, text: str | None = None) -> Result:
    return CliRunner().invoke(cli, ["acl", *arguments], input=text)


def test_check_tells_who_is_known_by_what() -> None:
    found = run("check", str(EXAMPLE))
    assert found.exit_code == 0
    assert found.output.splitlines()[:3] == [
        "PRINCIPAL  KNOWN BY     ROLES",
        "billing    token        reader",
        "ops        nkey         owner",
    ]
    assert "argon2" not in found.output
    shown = json.loads(run("check", str(EXAMPLE), "-o", "json").output)
    assert shown["ok"] is True
    assert shown["principals"][2] == {
        "name": "spark",
        "known_by": ["certificate"],
        "roles": ["reader"],
    }


def test_check_names_what_is_odd(tmp_path: Path) -> None:
    file = tmp_path / "acl.yaml"
    file.write_text(
        "principals: {a: {unix_uid: 1}, anonymous: {}}\n"
        "roles: {r: [{allow: [read, delete], streams: [x]}], unused: [{allow: [read], "
        "streams: [x]}]}\n"
        "bindings: {anonymous: [r]}\n"
    )
    found = run("check", str(file))
    assert found.exit_code == 0
    for said in (
        "a has no role",
        "no principal has the role unused",
        "clients that did not authenticate may delete by rule 1 of role 'r'",
    ):
        assert said in found.output
    assert len(json.loads(run("check", str(file), "-o", "json").output)["warnings"]) == 3


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"principals: {a: {token_hash: hunter2}}", "principals.a.token_hash: expected"),
        (b"principals: {a: {unix_uid: 1}, a: {unix_uid: 2}}", "occurs twice"),
        (b"principals: {a: {unix_uid: 1}}\nprincipal: {}", "did you mean 'principals'"),
        (b"\xff\xfe", "is not UTF-8"),
        (b"a: &a [*a, *a]", "not valid YAML|nested deeper"),
        (b"a: &a [x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a]\n" + b"".join(
            b"c%d: &c%d [%b]\n" % (n, n, b",".join([b"*c%d" % (n - 1) if n else b"*b"] * 9))
            for n in range(9)
        ), "more than 200000 values"),
        (b"[" * 100_000, "nested deeper|nesting depth"),
        (b"x" * 20_000_000, "longer than"),
    ],
)  # fmt: skip
def test_check_refuses_what_the_daemon_would_refuse(
    tmp_path: Path, content: bytes, said: str
) -> None:
    file = tmp_path / "acl.yaml"
    file.write_bytes(content)
    found = run("check", str(file))
    assert found.exit_code == 3
    assert any(one in found.output for one in said.split("|")), found.output[:500]
    assert "hunter2" not in found.output
    assert len(found.output) < 10_000
    with pytest.raises(ConfigError):
        load_policy(file)


def test_check_as_json_when_it_is_bad(tmp_path: Path) -> None:
    file = tmp_path / "acl.yaml"
    file.write_text("principals: {a: {}}\nroles: {r: []}")
    found = run("check", str(file), "-o", "json")
    assert found.exit_code == 3
    shown = json.loads(found.output)
    assert shown["ok"] is False
    assert len(shown["findings"]) == 2


def test_a_file_that_everyone_may_write_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "acl.yaml"
    file.write_bytes(EXAMPLE.read_bytes())
    file.chmod(0o666)
    found = run("check", str(file))
    assert found.exit_code == 3
    assert "chmod o-w" in found.output
    file.chmod(0o640)
    assert run("check", str(file)).exit_code == 0
    assert run("check", str(tmp_path / "none")).exit_code == 3


@pytest.mark.parametrize(
    ("question", "code", "said"),
    [
        (["billing", "read", "orders"], 0, "only records on orders.eu.>"),
        (["billing", "read", "orders", "orders.eu.1"], 0, "subject 'orders.eu.1'"),
        (["billing", "read", "orders", "orders.us"], 9, "not on 'orders.us'"),
        (["billing", "delete", "orders"], 9, "no rule allows billing to delete"),
        (["ops", "create", "x", "orders.>"], 0, "by rule 1 of role 'owner'"),
        (["ops", "create", "x", ">"], 9, "attach it only to"),
        (["ops", "create", "x"], 9, "needs the subject"),
        (["nobody", "read", "orders"], 9, "no principal 'nobody'"),
    ],
)
def test_explain(question: list[str], code: int, said: str) -> None:
    found = run("explain", *question, "--acl", str(EXAMPLE))
    assert found.exit_code == code
    assert said in found.output
    shown = json.loads(run("explain", *question, "--acl", str(EXAMPLE), "-o", "json").output)
    assert shown["allowed"] is (code == 0)
    assert said in shown["explanation"]
    if question == ["billing", "read", "orders"]:
        assert shown["subjects"] == ["orders.eu.>"]


def test_explain_takes_the_file_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIFTLOG_ACL__FILE", str(EXAMPLE))
    assert run("explain", "ops", "delete", "x").exit_code == 0
    monkeypatch.delenv("LIFTLOG_ACL__FILE")
    assert run("explain", "ops", "delete", "x").exit_code == 2
    assert run("explain", "ops", "write", "x", "--acl", str(EXAMPLE)).exit_code == 2


@pytest.mark.parametrize("algorithm", ["argon2id", "sha256"])
def test_a_new_token_opens_what_its_hash_guards(algorithm: str) -> None:
    made = json.loads(run("hash-token", "shop", "--algorithm", algorithm, "-o", "json").output)
    policy = Policy.load(f"principals: {{shop: {{token_hash: '{made['token_hash']}'}}}}")
    assert policy.authenticate_token(made["token"]) == "shop"
    again = json.loads(run("hash-token", "shop", "--algorithm", algorithm, "-o", "json").output)
    assert again["token"] != made["token"]


def test_a_secret_of_ones_own_is_read_and_not_shown() -> None:
    secret = "correct horse battery staple"
    found = run("hash-token", "--stdin", "-o", "json", text=secret + "\n")
    made = json.loads(found.output)
    assert list(made) == ["token_hash"]
    policy = Policy.load(f"principals: {{shop: {{token_hash: '{made['token_hash']}'}}}}")
    assert policy.authenticate_token(f"shop.{secret}") == "shop"
    short = run("hash-token", "--stdin", text="hunter2\n")
    assert short.exit_code == 2
    assert "hunter2" not in short.output
    assert run("hash-token", "--stdin", text="x" * 1000).exit_code == 2
    assert run("hash-token", "a.b").exit_code == 2


def test_a_new_nkey(tmp_path: Path) -> None:
    file = tmp_path / "ops.nk"
    found = run("new-nkey", str(file))
    assert found.exit_code == 0
    assert SigningKey(find_seed(file.read_bytes())).public_key == found.output.strip()
    assert file.stat().st_mode & 0o777 == 0o600
    before = file.read_bytes()
    again = run("new-nkey", str(file))
    assert again.exit_code == 1
    assert "File exists" in again.output
    assert file.read_bytes() == before
    assert before.decode().strip() not in found.output + again.output


def test_who_is_allowed(tmp_path: Path) -> None:
    file = tmp_path / "acl.yaml"
    file.write_text(
        "principals: {a: {unix_uid: 1}, b: {unix_uid: 2}, c: {unix_uid: 3}}\n"
        "roles: {some: [{allow: [read], streams: ['pay*'], subjects: ['pay.eu.>']}], "
        "all: [{allow: [read, admin], streams: ['*']}]}\n"
        "bindings: {a: [some], b: [all]}\n"
    )
    found = json.loads(run("who", "read", "payments", "--acl", str(file), "-o", "json").output)
    assert [(one["principal"], one["subjects"]) for one in found] == [
        ("a", ["pay.eu.>"]),
        ("b", None),
    ]
    assert run("who", "admin", "payments", "--acl", str(file), "-q").output == "b\n"
    assert run("who", "read", "orders", "--acl", str(file), "-q").output == "b\n"
    config = tmp_path / "liftlog.yaml"
    config.write_text(f"acl: {{file: {file}}}\n")
    assert run("who", "read", "orders", "-c", str(config), "-q").output == "b\n"
    config.write_text("name: x\n")
    assert run("who", "read", "orders", "-c", str(config)).exit_code == 5
    unnamed = run("who", "read", "orders")
    assert unnamed.exit_code == 2
    assert "Name the ACL file with --acl, or the daemon's configuration with -c" in unnamed.output
    nobody = run("who", "delete", "orders", "--acl", str(file))
    assert nobody.exit_code == 9
    assert "No principal is allowed delete on orders" in nobody.output
