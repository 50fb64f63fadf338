"""Frames taken by their mould say what they would have said if they had been parsed."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from providers.exchange import Endpoint
from providers.gather import GatherReader
from providers.mould import mould_of
from tests.providers.reading import Read, call


def frame(delta: dict[str, Any] | None = None, *, space: bool = False, **more: Any) -> bytes:
    """One event as a server writes it."""
    choice = {"index": 0, **({"delta": delta} if delta is not None else {}), **more, "finish_reason": None}
    chunk = orjson.dumps({"id": "c1", "object": "chat.completion.chunk", "created": 1, "choices": [choice]})
    return b"data: " + (chunk.replace(b'":', b'": ') if space else chunk) + b"\n\n"


def test_a_frame_alike_gives_its_text_and_any_other_gives_none() -> None:
    mould = mould_of(frame({"content": "first"}))
    assert mould is not None
    assert (mould.index, mould.name, mould.in_delta) == (0, "content", True)
    for text in ("x", " two words", 'a "quote" and a \\', "line\nend", "é ☃ 𝄞", '","finish_reason":"stop"'):
        assert mould.text(frame({"content": text})) == text
    for other in (
        frame({"content": ""}),  # says nothing: the careful way knows what that means
        frame({"content": None}),
        frame({"content": "x", "role": "assistant"}),
        frame({"content": "x"}, logprobs=None),
        frame({"content": "x"}, space=True),
        frame({"reasoning_content": "x"}),
        frame({"content": "x"}).replace(b"null", b'"stop"'),
        frame({"content": "x"}).replace(b'"x"', b"7"),
        frame({"content": "x"}).replace(b'"x"', b'"\\x"'),
        frame({"content": "x"}).replace(b'"x"', b'"a"b"'),
        frame({"content": "x"}).replace(b'"x"', b'"\xff"'),
        frame({"content": "x"}).replace(b'"x"', b'"x","content":"y"'),
        b"data: [DONE]\n\n",
        b"",
    ):
        assert mould.text(other) is None


@pytest.mark.parametrize(
    "unfit",
    [
        b"data: [DONE]\n\n",
        b"data: nonsense\n\n",
        b": a comment\n\n",
        b"data: [1]\n\n",
        b'data: {"choices": [1]}\n\n',
        b'data: {"choices": []}\n\n',
        frame({}),
        frame({"content": "a", "reasoning_content": "b"}),
        frame({"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]}),
        frame({"content": "a"}, logprobs={"content": [{"token": "a", "logprob": -1}]}),
        frame({"content": "assistant", "role": "assistant"}).replace(b'"content"', b'"role":"assistant","content"'),
        frame({"content": "c1"}),  # the same text stands earlier in the frame
        frame({"content": "caf\u00e9"}).replace("é".encode(), b"\\u00e9"),  # written otherwise than we would
    ],
)
def test_what_has_no_mould(unfit: bytes) -> None:
    assert mould_of(unfit) is None


_TEXT = st.text(max_size=6) | st.sampled_from(["c1", '"', "\\", "\n", "assistant", "null", "}"])
_FRAMES = st.one_of(
    st.builds(lambda text: frame({"content": text}), _TEXT),
    st.builds(lambda text: frame({"content": text}, logprobs=None), _TEXT),
    st.builds(lambda text: frame({"reasoning_content": text}), _TEXT),
    st.builds(lambda text: frame({"role": "assistant", "content": text}), _TEXT),
    st.builds(lambda text: frame({"content": text}, space=True), _TEXT),
    st.builds(lambda text: frame({"content": text}, logprobs={"content": [{"token": text}]}), _TEXT),
    st.builds(lambda text: frame({"tool_calls": [{"index": 0, "function": {"arguments": text}}]}), _TEXT),
    st.just(b": keep-alive\n\n"),
    st.just(frame({}).replace(b"null", b'"stop"')),
    st.binary(max_size=8).map(lambda data: frame({"content": "x"}).replace(b'"x"', data)),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(_FRAMES, max_size=30), st.integers(1, 400), st.booleans())
def test_a_gathered_stream_is_the_same_with_moulds_and_without(frames: list[bytes], step: int, ends: bool) -> None:
    body = b"".join(frames) + (b"data: [DONE]\n\n" if ends else b"")
    pieces = [body[at : at + step] for at in range(0, len(body), step)]
    careful = GatherReader(call(), "vllm")
    careful._moulds = 0
    assert Read(GatherReader(call(), "vllm"), pieces).seen == Read(careful, pieces).seen


def test_completions_have_moulds_too() -> None:
    body = b"".join(frame(text=f"word {number} ") for number in range(20)) + frame(text="end").replace(
        b"null", b'"stop"'
    )
    got = Read(GatherReader(call(Endpoint.COMPLETIONS, prompt="x"), "vllm"), [body + b"data: [DONE]\n\n"])
    assert orjson.loads(got.out)["choices"][0]["text"] == "".join(f"word {n} " for n in range(20)) + "end"
    assert got.tokens == 21
