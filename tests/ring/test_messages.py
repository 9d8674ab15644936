from __future__ import annotations

import contextlib
import math
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan.errors import ProtocolError
from longspan.ring.artifact_messages import CHUNK, WANT, Chunk, Want
from longspan.ring.frame import MAX_HEADER_BYTES, PROTOCOL_VERSION, Frame, Kind
from longspan.ring.member_messages import JOIN, LEASE, LEAVE, HeldLayers, Join, Lease, Leave
from longspan.ring.messages import (
    MAX_ROWS,
    MAX_SPANS,
    Assignment,
    Challenge,
    Failed,
    Greeting,
    Hello,
    IterationHeader,
    Message,
    Passed,
    Ping,
    Progress,
    Proof,
    Ready,
    Refuse,
    Welcome,
    decode,
    decode_iteration,
    encode,
    encode_iteration,
)
from longspan.ring.survey_messages import REPORT, SURVEY, NodeReport, Speed, Survey
from longspan.sampling.parameters import SamplingParameters
from longspan.schedule.span import (
    CommitBranch,
    CopyPrefix,
    DraftRequest,
    Drop,
    Iteration,
    IterationResult,
    Phase,
    Sample,
    SlotSampling,
    Span,
    SpanFailure,
    StageTiming,
    TokenLogprob,
    Trim,
)

WIDTH = 3
ASSIGNMENT = Assignment(1, 3, 10, 20, 30, ("192.0.2.7", 7001), 8, 4096, "float16", 12.5, 25.0, True, "ef" * 32)
HELLO = Hello(PROTOCOL_VERSION, "0.1.0", "coordinator", "r1", "ab" * 32, -1, ASSIGNMENT)
SAMPLING = SamplingParameters(
    0.8, 40, 0.95, 0.05, 2**64 - 1, 1.1, 0.5, -0.5, 12, ((5, -1.5),), 3, (2,), 2, "start: /x/", 1
)
ITERATION = Iteration(
    300,
    (Trim(0, 7), Drop(1), CopyPrefix(0, 2, 64), CommitBranch(3, 9, (0, 2))),
    (SlotSampling(1, SAMPLING),),
    (
        Span(70000, 0, 2, 7, (11, 49151), Phase.PREFILL),
        Span(70001, 1, 0, 40, (5,), Phase.DECODE, (0,), None, DraftRequest.ALWAYS),
        Span(70002, 3, 1, 9, (1, 2, 3), Phase.VERIFY, (0, 2), (-1, 0, 0), DraftRequest.ON_DIVERGENCE, (7,)),
    ),
)
TIMING = StageTiming(0, 1.5, 2.25, 3.125, 2, 0.0625, 0.125)
FAILURE = SpanFailure(1, "no room")
RESULT = IterationResult(
    300,
    (Sample(1, 0, 17, TokenLogprob(-0.5, ((17, -0.5), (4, -2.0))), (8, 9), (-1, 0), (0.5, 0.25)), Sample(2, 2, 5)),
    (FAILURE,),
    (TIMING,),
)
ACTIVATIONS = np.arange(18, dtype=np.float32).reshape(6, WIDTH) / np.float32(4)

FRAMES: dict[str, Frame] = {
    "hello": encode(HELLO),
    "hello of a stage": encode(Hello(PROTOCOL_VERSION, "0.1.0", "upstream", "r1", "ab" * 32, 0)),
    "refuse": encode(Refuse("why", PROTOCOL_VERSION, "0.1.0", "cd" * 32)),
    "progress": encode(Progress("loading")),
    "ready": encode(Ready(8, 4096, 512, 64, 4242, 123456789, "cpu")),
    "welcome": encode(Welcome(1)),
    "iteration float32": encode_iteration(ITERATION, ACTIVATIONS, "float32", (FAILURE,), (TIMING,)),
    "iteration float16": encode_iteration(ITERATION, ACTIVATIONS, "float16"),
    "result": encode(RESULT),
    "ping": encode(Ping(5)),
    "pong": encode(Ping(5), Kind.PONG),
    "passed": encode(Passed(1000)),
    "failed": encode(Failed(1, "out of memory")),
    "challenge": encode(Challenge(b"n" * 32, True)),
    "proof": encode(Proof(b"m" * 32, b"p" * 32, True)),
    "survey": SURVEY.encode(Survey(2, 8, (("192.0.2.7", 7001),))),
    "report": REPORT.encode(NodeReport(1 << 33, Speed(0.01, 0.002, 1e-6, 0.03, 0.004), (0.05, None), "why")),
    "want": WANT.encode(Want("layers/3.gguf", 512)),
    "chunk": CHUNK.encode(Chunk(512, 520), b"contents"),
    "join": JOIN.encode(Join("attic", "0123456789abcdef", "192.0.2.7", 7000, HeldLayers("ab" * 32, 3, 9))),
    "lease": LEASE.encode(Lease(5.0)),
    "leave": LEAVE.encode(Leave("gone")),
}

GOLDEN: dict[str, str] = {
    "hello": (
        "4c53504e0003010000000175000000000000000087a870726f746f636f6c03a776657273696f6ea5302e312e30a4726f"
        "6c65ab636f6f7264696e61746f72a472696e67a27231a6646967657374d9406162616261626162616261626162616261"
        "6261626162616261626162616261626162616261626162616261626162616261626162616261626162616261626162a5"
        "7374616765ffaa61737369676e6d656e748da5737461676501a673746167657303a573746172740aa3656e6414a66c61"
        "796572731eac6e6578745f6164647265737392a93139322e302e322e37cd1b59a5736c6f747308ae63656c6c735f7065"
        "725f736c6f74cd1000a56474797065a7666c6f61743136ad6e6578745f64656c61795f6d73cb4029000000000000af72"
        "657475726e5f64656c61795f6d73cb4039000000000000a57472656573c3a86d74705f68656164d94065666566656665"
        "666566656665666566656665666566656665666566656665666566656665666566656665666566656665666566656665"
        "666566656665666566de182290"
    ),
    "hello of a stage": (
        "4c53504e000301000000008b000000000000000087a870726f746f636f6c03a776657273696f6ea5302e312e30a4726f"
        "6c65a8757073747265616da472696e67a27231a6646967657374d9406162616261626162616261626162616261626162"
        "6162616261626162616261626162616261626162616261626162616261626162616261626162616261626162a5737461"
        "676500aa61737369676e6d656e74c090a235b4"
    ),
    "refuse": (
        "4c53504e000302000000006d000000000000000084a6726561736f6ea3776879a870726f746f636f6c03a77665727369"
        "6f6ea5302e312e30a6646967657374d94063646364636463646364636463646364636463646364636463646364636463"
        "6463646364636463646364636463646364636463646364636463646364636463647ce9a14e"
    ),
    "progress": ("4c53504e000303000000000e000000000000000081a474657874a76c6f6164696e677c74216f"),
    "ready": (
        "4c53504e0003040000000056000000000000000087a5736c6f747308ae63656c6c735f7065725f736c6f74cd1000a86d"
        "61785f726f7773cd0200aa65786163745f726f777340a3706964cd1092ac6d656d6f72795f6279746573ce075bcd15a6"
        "646576696365a36370751999f625"
    ),
    "welcome": ("4c53504e0003050000000008000000000000000081a57374616765014a547a3c"),
    "iteration float32": (
        "4c53504e000306000000010f00000000000000489694cd012c9493a47472696d000792a464726f700194a4636f707900"
        "024094a66272616e636803099200029192019fcb3fe999999999999a28cb3fee666666666666cb3fa999999999999acf"
        "ffffffffffffffffcb3ff199999999999acb3fe0000000000000cbbfe00000000000000c919205cbbff8000000000000"
        "03910202aa73746172743a202f782f01939ace00011170000207920bcdbfff0090c000909ace00011171010028910502"
        "9100c002909ace00011172030109930102030392000293ff00000191070603a7666c6f61743332919201a76e6f20726f"
        "6f6d919700cb3ff8000000000000cb4002000000000000cb400900000000000002cb3fb0000000000000cb3fc0000000"
        "000000000000000000803e0000003f0000403f0000803f0000a03f0000c03f0000e03f00000040000010400000204000"
        "003040000040400000504000006040000070400000804000008840937572a9"
    ),
    "iteration float16": (
        "4c53504e00030600000000d500000000000000249694cd012c9493a47472696d000792a464726f700194a4636f707900"
        "024094a66272616e636803099200029192019fcb3fe999999999999a28cb3fee666666666666cb3fa999999999999acf"
        "ffffffffffffffffcb3ff199999999999acb3fe0000000000000cbbfe00000000000000c919205cbbff8000000000000"
        "03910202aa73746172743a202f782f01939ace00011170000207920bcdbfff0090c000909ace00011171010028910502"
        "9100c002909ace00011172030109930102030392000293ff00000191070603a7666c6f61743136909000000034003800"
        "3a003c003d003e003f0040804000418041004280420043804300444044cf6a7dc4"
    ),
    "result": (
        "4c53504e0003070000000087000000000000000094cd012c929701001192cbbfe0000000000000929211cbbfe0000000"
        "0000009204cbc00000000000000092080992ff0092cb3fe0000000000000cb3fd000000000000097020205c090909091"
        "9201a76e6f20726f6f6d919700cb3ff8000000000000cb4002000000000000cb400900000000000002cb3fb000000000"
        "0000cb3fc00000000000008a53260d"
    ),
    "ping": ("4c53504e0003080000000002000000000000000091052f00398a"),
    "pong": ("4c53504e0003090000000002000000000000000091058168a81b"),
    "passed": ("4c53504e00030b0000000004000000000000000091cd03e88f9339f8"),
    "failed": (
        "4c53504e00030a000000001d000000000000000082a5737461676501a6726561736f6ead6f7574206f66206d656d6f7279f82a24a6"
    ),
    "challenge": (
        "4c53504e00030c0000000030000000000000000082a56e6f6e6365c4206e6e6e6e6e6e6e6e6e6e6e6e6e6e6e6e6e6e6e"
        "6e6e6e6e6e6e6e6e6e6e6e6e6ea5746f6b656ec38d860c9c"
    ),
    "proof": (
        "4c53504e00030d0000000058000000000000000083a56e6f6e6365c4206d6d6d6d6d6d6d6d6d6d6d6d6d6d6d6d6d6d6d"
        "6d6d6d6d6d6d6d6d6d6d6d6d6da570726f6f66c420707070707070707070707070707070707070707070707070707070"
        "7070707070a5746f6b656ec313fd6e40"
    ),
    "survey": (
        "4c53504e00030e0000000021000000000000000083a366657702a46d616e7908a570656572739192a93139322e302e32"
        "2e37cd1b5909044ecf"
    ),
    "report": (
        "4c53504e00030f00000000b7000000000000000084ac6d656d6f72795f6279746573cf0000000200000000a573706565"
        "6485ad6c617965725f7365636f6e6473cb3f847ae147ae147bab726f775f7365636f6e6473cb3f60624dd2f1a9fcb070"
        "6f736974696f6e5f7365636f6e6473cb3eb0c6f7a0b5ed8dac686561645f7365636f6e6473cb3f9eb851eb851eb8b169"
        "7465726174696f6e5f7365636f6e6473cb3f70624dd2f1a9fcab726f756e645f747269707392cb3fa999999999999ac0"
        "a6726561736f6ea37768790b38b021"
    ),
    "want": (
        "4c53504e000310000000001e000000000000000082a46e616d65ad6c61796572732f332e67677566a66f6666736574cd"
        "0200ec278532"
    ),
    "chunk": (
        "4c53504e0003110000000014000000000000000882a66f6666736574cd0200a5746f74616ccd0208636f6e74656e7473860eddcf"
    ),
    "join": (
        "4c53504e000312000000009c000000000000000085a46e616d65a56174746963ab696e6361726e6174696f6eb0303132"
        "33343536373839616263646566a4686f7374a93139322e302e322e37a4706f7274cd1b58a5686f6c647383a664696765"
        "7374d9406162616261626162616261626162616261626162616261626162616261626162616261626162616261626162"
        "6162616261626162616261626162616261626162a5737461727403a3656e64094d6e227e"
    ),
    "lease": ("4c53504e0003130000000012000000000000000081a77365636f6e6473cb40140000000000008f1e22e1"),
    "leave": ("4c53504e000314000000000d000000000000000081a6726561736f6ea4676f6e65c10717ac"),
}
"""Every byte of each frame, in protocol GOLDEN_VERSION."""
GOLDEN_VERSION = 3


def test_the_pinned_bytes_are_of_this_protocol() -> None:
    assert GOLDEN_VERSION == PROTOCOL_VERSION, "pin the bytes of the new protocol version here"
    assert {frame.kind for frame in FRAMES.values()} == set(Kind), "every kind of frame is pinned"


@pytest.mark.parametrize("name", FRAMES)
def test_the_bytes_of_every_frame_are_pinned(name: str) -> None:
    found = b"".join(bytes(part) for part in FRAMES[name].parts()).hex()
    assert found == GOLDEN[name].replace(" ", ""), (
        f"the bytes of a {name} frame have changed. A peer that was not changed would misread it: "
        "raise PROTOCOL_VERSION and pin the new bytes, or undo the change"
    )


def test_every_field_that_travels_is_pinned() -> None:
    """The pinned structs differ from their defaults in every field, so that a field cannot move unseen."""
    for struct in (ASSIGNMENT, SAMPLING, TIMING, HELLO, ITERATION.spans[2], RESULT.samples[0], RESULT):
        for field in msgspec.structs.fields(struct):
            if struct is not HELLO or field.name != "stage":
                assert getattr(struct, field.name) != field.default, f"{type(struct).__name__}.{field.name}"


MESSAGES: list[Message] = [
    HELLO,
    Refuse("why", 1, "0.1.0", "cd" * 32),
    Progress("loading"),
    Ready(8, 4096, 512, 64, 4242, 123456789),
    Welcome(1),
    RESULT,
    Ping(5),
    Passed(2),
    Failed(1, "gone"),
    Challenge(b"n" * 32, True),
    Proof(b"m" * 32, b"p" * 32, True),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_what_is_sent_is_received(message: Message) -> None:
    assert decode(encode(message), type(message)) == message


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_an_iteration_arrives_as_it_was_sent(dtype: str) -> None:
    header, activations = decode_iteration(
        encode_iteration(ITERATION, ACTIVATIONS, dtype, (FAILURE,), (TIMING,)), WIDTH
    )
    assert header == IterationHeader(ITERATION, 6, WIDTH, dtype, (FAILURE,), (TIMING,))
    assert activations.dtype == np.float32
    assert np.array_equal(activations, ACTIVATIONS)


def test_activations_that_do_not_lie_in_order_are_sent_in_order() -> None:
    odd = np.asfortranarray(ACTIVATIONS)
    assert np.array_equal(decode_iteration(encode_iteration(ITERATION, odd, "float32"), WIDTH)[1], ACTIVATIONS)


def test_an_iteration_of_operations_only() -> None:
    bare = Iteration(1, (Drop(0),), (), ())
    header, activations = decode_iteration(
        encode_iteration(bare, np.empty((0, WIDTH), np.float32), "float32"), WIDTH
    )
    assert header.iteration == bare
    assert activations.shape == (0, WIDTH)


def test_a_greeting_is_read_out_of_any_later_hello() -> None:
    """Another version may say more, and may mean something else by all the rest."""
    later = {
        "protocol": 9,
        "version": "3.0",
        "digest": "ef" * 32,
        "assignment": "not a struct",
        "role": 7,
        "new": [],
    }
    assert decode(Frame(Kind.HELLO, msgspec.msgpack.encode(later)), Greeting) == Greeting(9, "3.0", "ef" * 32)
    assert decode(encode(HELLO), Greeting) == Greeting(PROTOCOL_VERSION, "0.1.0", "ab" * 32)


def test_a_refusal_of_a_later_version_is_read() -> None:
    later = {"reason": "too old", "protocol": 9, "version": "3.0", "digest": "ef" * 32, "advice": ["upgrade"]}
    assert decode(Frame(Kind.REFUSE, msgspec.msgpack.encode(later)), Refuse).reason == "too old"


def iteration_frame(**changes: Any) -> Frame:
    header = IterationHeader(ITERATION, 6, WIDTH, "float32")
    payload = changes.pop("payload", b"\0" * (6 * WIDTH * 4))
    return Frame(Kind.ITERATION, msgspec.msgpack.encode(msgspec.structs.replace(header, **changes)), payload)


def spans(count: int) -> Iteration:
    return Iteration(1, (), (), tuple(Span(0, 0, 0, 0, (), Phase.DECODE) for _ in range(count)))


def wide(tokens: int) -> Iteration:
    return Iteration(1, (), (), (Span(0, 0, 0, 0, (1,) * tokens, Phase.PREFILL),))


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (iteration_frame(rows=7), "announces 7 rows of width 3 for 6 tokens; this model's width is 3"),
        (iteration_frame(rows=-1), "announces -1 rows"),
        (iteration_frame(width=4), "6 rows of width 4 for 6 tokens; this model's width is 3"),
        (iteration_frame(width=2**40), "width 1099511627776"),
        (iteration_frame(iteration=wide(MAX_ROWS + 1), rows=MAX_ROWS + 1), f"announces {MAX_ROWS + 1} rows"),
        (iteration_frame(iteration=spans(MAX_SPANS + 1), rows=0), f"more than {MAX_SPANS} spans"),
        (iteration_frame(failures=(FAILURE,) * (MAX_SPANS + 1)), f"more than {MAX_SPANS} spans"),
        (iteration_frame(timings=(TIMING,) * (MAX_SPANS + 1)), f"more than {MAX_SPANS} spans"),
        (iteration_frame(dtype="float64"), "unknown activation type 'float64', expected one of float32, float16"),
        (iteration_frame(payload=b"\0" * 71), "carries 71 bytes of activations, 72 were expected"),
        (iteration_frame(payload=b""), "carries 0 bytes of activations, 72 were expected"),
        (iteration_frame(dtype="float16"), "carries 72 bytes of activations, 36 were expected"),
        (Frame(Kind.ITERATION, b""), "the ITERATION frame does not hold IterationHeader"),
        (Frame(Kind.ITERATION, b"\x91" * 100_000), "does not hold IterationHeader"),
        (Frame(Kind.ITERATION, msgspec.msgpack.encode([1, 2, 3])), "does not hold IterationHeader"),
    ],
)
def test_an_iteration_with_absurd_counts_is_refused(frame: Frame, message: str) -> None:
    with pytest.raises(ProtocolError, match=message):
        decode_iteration(frame, WIDTH)


@settings(deadline=None)
@given(header=st.binary(max_size=200), payload=st.binary(max_size=100))
def test_random_headers_are_messages_or_protocol_errors(header: bytes, payload: bytes) -> None:
    for expected in (*(type(message) for message in MESSAGES), Greeting):
        try:
            decode(Frame(Kind.HELLO, header, payload), expected)
        except ProtocolError:
            continue
    try:
        decode_iteration(Frame(Kind.ITERATION, header, payload), WIDTH)
    except ProtocolError:
        return


_JUNK = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=20,
)


@settings(deadline=None)
@given(path=st.lists(st.integers(0, 10), min_size=1, max_size=6), junk=_JUNK)
def test_a_header_with_one_part_replaced_is_read_or_refused(path: list[int], junk: Any) -> None:
    plain = msgspec.msgpack.decode(FRAMES["iteration float32"].header)
    place = plain
    for step in path[:-1]:
        if isinstance(place, list) and place and isinstance(place[step % len(place)], list):
            place = place[step % len(place)]
    if isinstance(place, list) and place:
        place[path[-1] % len(place)] = junk
    frame = Frame(Kind.ITERATION, msgspec.msgpack.encode(plain), FRAMES["iteration float32"].payload)
    try:
        header, activations = decode_iteration(frame, WIDTH)
    except ProtocolError:
        return
    assert activations.shape == (header.rows, WIDTH) == (header.iteration.rows, WIDTH)


@settings(deadline=None)
@given(data=st.data())
def test_mutated_bytes_are_read_or_refused(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(FRAMES)))
    frame = FRAMES[name]
    header = bytearray(frame.header)
    for _ in range(data.draw(st.integers(1, 5))):
        header[data.draw(st.integers(0, len(header) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(ProtocolError):
        decode_iteration(Frame(Kind.ITERATION, bytes(header), frame.payload), WIDTH)
    with contextlib.suppress(ProtocolError):
        decode(Frame(Kind.RESULT, bytes(header)), IterationResult)


def test_values_that_are_no_numbers_travel() -> None:
    """The stages judge them, not the wire."""
    rows = np.full((6, WIDTH), np.nan, np.float32)
    _, activations = decode_iteration(encode_iteration(ITERATION, rows, "float16"), WIDTH)
    assert np.isnan(activations).all()
    timing = StageTiming(0, math.nan, math.inf, -math.inf)
    assert len(decode(encode(IterationResult(1, timings=(timing,))), IterationResult).timings) == 1


def test_values_too_large_for_the_type_become_infinite() -> None:
    """Without a warning for each frame; the next stage fails the span."""
    _, activations = decode_iteration(encode_iteration(ITERATION, ACTIVATIONS * 1e6, "float16"), WIDTH)
    assert np.isinf(activations[1:]).all()


def test_a_full_iteration_fits_the_header() -> None:
    """As many rows as a frame may have, with the longest tokens, and every span with a long reason."""
    rows = (49151,) * (MAX_ROWS // MAX_SPANS)
    many = Iteration(
        2**40, (), (), tuple(Span(2**40, 4096, 9999, 2**20, rows, Phase.VERIFY, (0,)) for _ in range(MAX_SPANS))
    )
    failures = tuple(SpanFailure(index, "x" * 100) for index in range(MAX_SPANS))
    frame = encode_iteration(many, np.zeros((many.rows, 1), np.float32), "float32", failures)
    assert len(frame.header) < MAX_HEADER_BYTES
    assert decode_iteration(frame, 1)[0].iteration == many
    assert many.rows == MAX_ROWS
