"""The bounds on wrong tokens, by a clock that the test moves."""

from __future__ import annotations

from liftlog.server.access.audit import Audit
from liftlog.server.access.guessing import PAIR, PLACE, PRINCIPAL, GuessLimiter
from liftlog.server.access.origins import place_of


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def attempts(limiter: GuessLimiter, place: str, principal: str, count: int) -> int:
    """How many of so many wrong attempts may be made."""
    return sum([limiter.begin(place, principal) for _ in range(count)])


def test_one_place_and_principal() -> None:
    clock = Clock()
    limiter = GuessLimiter(clock)
    assert attempts(limiter, "a", "shop", 100) == PAIR.burst
    clock.now += 1 / PAIR.per_second
    assert attempts(limiter, "a", "shop", 100) == 1
    clock.now += 1e6
    assert attempts(limiter, "a", "shop", 100) == PAIR.burst, "it never holds more than its burst"


def test_one_place_that_goes_through_names() -> None:
    limiter = GuessLimiter(Clock())
    made = sum([attempts(limiter, "a", f"name-{n}", 2) for n in range(1000)])
    assert made == PLACE.burst
    assert attempts(limiter, "b", "name-1", 1) == 1


def test_many_places_that_guess_for_one_principal() -> None:
    limiter = GuessLimiter(Clock())
    made = sum([attempts(limiter, f"place-{n}", "shop", 5) for n in range(1000)])
    assert made == PRINCIPAL.burst
    assert attempts(limiter, "place-1", "other", 1) == 1


def test_whoever_knows_the_secret_is_not_locked_out_by_others() -> None:
    limiter = GuessLimiter(Clock())
    assert limiter.begin("home", "shop")
    limiter.succeeded("home", "shop")
    for n in range(1000):
        attempts(limiter, f"place-{n}", "shop", 5)
        attempts(limiter, "home", f"name-{n}", 5)
    for _ in range(1000):
        assert limiter.begin("home", "shop")
        limiter.succeeded("home", "shop")
    assert not limiter.begin("elsewhere", "shop")


def test_right_attempts_cost_nothing() -> None:
    limiter = GuessLimiter(Clock())
    for _ in range(10_000):
        assert limiter.begin("a", "shop")
        limiter.succeeded("a", "shop")
    assert attempts(limiter, "a", "shop", 100) == PAIR.burst


def test_attempts_at_the_same_time_are_no_way_round() -> None:
    limiter = GuessLimiter(Clock())
    begun = [limiter.begin("a", "shop") for _ in range(64)]  # and none has ended yet
    assert sum(begun) == PAIR.burst


def test_its_memory_is_bounded() -> None:
    limiter = GuessLimiter(Clock(), max_kept=50)
    for n in range(10_000):
        limiter.begin(f"place-{n}", f"name-{n}")
        limiter.succeeded(f"place-{n}", f"name-{n}")
        limiter.begin(f"place-{n}", f"name-{n}")
    assert len(limiter) <= 4 * 50


def test_places() -> None:
    assert place_of("192.0.2.7") == "192.0.2.7"
    assert place_of("::ffff:192.0.2.7") == "192.0.2.7"
    assert place_of("2001:db8::1") == place_of("2001:db8::ffff:2") == "2001:db8::/64"
    assert place_of("2001:db8:0:1::1") != place_of("2001:db8::1")
    here = {place_of(one) for one in ("127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.2")}
    assert here == {"loopback"}, "a program of this machine can use any of these addresses"
    assert place_of("fe80::1%eth0") == "fe80::/64"
    assert place_of(None) == place_of("") == place_of("x\ny") == "elsewhere"


def test_the_audit_forgets_whom_it_has_not_heard_of_for_long() -> None:
    clock = Clock()
    audit = Audit(clock)
    for n in range(20_000):
        audit.denied(f"p{n}", "peer", "read", "s", "no")
    assert max(len(audit._buckets), len(audit._suppressed)) <= 4096
    assert audit.denied_total["read", "pull"] == 20_000
