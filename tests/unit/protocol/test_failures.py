from __future__ import annotations

import pytest

from liftlog import errors
from liftlog.protocol.frames import decode_map, encode_frame
from liftlog.protocol.messages import ErrorAnswer, answer_for, exception_from


def example(cls: type[errors.LiftlogError]) -> errors.LiftlogError:
    if cls is errors.CorruptRange:
        return errors.CorruptRange("gone", first_offset=3, next_offset=9)
    return cls("what happened", hint="what to do", number=5, items=["a"])


@pytest.mark.parametrize("cls", errors.WIRE_ERRORS.values(), ids=lambda cls: cls.name)
def test_every_wire_error_arrives_as_itself(cls: type[errors.LiftlogError]) -> None:
    error = example(cls)
    frame = encode_frame(answer_for(error).to_map(1))
    received = exception_from(ErrorAnswer.from_map(decode_map(frame[4:])))
    assert type(received) is cls
    assert (received.message, received.hint) == (error.message, error.hint)
    assert received.details == error.details
    if isinstance(received, errors.CorruptRange):
        assert (received.first_offset, received.next_offset) == (3, 9)


def test_a_code_of_the_future_is_still_an_error_with_its_name() -> None:
    error = exception_from(ErrorAnswer(999, "NEW_THING", "odd", hint="upgrade"))
    assert type(error) is errors.LiftlogError
    assert "999 NEW_THING" in str(error)


def test_an_error_without_a_code_tells_no_internals() -> None:
    answer = answer_for(errors.StorageError("write failed in /var/lib/secret"))
    assert answer.name == "INTERNAL"
    assert "secret" not in answer.message


def test_details_are_cut_to_what_the_wire_carries() -> None:
    error = errors.Conflict(
        "x" * 10_000, big=2**80, raw=b"bytes", many=list(range(10_000)), deep=[[[[[[1]]]]]]
    )
    answer = answer_for(error)
    details = decode_map(encode_frame(answer.to_map(1))[4:])["d"]
    assert len(answer.message) == 2000
    assert details["big"] == str(2**80)
    assert len(details["many"]) == 256
    assert details["deep"] == [[[["[[1]]"]]]]


def test_hostile_details_cannot_break_the_client() -> None:
    answer = ErrorAnswer(15, "CORRUPT_RANGE", "x", details={"message": 1, "first_offset": "a"})
    error = exception_from(answer)
    assert isinstance(error, errors.CorruptRange)
    assert error.first_offset == 0
    assert isinstance(
        exception_from(ErrorAnswer(11, "CONFLICT", "x", details={"self": 1, "hint": 2})),
        errors.Conflict,
    )


def test_every_class_with_a_code_is_known_to_clients() -> None:
    """Also one that stands below the place where they are gathered."""
    declared = {
        cls.code: cls
        for cls in vars(errors).values()
        if isinstance(cls, type) and issubclass(cls, errors.LiftlogError) and "code" in vars(cls)
    }
    declared.pop(errors.LiftlogError.code, None)
    assert declared == {code: errors.WIRE_ERRORS.get(code) for code in declared}
    assert set(errors.WIRE_ERRORS) <= set(declared)
